"""Google ADK: pass ``client.genai`` to ``Gemini``."""

from game import TURNS, Game, play
from google.adk.agents import LlmAgent, RunConfig
from google.adk.models import Gemini
from google.adk.runners import InMemoryRunner
from google.genai import types


async def agent(client, task):
    """Play the game with an ``LlmAgent`` that has one tool, using an ``InMemoryRunner``."""
    game = Game(task)

    def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    player = LlmAgent(
        name="player",
        instruction="Use the tool check_guess.",
        tools=[check_guess],
        model=Gemini(model=client.model, client=client.genai),
    )
    runner = InMemoryRunner(player, app_name="game")
    session = await runner.session_service.create_session(app_name="game", user_id="user")
    events = runner.run_async(
        user_id="user",
        session_id=session.id,
        new_message=types.UserContent(game.rules),
        run_config=RunConfig(max_llm_calls=TURNS + 1),
    )
    async for _ in events:
        pass
    return game.reward


if __name__ == "__main__":
    play(agent)
