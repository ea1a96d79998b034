"""``tasks=verifiers:NAME``: the same replies earn the same as in verifiers' own evaluation.

There are six environments: a third-party package, a multi-turn environment and an environment with
a tool, each for verifiers 0.4 and for earlier versions. Each environment plays 40 episodes in both
verifiers and evert.
"""

import asyncio
import json
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.kit import play, reward
from tests.more_trainers.conftest import served_chat
from tests.tasksets.conftest import Said, as_text, check_lines_of_the_page
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import Trajectory

from evert import AgentError, train
from evert.bridge.import_paths import resolve
from evert.envs.games import GameError
from evert.envs.tasksets import task_game
from evert.envs.tasksets.verifiers import Verifiers, verifiers

IS_V0 = find_spec("verifiers.envs") is not None
Results = list[tuple[float, dict[str, float]]]
EPISODES = 40


def guess(told: str) -> str:
    return "1" if "Too high" in told else "I say 3" if "Too low" in told else "2"


def shop(told: str) -> Said:
    """Ask for the price, and answer; every third answer is wrong."""
    number, item = re.findall(r"What do (\d+) of (\w+)", told)[-1]
    prices = re.findall(r"costs (\d+)", told)
    if not prices:
        return [("price", {"item": item})]
    return str(int(number) * int(prices[-1]) + (int(number) % 3 == 0))


def poem(told: str) -> str:
    """Answer with Basho's frog, whatever type of poem is requested."""
    return "An old silent pond\nA frog jumps into the pond\nSplash! Silence again"


def marble(told: str) -> str:
    """Solve every second level."""
    ring = re.findall(r"horizontal mouth centred at \((.*?)\)", told)[-1]
    return f"```json\n{solutions()[ring]}\n```"


@cache
def solutions() -> dict[str, str]:
    tasks = Verifiers("marble-v1").environment.splits["train"]
    levels = [tasks[number].data for number in range(EPISODES)]
    return {
        "{:.0f}, {:.0f}".format(*level.ring): json.dumps(level.solution) if level.idx % 2 else "[]"
        for level in levels
    }


@dataclass(frozen=True)
class Case:
    name: str
    say: Callable[[str], Said]
    options: Mapping[str, Any] = field(default_factory=dict)
    turns: int = 1


V1 = [
    Case("marble-v1", marble),
    Case("v1-guess", guess, turns=2),
    Case("v1-shop", shop, turns=2),
]
V0 = [
    Case("stardata.envs.constraint_gym", poem, {"topics_per_form": 5}),
    Case("v0-guess", guess, turns=2),
    Case("v0-shop", shop, turns=2),
]


async def at_most(limit: int, *plays: Any) -> list[Any]:
    gate = asyncio.Semaphore(limit)

    async def one(play: Any) -> Any:
        async with gate:
            return await play

    return await asyncio.gather(*map(one, plays))


async def by_verifiers_v0(case: Case) -> Results:
    import verifiers as vf

    env = vf.load_environment(case.name, **case.options)
    with served_chat(case.say) as url:
        client = vf.ClientConfig(api_base_url=url, api_key_var="NO_KEY")
        rows = env.get_dataset(n=EPISODES)
        played = await env.generate(rows, client, "policy", max_concurrent=8)
    outputs = {output["example_id"]: output for output in played["outputs"]}
    return [(outputs[n]["reward"], outputs[n]["metrics"]) for n in range(EPISODES)]


async def by_verifiers_v1(case: Case) -> Results:
    import verifiers.v1 as vf

    local = {"runtime": {"type": "subprocess"}, "harness": {"id": "null"}}
    role = "player" if case.name == "v1-guess" else "agent"
    block = {"taskset": {"id": case.name, **case.options}, role: local}
    env = vf.load_environment(vf.resolve_env_config(block))
    with served_chat(case.say) as url:
        client = vf.EvalClientConfig(base_url=url, api_key_var="NO_KEY")
        context = vf.ModelContext(model="policy", client=client)
        async with env.serving():
            tasks = [*env.taskset.take(EPISODES)]
            episodes = await at_most(4, *(env.run_episode(task, context) for task in tasks))
    assert all(episode.ok for episode in episodes)
    traces = [trace for episode in episodes for trace in episode.traces]
    return [(trace.reward, dict(trace.metrics)) for trace in traces]


async def by_evert(case: Case) -> tuple[list[Trajectory], Results]:
    game = task_game({"id": f"verifiers:{case.name}", **case.options})
    agent = resolve(game.agent, "agent", GameError)

    def says(prompt: str) -> str:
        return as_text(case.say(prompt))

    numbers = range(EPISODES)
    plays = (play(agent, says, task=f"train/{n}") for n in numbers)
    trajectories = await at_most(4, *plays)
    ends = [trajectory.transitions[-1].metrics for trajectory in trajectories]
    return trajectories, [(reward(t), end) for t, end in zip(trajectories, ends, strict=True)]


@pytest.mark.timeout(3000)  # verifiers 0.4 starts a process for each turn
@pytest.mark.parametrize("case", V0 if IS_V0 else V1, ids=lambda case: case.name)
async def test_rewards_and_metrics_equal_those_of_verifiers_own_evaluation(case: Case) -> None:
    theirs = await (by_verifiers_v0 if IS_V0 else by_verifiers_v1)(case)
    trajectories, ours = await by_evert(case)

    assert [earned for earned, _ in ours] == pytest.approx([earned for earned, _ in theirs])
    assert len({earned for earned, _ in ours}) > 1
    for (_, metrics), (_, expected) in zip(ours, theirs, strict=True):
        assert expected.items() <= metrics.items()
    assert {len(trajectory_to_data(trajectory, 1.0)) for trajectory in trajectories} == {1}
    assert max(len(trajectory.transitions) for trajectory in trajectories) == case.turns


HELD_OUT = {"held_out": 10} if IS_V0 else {"eval.split": "test", "eval.count": 10}


def test_the_eval_split_is_held_out_or_else_a_fifth_of_the_tasks() -> None:
    name = V0[1].name if IS_V0 else V1[1].name
    agent, parted = Verifiers(name, HELD_OUT), Verifiers(name)

    assert agent.train_tasks == [f"train/{n}" for n in range(40)]
    assert agent.test_tasks == [f"eval/{n}" for n in range(10)]
    assert (len(parted.train_tasks), len(parted.test_tasks)) == (32, 8)
    assert sorted(parted.train_tasks + parted.test_tasks) == sorted(agent.train_tasks)


async def test_a_held_out_task_comes_from_the_eval_split_and_a_limit_truncates() -> None:
    limit = {"max_turns": 1} if IS_V0 else {"player.max_turns": 1}
    name = V0[1].name if IS_V0 else V1[1].name
    prompts = []

    def says(prompt: str) -> str:
        prompts.append(prompt)
        return "1"

    trajectory = await play(Verifiers(name, {**HELD_OUT, **limit}), says, task="eval/0")
    first = 40 if IS_V0 else 1000
    assert f"Game {first}: I think of" in prompts[0]
    assert len(prompts) == len(trajectory.transitions) == 1
    ends = trajectory.transitions[-1].metrics
    assert ends["env_stop/max_turns_reached" if IS_V0 else "env_stop/max_turns"] == 1.0
    assert ends.get("stop/truncated") == (None if IS_V0 else 1.0)  # v0 only counts cut-off replies


MODULES = {
    "raising_env": "raise OSError('no licence')",
    "neither_env": "",
    "late_env": "def load_environment(): import verifiers",
    "sandbox_env": """
import verifiers as vf
from datasets import Dataset
from verifiers.envs.experimental.sandbox_mixin import SandboxMixin
class Boxed(SandboxMixin, vf.SingleTurnEnv):
    def teardown_sandboxes(self):
        pass
    def teardown_sandbox_client(self):
        pass
def load_environment():
    rows = Dataset.from_list([{"question": "1+1?", "answer": "2"}])
    return Boxed(dataset=rows, rubric=vf.Rubric(funcs=[lambda answer: 1.0]))
""",
    "group_env": """
import verifiers as vf
from datasets import Dataset
def ranked(completions) -> list:
    return [0.0 for completion in completions]
def load_environment():
    rows = Dataset.from_list([{"question": "1+1?", "answer": "2"}])
    return vf.SingleTurnEnv(dataset=rows, rubric=vf.Rubric(funcs=[ranked]))
""",
    "failing_v0": """
import verifiers as vf
from datasets import Dataset
class Failing(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **options):
        raise vf.ToolCallError("out of stock")
def load_environment():
    rows = Dataset.from_list([{"question": "1+1?", "answer": "2"}])
    return Failing(dataset=rows, rubric=vf.Rubric(funcs=[lambda answer: 1.0]))
""",
    "failing_v1": """
import verifiers.v1 as vf
class Failing(vf.Task[vf.TaskData]):
    @vf.reward
    async def right(self, trace):
        raise ValueError("out of stock")
class Tasks(vf.Taskset[Failing, vf.TasksetConfig]):
    def load(self):
        yield Failing(vf.TaskData(prompt="Hi"), self.config.task)
__all__ = ["Tasks"]
""",
    "boxed_env": """
import verifiers.v1 as vf
class Boxed(vf.Task[vf.TaskData]):
    NEEDS_CONTAINER = True
class Boxes(vf.Taskset[Boxed, vf.TasksetConfig]):
    def load(self):
        yield Boxed(vf.TaskData(prompt="Hi", image="python:3.12"), self.config.task)
__all__ = ["Boxes"]
""",
}
"""Third-party packages, each of which fails in a different way."""

BOTH = [
    ({"id": "verifiers:raising-env"}, r"OSError: no licence \(at .*raising_env.py:1\)"),
    (
        {"id": "verifiers:nemo-gim"},
        "no verifiers environment 'nemo-gim'. Did you mean nemo_gym",
    ),
]
REFUSED_V0: list[tuple[dict[str, Any], str]] = [
    *BOTH,
    ({"id": "verifiers:sandbox-env"}, r"Boxed, which requires a Prime Intellect sandbox"),
    ({"id": "verifiers:group-env"}, r"scores whole groups of rollouts, but evert plays rollouts"),
    ({"id": "verifiers:v0-guess", "cout": 3}, r"unexpected keyword argument 'cout'"),
]
REFUSED_V1: list[tuple[dict[str, Any], str]] = [
    *BOTH,
    ({"id": "verifiers:boxed-env"}, r"it requires a container, but evert does not start contain"),
    (
        {"id": "verifiers:v1-shop", "agent.harness.id": "bash"},
        r"harness bash runs commands written by the policy.* tasks\.agent\.runtime\.type=docker",
    ),
    ({"id": "verifiers:v1-guess", "cout": 3}, r"(?s)ValidationError.*cout"),
    ({"id": "verifiers:v0-guess"}, r"than 0.4 \(AttributeError: .*\). Install verifiers 0.3.1"),
    ({"id": "verifiers:late-env"}, r"than 0.4 \(AttributeError: .*\). Install verifiers 0.3.1"),
    ({"id": "verifiers:neither-env"}, r"taskset module 'neither_env' defines no `__all__`"),
]


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.parametrize(("given", "message"), REFUSED_V0 if IS_V0 else REFUSED_V1)
def test_an_unplayable_environment_is_refused(
    given: dict[str, Any], message: str, written: None
) -> None:
    with pytest.raises(GameError, match=message):
        task_game(given)


def test_the_error_for_a_mistyped_name_lists_the_installed_environments() -> None:
    installed = "lean, nemo_gym" if IS_V0 else "marble_v1, nemo_gym"
    with pytest.raises(
        GameError, match=f"no verifiers environment 'xyz'.* Available: .*{installed}"
    ):
        verifiers("xyz")


def test_loading_an_environment_keeps_the_signal_handlers() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    verifiers(V0[1].name if IS_V0 else V1[1].name, count=7)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


async def test_verifiers_errors_keep_their_messages(written: None) -> None:
    error = "ToolCallError.*out of stock" if IS_V0 else "TaskError: .*out of stock"
    with pytest.raises(AgentError, match=error):
        await play(Verifiers("failing_v0" if IS_V0 else "failing_v1"), "Hi", task="train/0")


def test_a_verifiers_taskset_is_trained_for_two_steps(tmp_path: Path) -> None:
    name = V0[1].name if IS_V0 else V1[1].name
    run = train(
        tasks={"id": f"verifiers:{name}", "count": 10}, model_name="evert-tiny", steps=2,
        batch_size=2, group_size=2, max_tokens=4, samples=1, eval_every=0, device="cpu",
        log_path=str(tmp_path / "run"),
    )  # fmt: skip
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    assert len([row for row in rows if "env/all/words" in row]) == 2
    assert run


@pytest.mark.skipif(IS_V0, reason="the commands need verifiers 0.4")
def test_the_command_lines_of_the_verifiers_page_are_valid() -> None:
    check_lines_of_the_page("verifiers")
