"""Microsoft Agent Framework, by its default, the Responses API: it takes ``client.openai``."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from game import TURNS, Game, play


async def agent(client, task):
    """One agent, one tool. From the second call on it sends only what is new."""
    game = Game(task)

    def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    chat = OpenAIChatClient(
        model=client.model,
        async_client=client.openai,
        function_invocation_configuration={"max_iterations": TURNS},
    )
    player = Agent(chat, "Use the tool check_guess.", tools=[check_guess])
    await player.run(game.rules)
    return game.reward


if __name__ == "__main__":
    play(agent)
