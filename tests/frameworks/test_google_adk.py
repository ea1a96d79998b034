"""Google's Agent Development Kit: agents as they were written, on the default model.

1. It plays and trains on the tokens that were sampled, with no socket opened.
2. Agents that it hands over to, or asks as tools, are the policy too.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from episodes import reward, train_one_step
from game import TASK, TASKS, TURNS, Game, guess_with_tool, tool_call
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # ADK's of itself

DEFAULTS = ("gemini-2.5-flash", "gemini-3.5-flash")
"""The models that ``Gemini()`` and an ``LlmAgent`` without a model ask for."""


@pytest.fixture(autouse=True)
def with_some_key(environment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if environment != "openai3":
        pytest.skip("ADK is in the environment openai3")
    monkeypatch.setenv("GOOGLE_API_KEY", "unused")


async def run(agent: Any, text: str) -> list[Any]:
    """The events of an ADK agent that is told something."""
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


async def play_the_game(task: dict[str, int], **model: Any) -> float:
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
    return await play_the_game(task, model="gemini-2.5-flash")


async def by_default(task: dict[str, int]) -> float:
    return await play_the_game(task)


@pytest.mark.usefixtures("no_sockets")
@pytest.mark.parametrize("agent", [by_name, by_default])
async def test_it_plays_as_it_was_written(agent: Callable[..., Any]) -> None:
    policy = ScriptedPolicy(guess_with_tool)
    trajectory = await do_single_rollout(policy, ChatAgentEnv(agent, TASK, policy_names=DEFAULTS))

    assert reward(trajectory) == 1.0
    assert [turn.ac.tokens for turn in trajectory.transitions] == policy.actions
    assert len(trajectory.transitions) == 6
    assert len(trajectory_to_data(trajectory, 1.0)) == 1


@pytest.mark.usefixtures("no_sockets")
def test_the_cookbook_trains_it(tmp_path: Path) -> None:
    row = train_one_step("test_google_adk:by_default", TASKS[:2], tmp_path, policy_names=DEFAULTS)

    assert row["env/all/total_episodes"] == 4
    assert row["env/all/total_ac_tokens"] > 0
    assert row["optim/grad_norm"] > 0


@pytest.mark.usefixtures("no_sockets")
async def test_an_agent_that_is_a_tool_of_another_is_the_policy_too() -> None:
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


@pytest.mark.usefixtures("no_sockets")
async def test_an_output_schema_is_asked_for_and_checked() -> None:
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
