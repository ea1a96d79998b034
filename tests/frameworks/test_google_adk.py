"""Google's Agent Development Kit: unchanged agents with the default model."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from episodes import reward
from game import TASK, TURNS, Game, guess_with_tool, tool_call
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy

pytestmark = [
    pytest.mark.usefixtures("no_sockets"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # ADK's own
]

DEFAULTS = ("gemini-2.5-flash", "gemini-3.5-flash")
"""The models requested by ``Gemini()`` and by an ``LlmAgent`` without a model."""


@pytest.fixture(autouse=True)
def with_some_key(environment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if environment != "openai3":
        pytest.skip("ADK is in the environment openai3")
    monkeypatch.setenv("GOOGLE_API_KEY", "unused")


async def run(agent: Any, text: str) -> list[Any]:
    """Send a message to an ADK agent and return its events."""
    from google.adk.agents import RunConfig
    from google.adk.runners import InMemoryRunner
    from google.genai import types

    runner = InMemoryRunner(agent, app_name="game")
    session = await runner.session_service.create_session(app_name="game", user_id="user")
    events = runner.run_async(
        user_id="user",
        session_id=session.id,
        new_message=types.UserContent(text),
        run_config=RunConfig(max_llm_calls=TURNS + 1),
    )
    return [event async for event in events]


async def by_default(task: dict[str, int], **model: Any) -> float:
    from google.adk.agents import LlmAgent

    game = Game(task)

    def check_guess(number: int) -> str:
        """Check a guess."""
        return game.check(number)

    agent = LlmAgent(
        name="player", instruction="Use the tool check_guess.", tools=[check_guess], **model
    )
    await run(agent, game.rules)
    return game.reward


async def by_name(task: dict[str, int]) -> float:
    return await by_default(task, model="gemini-2.5-flash")


@pytest.mark.parametrize("agent", [by_name, by_default])
async def test_an_unchanged_adk_agent_plays(agent: Callable[..., Any]) -> None:
    policy = ScriptedPolicy(guess_with_tool)
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, TASK, policy_names=DEFAULTS))

    assert reward(trajectory) == 1.0
    assert [turn.ac.tokens for turn in trajectory.transitions] == policy.actions
    assert len(trajectory.transitions) == 6
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


async def test_an_agent_used_as_a_tool_of_another_agent_is_also_the_policy() -> None:
    from google.adk.agents import LlmAgent
    from google.adk.tools.agent_tool import AgentTool

    async def agent() -> float:
        helper = LlmAgent(name="helper", description="Knows.", model=DEFAULTS[0])
        asker = LlmAgent(name="asker", model=DEFAULTS[0], tools=[AgentTool(helper)])
        *_, last = await run(asker, "What is it?")
        return float(last.content.parts[0].text == "It is 42.")

    policy = ScriptedPolicy([tool_call("helper", request="What?"), "42", "It is 42."])
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, policy_names=DEFAULTS))

    assert reward(trajectory) == 1.0
    assert re.search("tool_response.*42", policy.prompts[2], re.DOTALL)
    assert trajectory.transitions[-1].metrics["lineages"] == 2


async def test_an_output_schema_is_requested_and_checked() -> None:
    from google.adk.agents import LlmAgent
    from pydantic import BaseModel

    class Answer(BaseModel):
        number: int

    async def agent() -> float:
        answerer = LlmAgent(name="answerer", model=DEFAULTS[0], output_schema=Answer)
        *_, last = await run(answerer, "What is it?")
        return float(Answer.model_validate_json(last.content.parts[0].text).number == 42)

    policy = ScriptedPolicy(["It is 42.", '{"number": 42}'])
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, policy_names=DEFAULTS))

    assert reward(trajectory) == 1.0
    assert trajectory.transitions[0].metrics["format_error"] == 1.0
