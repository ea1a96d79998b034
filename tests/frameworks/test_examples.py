"""Every agent framework, unchanged, under the unchanged Cookbook."""

import asyncio
import importlib.metadata
import re
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from episodes import give_up_at_the_second_call, play_in_lockstep, reward, train_one_step
from game import TASK, TASKS
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ScriptedPolicy

pytestmark = [  # warnings from the frameworks, especially CrewAI
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ImportWarning"),
]

ROOT = Path(__file__).parent.parent.parent

GUESSES = 5
"""Number of guesses that bisecting 1..100 takes to find the target of ``game.TASK``."""

WITHOUT_A_FRAMEWORK = {
    *("alphabet_sort", "calculator", "colours", "compression", "distillation", "game"),
    *("gepa_prompt", "gymnasium_reinforce", "harbor_trial", "multiply", "reverse_text"),
    *("twenty_questions", "wordle"),
}
"""Modules shared by examples, and examples played by other tests."""

DSPY = ["agent", "in_a_thread", "own_engine_in_a_thread", "streamed", "over_loopback"]
STEPS = {f"dspy_{way}": GUESSES + 2 for way in DSPY}
CALLS = {
    "openai_sdk": GUESSES,  # ends with the right guess; other examples make one more call
    **STEPS,  # one more call to finish, and one to write the answer
}
DATA = {
    "litellm_messages_stream": GUESSES + 1,  # adds text to messages that have none
    **STEPS,  # each step is a new prompt that repeats the previous steps
    "smolagents_agent": GUESSES + 1,  # rewrites both calls and results in its history
    "smolagents_stream": GUESSES + 1,
}
"""Number of data per episode, for the examples with more than one datum."""


def test_the_environment_has_the_versions_of_its_requirement_file(environment: str) -> None:
    lines = (ROOT / "frameworks" / f"{environment}.txt").read_text().splitlines()
    pins = [re.split(r"(?:\[.*\])?==", line) for line in lines if line and not line.startswith("#")]

    assert {name: importlib.metadata.version(name) for name, _ in pins} == dict(pins)


def test_every_example_is_played_in_some_environment_and_shadows_no_package(
    played: dict[str, list[str]],
) -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}

    assert files - WITHOUT_A_FRAMEWORK == {name for names in played.values() for name in names}
    assert not files & ({*importlib.metadata.packages_distributions()} | sys.stdlib_module_names)


def test_the_guard_sees_every_connection_attempt(no_sockets: list[str]) -> None:
    here = ("127.0.0.1", 9)
    with socket.socket() as inside:
        for connect in (
            inside.connect,
            socket.create_connection,
            lambda address: asyncio.run(asyncio.open_connection(*address)),
        ):
            with pytest.raises(OSError, match="forbidden here"):
                connect(here)

    assert len(no_sockets) == 3
    no_sockets.clear()


@pytest.mark.usefixtures("no_sockets")
async def test_an_episode_trains_on_exactly_the_sampled_tokens(example: Any) -> None:
    policy = ScriptedPolicy(example.model)
    env = ChatAgentEnv(example.agent, TASK)
    trajectory = await do_single_rollout(policy, env)

    turns = trajectory.transitions
    assert reward(trajectory) == 1.0
    assert len(turns) == CALLS.get(example.name, GUESSES + 1)
    assert [turn.ac.tokens for turn in turns] == policy.actions
    data = trajectory_to_data(trajectory, 1.0)
    assert len(data) == DATA.get(example.name, 1)
    if len(data) == 1:
        seen = [turn.ob.to_ints() for turn in turns]
        for before, action, after in zip(seen, policy.actions, seen[1:], strict=False):
            assert after[: len(before) + len(action)] == before + action
        assert not env.drift


def test_every_example_runs_as_a_script(script: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / f"{script}.py"), run_name="__main__")

    assert "\nreward: 1.0\n" in capsys.readouterr().out


@pytest.mark.usefixtures("no_sockets")
def test_the_cookbook_trains_the_example(example: Any, tmp_path: Path) -> None:
    train_one_step(example.path, TASKS[:2], tmp_path)


@pytest.mark.usefixtures("no_sockets")
async def test_cancelling_an_episode_at_its_second_call_leaves_nothing_behind(example: Any) -> None:
    env = ChatAgentEnv(example.agent, TASK)

    await give_up_at_the_second_call(env, ScriptedPolicy(example.model))


EPISODES = 20


@pytest.mark.usefixtures("no_sockets")
async def test_twenty_concurrent_episodes_are_not_mixed_up(example: Any) -> None:
    tasks = [
        {"low": 100 * i + 1, "high": 100 * i + 100, "target": 100 * i + 1 + 37 * i % 100}
        for i in range(EPISODES)
    ]
    played = await play_in_lockstep(example.agent, example.model, tasks)

    assert [reward(trajectory) for trajectory, _ in played] == [1.0] * EPISODES
    for (_, policy), task in zip(played, tasks, strict=True):
        mentioned = {tuple(re.findall(r"between (\d+) and (\d+)", p)[-1]) for p in policy.prompts}
        assert mentioned == {(str(task["low"]), str(task["high"]))}
