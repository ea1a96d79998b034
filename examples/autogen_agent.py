"""AutoGen: give its model client an HTTP client that uses ``client.transport``."""

import openai
from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelFamily
from autogen_ext.models.openai import OpenAIChatCompletionClient
from game import TURNS, Game, play

INFO = {
    "function_calling": True,
    "json_output": True,
    "structured_output": True,
    "vision": False,
    "family": ModelFamily.UNKNOWN,
}


async def agent(client, task):
    """Play the game with an ``AssistantAgent`` that has one tool."""
    game = Game(task)

    async def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    model = OpenAIChatCompletionClient(
        model=client.model,
        api_key="unused",
        base_url=client.transport.base_url,
        model_info=INFO,
        http_client=openai.DefaultAsyncHttpxClient(transport=client.transport),
        max_retries=0,
    )
    player = AssistantAgent(
        "player",
        model,
        tools=[check_guess],
        system_message="Use the tool check_guess.",
        max_tool_iterations=TURNS,
    )
    await player.run(task=game.rules)
    return game.reward


if __name__ == "__main__":
    play(agent)
