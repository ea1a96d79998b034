"""Pydantic-AI: pass ``client.openai`` to the provider."""

from game import TURNS, Game, play
from pydantic_ai import Agent, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


async def agent(client, task):
    """Play the game with one agent and one tool."""
    game = Game(task)
    model = OpenAIChatModel(client.model, provider=OpenAIProvider(openai_client=client.openai))
    player = Agent(model, instructions="Use the tool check_guess.")

    @player.tool_plain
    def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    await player.run(game.rules, usage_limits=UsageLimits(request_limit=TURNS + 1))
    return game.reward


if __name__ == "__main__":
    play(agent)
