"""Microsoft Agent Framework with its default API (Responses): pass it ``client.openai``."""

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient
from game import TURNS, Game, play


async def agent(client, task):
    """Play the game with one agent and one tool. After the first call, it sends only new items."""
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
