"""OpenAI Agents SDK with its default API (Responses): pass ``client.openai`` to the model."""

from agents import Agent, OpenAIResponsesModel, Runner, function_tool, set_tracing_disabled
from game import TURNS, Game, play

set_tracing_disabled(True)  # don't send traces to OpenAI if OPENAI_API_KEY is set


async def agent(client, task):
    """Play the game with one agent and one tool, using ``Runner.run``."""
    game = Game(task)

    @function_tool
    def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    player = Agent(
        name="Player",
        instructions="Use the tool check_guess.",
        tools=[check_guess],
        model=OpenAIResponsesModel(model=client.model, openai_client=client.openai),
    )
    await Runner.run(player, game.rules, max_turns=TURNS + 1)
    return game.reward


if __name__ == "__main__":
    play(agent)
