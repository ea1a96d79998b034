"""Runs in which episodes fail. ``test_tally.py`` tests how failures are classified and counted."""

import re
import shlex
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from tests.kit import Patch, Shown
from tests.trainers.kit import Cli
from tinker_cookbook.rl import train as cookbook

from evert import AgentDatasetBuilder, embedded_engine
from evert.trainers.commands import train
from evert.trainers.engine.clients.sampling_client import SamplingClient
from evert.trainers.engine.common.errors import SamplingRequestError
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import FAILED, SKIPPED, TRAIN_REWARD
from evert.trainers.system.files import RESULT, read_jsonl
from evert.trainers.training.progress import logging_to

AGENTS = '''
import asyncio
from pathlib import Path

TASKS = list(range(4))
TEST = [100, 101]
ASKED = [{"role": "user", "content": "Say e."}]


def reward(reply):
    return float("e" in (reply.choices[0].message.content or ""))


async def call(client):
    return reward(await client.chat.completions.create(messages=ASKED))


def look_up(name):
    raise LookupError(f"no table {name}\\nThe tables are: none.")


async def raises(client, task):
    await call(client)
    look_up(task)


async def raises_at_first(client, task):
    """In the first step; Path("fixed") makes it work."""
    if not Path("fixed").exists():
        look_up(task)
    return await call(client)


async def some_raise(client, task):
    said = await call(client)
    if task == 0:
        look_up(task)
    return said


async def one_hangs(client, task):
    said = await call(client)
    if task == 3 and not Path("hung").exists():
        Path("hung").touch()
        await asyncio.sleep(3600)
    return said


async def no_call(client, task):
    return task / 4


async def always_earns_one(client, task):
    await call(client)
    return 1.0


def calls_from_the_second_batch_on(client, task):
    """Blocking, as most agents are."""
    with Path("episodes").open("a") as file:
        file.write("x")
        file.flush()
        number = file.tell()  # unique to this episode, even if others write
    if number <= 4:
        return task / 4
    return reward(client.chat.completions.create(messages=ASKED))
'''
SMALL = [
    "train_tasks=failing_agents:TASKS", "device=cpu", "batch_size=2", "group_size=2",
    "max_tokens=8", "samples=0", "eval_every=0", "log_path=run",
]  # fmt: skip


STREAM = [
    "cookbook.stream_minibatch_config.groups_per_batch=2",
    "cookbook.stream_minibatch_config.num_minibatches=1",
]
ASYNC = [
    "cookbook.async_config.groups_per_batch=2",
    "cookbook.async_config.max_steps_off_policy=1",
    *(["cookbook.async_config.loss_fn=ppo"] if version("tinker-cookbook") >= "0.6" else []),
]
RETRY = ["cookbook.rollout_error_tolerance=True"]


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "failing_agents.py").write_text(AGENTS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "failing_agents", raising=False)


Run = Callable[..., str]


@pytest.fixture
def run(cli: Cli) -> Run:
    def train(agent: str, *words: str, status: int = 0) -> str:
        return cli(f"train agent=failing_agents:{agent}", *SMALL, *words, status=status)

    return train


def folder() -> RunFolder:
    return RunFolder(Path("run"))


def result() -> dict[str, Any]:
    return folder().read_json(RESULT) or {}


def test_a_first_batch_without_a_call_is_skipped_and_the_next_one_is_trained_on(run: Run) -> None:
    shown = run("calls_from_the_second_batch_on", "steps=3")
    assert "step 1 is skipped: 4 of 4 episodes failed (4 episodes without a model call)" in shown
    assert "training: step 1/3  failed 100%" in shown
    assert "1 batches were skipped because there was nothing to learn" in shown
    steps = folder().steps()
    assert [row["step"] for row in steps] == [0, 1, 2]
    assert [row[SKIPPED] for row in steps] == [1.0, 0.0, 0.0]
    assert [TRAIN_REWARD in row for row in steps] == [False, True, True]
    assert (result()["steps"], result()["skipped_batches"]) == (3, 1)
    assert folder().checkpoints()[-1]["batch"] == 3


def test_with_failed_steps_0_a_run_may_skip_every_batch(run: Run) -> None:
    run("no_call", "steps=2", "failed_steps=0", "test_tasks=failing_agents:TEST")
    assert result()["skipped_batches"] == 2
    assert result()["held_out"]["after"]["greedy"]["reward"] == 25.125  # the agent's reward
    assert folder().plot.exists()
    run("no_call", "steps=3", "failed_steps=0", "test_tasks=failing_agents:TEST")
    assert [row["step"] for row in folder().steps()] == [0, 1, 2]


def test_a_resumed_run_plays_a_skipped_batch_again(run: Run, cli: Cli) -> None:
    error = run("raises_at_first", "steps=3", status=1)
    again = error.partition("To resume: evert train ")[2].splitlines()[0]
    Path("fixed").touch()
    cli("train", *shlex.split(again))
    steps = folder().steps()
    assert [(row["step"], row[FAILED]) for row in steps] == [(0, 0.0), (1, 0.0), (2, 0.0)]
    assert result()["failures"]["kinds"] == {}


async def test_the_cookbooks_loop_skips_a_batch_without_a_call(tmp_path: Path) -> None:
    builder = AgentDatasetBuilder(
        agent="failing_agents:calls_from_the_second_batch_on",
        train_tasks="failing_agents:TASKS", batch_size=2, group_size=2,
    )  # fmt: skip
    config = cookbook.Config(
        recipe_name="test", model_name="evert-tiny", renderer_name="qwen3_instruct",
        dataset_builder=builder, learning_rate=1e-4, max_tokens=8, eval_every=0, save_every=0,
        log_path=str(tmp_path / "run"),
    )  # fmt: skip
    with embedded_engine(tmp_path / "store", device="cpu"), logging_to(tmp_path):
        await cookbook.main(config)
    assert [TRAIN_REWARD in row for row in folder().steps()] == [False, True]
    assert folder().checkpoints()[-1]["batch"] == 2


TRACEBACK = """\
  Traceback (most recent call last):
    File "{home}/failing_agents.py", line N, in raises
      look_up(task)
    File "{home}/failing_agents.py", line N, in look_up
      raise LookupError(f"no table {{name}}\\nThe tables are: none.")
  LookupError: no table """


def test_failures_are_reported_once_and_three_failed_steps_stop_the_run(
    run: Run, capsys: Shown
) -> None:
    tests = "test_tasks=failing_agents:TEST"
    assert train.main(["agent=failing_agents:raises", *SMALL, "steps=9", tests]) == 1
    shown, error = capsys.readouterr()
    shown = re.sub(r"line \d+", "line N", shown)
    for part in (
        "held-out tasks, untrained: 4 of 4 episodes failed (4 agent errors)\n",
        "most common, 4 times: LookupError: no table ",
        "\n  The tables are: none.\n",
        TRACEBACK.format(home=Path.cwd()),
        "Fix the agent at the line shown in the traceback. ",
        "step 1 is skipped: 4 of 4 episodes failed (4 agent errors) as before",
    ):
        assert part in shown
    assert shown.count("Traceback") == 1
    for part in (
        "error: In 3 consecutive steps, nearly all episodes failed: 12 of 12 episodes failed "
        "(12 agent errors). The most common failure: LookupError: no table ",
        "Fix the agent at the line shown in the traceback. ",
        "To continue anyway, set failed_steps=0.",
        "To resume: ",
    ):
        assert part in error
    assert "Traceback" not in error
    assert [row["step"] for row in read_jsonl(Path("run/batches.jsonl"))] == [0, 1, 2]
    run("raises", "steps=5", "failed_steps=0", tests)  # resuming may change failed_steps


def test_a_few_failures_are_reported_only_at_the_end(run: Run) -> None:
    shown = run("some_raise", "steps=2")
    assert "Traceback" not in shown
    message = "2 of 8 episodes failed (2 agent errors); most common, 2x: LookupError: no table 0"
    assert message in shown
    assert "failed 50%" in shown
    assert "held-out" not in shown
    assert (result()["name"], result()["held_out"]["after"]) == ("some_raise", None)
    ((failure, times),) = result()["failures"]["found"]
    assert (failure["kind"], times) == ("agent_error", 2)
    assert failure["traceback"].startswith("Traceback")


def test_a_scored_failure_stays_in_its_batch_even_with_fail_fast(run: Run) -> None:
    scored = ["on_agent_error=-1.0", "agent_timeout=2", "cookbook.rollout_error_tolerance=False"]
    run("one_hangs", "steps=2", *scored)
    assert result()["failures"]["kinds"] == {"agent_timeout": 1}
    assert sum(row["env/all/total_episodes"] for row in folder().steps()) == 8


@pytest.mark.parametrize("mode", [[], STREAM], ids=["one by one", "stream"])
def test_any_other_failure_stops_the_run(mode: list[str], monkeypatch: Patch, run: Run) -> None:
    def broken(self: Any, *arguments: Any, **options: Any) -> Any:
        raise SamplingRequestError("the sampler is on fire")

    for name in ("sample_async", "sample"):  # Cookbook 0.5 and 0.6
        monkeypatch.setattr(SamplingClient, name, broken)
    assert "error: the sampler is on fire" in run("some_raise", "steps=2", *mode, status=1)


@pytest.mark.parametrize("mode", [STREAM, ASYNC], ids=["stream", "async"])
def test_failures_are_left_out_and_counted_in_every_mode(mode: list[str], run: Run) -> None:
    run("some_raise", "steps=2", *mode)
    assert result()["failures"]["kinds"] == {"agent_error": 2}


def test_overlapping_batches_without_a_call_are_skipped_and_counted(run: Run) -> None:
    # parallel=1, because otherwise, on a busy machine, the groups of two batches could arrive
    # together. Too few groups would then be left for a third step, and no batch would be skipped.
    shown = run("calls_from_the_second_batch_on", "steps=3", "parallel=1", *ASYNC)
    assert sum(result()["failures"]["kinds"].values()) == 4
    assert len(folder().steps()) == 2
    assert "1 batches were skipped" in shown or "2 of 3 steps trained the model" in shown


@pytest.mark.parametrize("mode", [STREAM, ASYNC, RETRY], ids=["stream", "async", "retry"])
def test_a_run_in_which_all_episodes_fail_stops_in_every_mode(mode: list[str], run: Run) -> None:
    error = run("raises", "steps=4", *mode, status=1)
    if mode is STREAM and version("tinker-cookbook") < "0.6":
        assert "error: A batch contained nothing to learn from" in error
        assert "Disable stream_minibatch_config or install tinker-cookbook 0.6" in error
    else:
        assert "consecutive steps, nearly all episodes failed" in error


@pytest.mark.parametrize(
    "mode", [[], STREAM, ASYNC, [*STREAM, *ASYNC]], ids=["all", "stream", "async", "both"]
)
def test_removing_all_constant_groups_of_a_batch_gives_a_clear_error(
    mode: list[str], run: Run
) -> None:
    removing = "cookbook.remove_constant_reward_groups=True"
    fails = mode is STREAM and version("tinker-cookbook") < "0.6"
    error = run("always_earns_one", "steps=1", removing, *mode, status=int(fails))
    if fails:
        assert "(every group has equal rewards, and remove_constant_reward_groups is" in error
        assert "Disable stream_minibatch_config or install tinker-cookbook 0.6" in error
