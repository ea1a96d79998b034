"""Every agent framework, unchanged, under the Cookbook, also unchanged.

1. The environment holds what its requirement file names, and every example is played in one.
2. An episode earns its reward, trains on exactly the tokens that were sampled, opens no socket.
3. One step of ``tinker_cookbook.rl.train.main`` trains the agent.
4. An episode given up at its second call leaves no task, and no thread in a model call.
5. Twenty episodes at once: none lost, none mixed up, no deadlock.
"""

import asyncio
import importlib.metadata
import json
import re
import runpy
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import tinker
from game import TASK, TASKS
from tinker_cookbook.completers import StopCondition, TokensWithLogprobs
from tinker_cookbook.rl import train as rl_train
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentDatasetBuilder, ChatAgentEnv, EnvClosedError, ScriptedPolicy, embedded_engine
from evert.bridge.base import BASE_MODEL, BASE_RENDERER

pytestmark = [  # of their own, and CrewAI's
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ImportWarning"),
]

ROOT = Path(__file__).parent.parent.parent

GUESSES = 5
"""Until a bisection of 1..100 finds the number of ``game.TASK``."""

CALLS = {
    "openai_sdk": GUESSES,  # ends with the right guess; the others say a last word
    "dspy_agent": GUESSES + 2,  # a call to finish, and one to write the answer
    "dspy_in_a_thread": GUESSES + 2,
    "dspy_over_loopback": GUESSES + 2,
}
DATA = {
    "litellm_messages_stream": GUESSES + 1,  # puts a text of its own into messages without one
    "dspy_agent": GUESSES + 2,  # each step is a new prompt that tells the story so far
    "dspy_in_a_thread": GUESSES + 2,
    "dspy_over_loopback": GUESSES + 2,
    "smolagents_agent": GUESSES + 1,  # writes its history in its own words, calls and results both
    "smolagents_stream": GUESSES + 1,
}
"""Training data of an episode, where it is not one."""


def reward(trajectory: Trajectory) -> float:
    return sum(transition.reward for transition in trajectory.transitions)


# -- 1. the environment --------------------------------------------------------------------------


def test_the_environment_has_the_versions_of_its_requirement_file(environment: str) -> None:
    lines = (ROOT / "frameworks" / f"{environment}.txt").read_text().splitlines()
    pins = [re.split(r"(?:\[.*\])?==", line) for line in lines if line and not line.startswith("#")]

    assert {name: importlib.metadata.version(name) for name, _ in pins} == dict(pins)


def test_every_example_is_played_in_an_environment(played: dict[str, list[str]]) -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py")} - {"game"}

    assert files == {name for names in played.values() for name in names}


def test_no_example_hides_a_package() -> None:
    files = {path.stem for path in (ROOT / "examples").glob("*.py")}

    assert not files & ({*importlib.metadata.packages_distributions()} | sys.stdlib_module_names)


def test_the_guard_sees_every_attempt_to_connect(no_sockets: list[str]) -> None:
    here = ("127.0.0.1", 9)
    with socket.socket() as inside, pytest.raises(OSError, match="forbidden here"):
        inside.connect(here)
    with pytest.raises(OSError, match="forbidden here"):
        socket.create_connection(here)
    with pytest.raises(OSError, match="forbidden here"):
        asyncio.run(asyncio.open_connection(*here))

    assert len(no_sockets) == 3
    no_sockets.clear()


# -- 2. an episode -------------------------------------------------------------------------------


@pytest.mark.usefixtures("no_sockets")
async def test_an_episode_trains_on_exactly_what_was_sampled(example: Any) -> None:
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


# -- 3. training ---------------------------------------------------------------------------------


def by_rank(trajectories: list[Trajectory]) -> list[float]:
    """Rewards that differ, so that there is something to learn whatever the model says."""
    return [float(rank) for rank in range(len(trajectories))]


@pytest.mark.usefixtures("no_sockets")
def test_the_cookbook_trains_it(example: Any, tmp_path: Path) -> None:
    builder = AgentDatasetBuilder(
        agent=example.path,
        train_tasks=TASKS[:2],
        batch_size=2,
        group_size=2,
        group_reward=by_rank,
        limits=RolloutLimits(max_turns=3),
        # The tiny base has not learned to play, and frameworks may raise on what it writes.
        env_options={"on_agent_error": 0.0},
    )
    config = rl_train.Config(
        recipe_name="test",
        learning_rate=1e-3,
        dataset_builder=builder,
        model_name=BASE_MODEL,
        renderer_name=BASE_RENDERER,
        max_tokens=24,
        max_steps=1,
        eval_every=0,
        save_every=0,
        log_path=str(tmp_path / "log"),
    )
    with embedded_engine(tmp_path / "store", device="cpu", threads=1):
        asyncio.run(rl_train.main(config))
    lines = (tmp_path / "log" / "metrics.jsonl").read_text().splitlines()
    (row,) = [row for row in map(json.loads, lines) if "optim/grad_norm" in row]

    assert row["env/all/total_episodes"] == 4
    assert row["env/all/total_ac_tokens"] > 0
    assert row["optim/grad_norm"] > 0


# -- 4. giving up --------------------------------------------------------------------------------


def threads_in_a_model_call() -> list[int]:
    """The threads that wait for a reply of the policy."""
    found = []
    for thread, frame in sys._current_frames().items():
        names = []
        while frame is not None:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        if "call_blocking" in names:
            found.append(thread)
    return found


def tasks_besides_this() -> list[str]:
    """Tasks of the loop, without the one that LiteLLM keeps on every loop it ever ran on."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    return [name for name in map(str, others) if "LoggingWorker._worker_loop" not in name]


@pytest.mark.usefixtures("no_sockets")
async def test_an_episode_given_up_at_its_second_call_leaves_nothing(example: Any) -> None:
    policy = ScriptedPolicy(example.model)
    env = ChatAgentEnv(example.agent, TASK)
    prompt, stop = await env.initial_observation()
    result = await env.step((await policy(prompt, stop)).tokens)
    assert not result.episode_done

    async with asyncio.timeout(1):
        await env.close()

    assert not env.is_running
    with pytest.raises(EnvClosedError):
        await env.step([0])
    for _ in range(500):  # what the framework itself cancels takes a moment
        if not tasks_besides_this() and not threads_in_a_model_call():
            break
        await asyncio.sleep(0.01)
    assert tasks_besides_this() == []
    assert threads_in_a_model_call() == []


# -- 5. many at once -----------------------------------------------------------------------------

EPISODES = 20


class Lockstep:
    """Lets nobody have a reply before every episode that still runs waits for one."""

    def __init__(self, running: int) -> None:
        self.running = running
        self._waiting: list[asyncio.Future[None]] = []

    async def wait(self) -> None:
        """Wait for all others."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        self._release()
        await mine

    def leave(self) -> None:
        """An episode has ended."""
        self.running -= 1
        self._release()

    def _release(self) -> None:
        if len(self._waiting) == self.running:
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                one.set_result(None)


class InStep(ScriptedPolicy):
    """One episode's script, in lockstep with the others."""

    def __init__(self, example: Any, others: Lockstep) -> None:
        super().__init__(example.model)
        self._others = others

    async def __call__(
        self, model_input: tinker.ModelInput, stop: StopCondition, **options: Any
    ) -> TokensWithLogprobs:
        await self._others.wait()
        return await super().__call__(model_input, stop, **options)


@pytest.mark.usefixtures("no_sockets")
async def test_twenty_episodes_at_once_do_not_mix(example: Any) -> None:
    others = Lockstep(EPISODES)
    tasks = [
        {"low": 100 * i + 1, "high": 100 * i + 100, "target": 100 * i + 1 + 37 * i % 100}
        for i in range(EPISODES)
    ]
    policies = [InStep(example, others) for _ in tasks]

    async def play(policy: InStep, task: dict[str, int]) -> float:
        try:
            return reward(await do_single_rollout(policy, ChatAgentEnv(example.agent, task)))
        finally:
            others.leave()

    async with asyncio.timeout(120):
        rewards = await asyncio.gather(*map(play, policies, tasks))

    assert rewards == [1.0] * EPISODES
    for policy, task in zip(policies, tasks, strict=True):
        mentioned = {tuple(re.findall(r"between (\d+) and (\d+)", p)[-1]) for p in policy.prompts}
        assert mentioned == {(str(task["low"]), str(task["high"]))}
