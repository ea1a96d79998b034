"""CrewAI, a synchronous framework. evert takes over calls to the policy, so no client is needed."""

import os

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from game import TURNS, Game, play

os.environ.setdefault("CREWAI_DISABLE_TELEMETRY", "true")
os.environ.setdefault("CREWAI_DISABLE_VERSION_CHECK", "true")


def agent(client, task):
    """Play the game with a one-agent crew that has a single tool."""
    game = Game(task)

    @tool("check_guess")
    def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    llm = LLM(client.model, provider="openai", api_key="unused")
    player = Agent(
        role="Player",
        goal="Find the number.",
        backstory="You like to guess.",
        tools=[check_guess],
        llm=llm,
        max_iter=TURNS + 1,
    )
    guessing = Task(description=game.rules, expected_output="The number.", agent=player)
    Crew(agents=[player], tasks=[guessing]).kickoff()
    return game.reward


if __name__ == "__main__":
    play(agent)
