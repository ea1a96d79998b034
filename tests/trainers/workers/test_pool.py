"""A process pool plays the Cookbook's groups exactly as this process would.

1. Groups: agents of every type, several per worker, unchanged results and errors.
2. Cancelling, shutting down and killing leave nothing behind.
3. The engine: policy and frozen models are sampled in this process. Workers cannot reach other
   machines.

``tests/faults/test_workers.py`` covers groups whose workers die.
"""

import asyncio
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.kit import until
from tests.trainers.kit import sampler_of
from tests.trainers.workers.conftest import after_a_call, play, rewards, says_task
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollout_strategy import FailFast

from evert.bridge.errors import AgentError
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.bridge.groups.judge import judge_group
from evert.bridge.models.tinker_model import TinkerModel
from evert.bridge.records.record import read_records
from evert.bridge.records.recorder import Recorder
from evert.bridge.tokens.bases import model_renderer
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.workers import playing
from evert.trainers.workers.errors import WorkerError
from evert.trainers.workers.pool import PoolRollouts
from evert.trainers.workers.process import BOOT
from evert.trainers.workers.travel import pack, unpack

SECONDS = 60.0
"""How long a test waits for something that must happen."""


# -- 1. groups ------------------------------------------------------------------------------------


def said(groups: Any) -> list[Any]:
    return [t.transitions[0].ac for group in groups for t in group.trajectories_G]


async def test_lambdas_work_as_agent_and_group_reward_in_a_pool(pool: PoolRollouts) -> None:
    def blocking(client: Any) -> float:
        client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return float(os.getpid())

    builder = ChatAgentGroupBuilder(
        lambda client: blocking(client), group_size=2, group_reward=lambda group: [0.5, 0.25]
    )
    first, second = rewards(await play(pool, None, builder=builder))
    assert first - second == 0.25
    assert int(first) not in (0, os.getpid())


async def test_the_task_sampler_gets_the_rewards_of_groups_in_workers(pool: PoolRollouts) -> None:
    def fails(task: float) -> None:
        raise ValueError("This agent fails.")

    reports: list[list[float]] = []
    for agent in (says_task(), after_a_call(fails)):
        builder = ChatAgentGroupBuilder(agent, 3.0, group_size=2)
        builder.on_rewards = reports.append  # type: ignore[assignment]
        with suppress(AgentError):
            await play(pool, None, builder=builder)
    await until(lambda: len(reports) == 2)

    assert reports == [[3.0, 3.0], []]


async def test_the_weights_of_a_judge_stay_in_this_process(
    pool: PoolRollouts, engine: Engine
) -> None:
    """A worker has no engine. The tiny model returns no ranking, which counts as a failure."""
    judge = judge_group(TinkerModel("evert-tiny", max_tokens=4), "The longest.")

    async def draws(client: Any) -> float:
        messages = [{"role": "user", "content": str(client.seed)}]
        await client.chat.completions.create(messages=messages)
        return 0.0

    builder = ChatAgentGroupBuilder(draws, group_size=2, group_reward=judge)
    group = await play(pool, None, builder=builder)
    assert group is not None
    assert [metrics["judge/failed"] for metrics in group.metrics_G] == [1.0, 1.0]


async def test_an_agent_with_seats_plays_in_a_worker(pool: PoolRollouts) -> None:
    async def two_roles(client: Any) -> float:
        for role in ("asker", "answerer"):
            seat = client.seat(role)
            await seat.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
            seat.metric("process", os.getpid())
        return 1.0

    builder = ChatAgentGroupBuilder(two_roles, group_size=2, seats=("asker", "answerer"))
    group = await play(pool, None, builder=builder)

    assert group is not None
    turns = [trajectory.transitions for trajectory in group.trajectories_G]
    assert [len(transitions) for transitions in turns] == [1] * 4  # two episodes with two seats
    assert {turn.metrics["process"] for (turn,) in turns}.isdisjoint({os.getpid()})


async def test_records_from_workers_are_written_by_this_process(
    pool: PoolRollouts, tmp_path: Path
) -> None:
    recorder = Recorder(tmp_path / "rollouts.jsonl")
    agent = says_task()
    groups = [await play(pool, agent, task, record=recorder) for task in (1.0, 2.0)]
    records = [*read_records(recorder.path)]
    assert sorted(record.task for record in records) == [1.0, 1.0, 2.0, 2.0]
    earned = [reward for group in groups for reward in rewards(group)]
    assert sorted(record.reward for record in records) == sorted(earned)
    assert all(record.messages() for record in records)


async def test_a_worker_plays_several_groups_concurrently(
    pool: PoolRollouts, tmp_path: Path
) -> None:
    async def waits_for_the_others(client: Any, task: str) -> float:
        await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        (tmp_path / task).touch()
        while len(os.listdir(tmp_path)) < 3:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return float(os.getpid())

    groups = await asyncio.gather(
        *(play(pool, waits_for_the_others, task, size=1, agent_timeout=SECONDS) for task in "abc")
    )

    assert 1 <= len({reward for group in groups for reward in rewards(group)}) <= 2  # two workers


async def test_an_agents_error_is_returned_unchanged_with_its_cause(pool: PoolRollouts) -> None:
    def fails(task: float) -> None:
        raise LookupError("no such table")

    with pytest.raises(AgentError, match="raised LookupError after 1 model calls") as caught:
        await play(pool, after_a_call(fails), strategy=FailFast())

    assert type(caught.value).__name__ == "AgentError.LookupError"
    assert isinstance(caught.value.__cause__, LookupError)
    [note] = caught.value.__cause__.__notes__
    assert note.startswith("In a worker:\n")
    assert ", in fails" in note


async def test_log_records_of_a_group_appear_in_this_process(
    pool: PoolRollouts, caplog: Any
) -> None:
    def logs(task: float) -> float:
        for name in ("mine", "quiet"):
            logging.getLogger(name).debug("task %d", 5)
            logging.getLogger(name).info("task %d", 6)
            logging.getLogger(name).warning("task %d", 7)
        return 1.0

    caplog.set_level(logging.WARNING, "quiet")
    caplog.set_level(logging.INFO)
    await play(pool, after_a_call(logs), size=1)

    logged = [(record.name, record.getMessage()) for record in caplog.records]
    assert [entry for entry in logged if entry[0] in ("mine", "quiet")] == [
        ("mine", "task 6"),
        ("mine", "task 7"),
        ("quiet", "task 7"),
    ]


async def test_an_agent_that_cannot_be_pickled_is_refused(pool: PoolRollouts) -> None:
    lock = asyncio.get_running_loop()
    with pytest.raises(WorkerError, match=r"cannot pickle .* Create locks, clients, files"):
        await play(pool, after_a_call(lambda task: float(bool(lock))))


def test_a_pool_plays_only_the_cookbooks_groups(pool: PoolRollouts) -> None:
    with pytest.raises(WorkerError, match="was given <built-in function print>, but it can"):
        pool.submit(print, "Hi")


@pytest.mark.parametrize("numbers", [(0, 1), (1, 0)])
def test_a_pool_needs_at_least_one_worker_and_one_group(numbers: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1, got 0"):
        PoolRollouts(*numbers)


turned = threading.Event()
loop_turned: list[bool] = []


def wait_for_the_loop() -> None:
    loop_turned.append(turned.wait(5))


class Slow:
    def __reduce__(self) -> Any:
        return wait_for_the_loop, ()


async def test_importing_a_groups_modules_does_not_block_the_loop() -> None:
    outcome = asyncio.create_task(playing.play(pack(Slow())))
    await asyncio.sleep(0.1)
    turned.set()
    await outcome
    assert loop_turned == [True]


TEMPLATE = (
    "{% for m in messages %}{{ m.role }} {{ mood }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant {{ mood }}: {% endif %}"
)


def test_a_template_is_sent_to_workers_and_prepared_once(tiny_model: str, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    renderer = model_renderer(str(folder), "template(mood='calm')")
    first, second = (unpack(pack(renderer)) for _ in range(2))
    assert first is second
    messages = [Message(role="user", content="tea?")]
    assert first.build_generation_prompt(messages) == renderer.build_generation_prompt(messages)


# -- 2. cleaning up -------------------------------------------------------------------------------


def children() -> set[int]:
    return {process.pid for process in psutil.Process().children()}


def catches(pid: int, number: signal.Signals) -> bool:
    """Return whether a worker (not the fork that is about to become one) handles a signal."""
    if BOOT not in psutil.Process(pid).cmdline():
        return False
    status = Path(f"/proc/{pid}/status").read_text()
    [caught] = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(int(caught, 16) >> (number - 1) & 1)


def waits(folder: Path) -> Callable[..., Any]:
    """Return an agent that runs until it is cancelled."""

    async def agent(client: Any, task: float) -> float:
        (folder / "began").touch()
        try:
            await asyncio.sleep(3600)
        finally:
            (folder / "ended").touch()
        return 0.0

    return agent


async def test_cancelling_a_group_cancels_it_in_its_worker(
    pool: PoolRollouts, tmp_path: Path
) -> None:
    playing = asyncio.create_task(play(pool, waits(tmp_path)))
    await until((tmp_path / "began").exists)
    playing.cancel()
    await until((tmp_path / "ended").exists)
    assert rewards(await play(pool, says_task())) == [1.0, 1.0]


async def test_shutdown_waits_for_running_groups_and_may_be_called_twice() -> None:
    before = children()
    executor = PoolRollouts(1, 2)
    playing = asyncio.create_task(play(executor, says_task()))
    await asyncio.sleep(0)
    await asyncio.to_thread(executor.shutdown)
    executor.shutdown(cancel_futures=True)
    assert rewards(await playing) == [1.0, 1.0]
    assert children() == before
    with pytest.raises(RuntimeError, match="after shutdown"):
        await play(executor, says_task())


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_worker_that_is_no_longer_needed_exits_without_a_traceback(capfd: Any) -> None:
    before = children()
    starting = asyncio.create_task(PoolRollouts(workers=1).start_worker())
    await until(lambda: any(catches(pid, signal.SIGABRT) for pid in children() - before))
    starting.cancel()  # while the worker is still importing
    await asyncio.wait([starting])
    assert starting.cancelled()
    assert capfd.readouterr().err == ""


async def test_an_error_cancels_the_running_groups(tmp_path: Path) -> None:
    before, executor = children(), PoolRollouts(1, 2)
    playing = asyncio.create_task(play(executor, waits(tmp_path), agent_timeout=None))
    await until((tmp_path / "began").exists)
    with pytest.raises(LookupError), executor:
        raise LookupError
    with pytest.raises(asyncio.CancelledError):
        await playing
    assert children() == before


TRAINER = """
import asyncio, sys, time
from pathlib import Path
from evert import PoolRollouts
from tests.trainers.workers.conftest import play, says_task

executor = PoolRollouts(1, 2)
asyncio.run(play(executor, says_task()))
print("played", flush=True)
time.sleep(60)
"""


def test_workers_exit_when_their_trainer_is_killed() -> None:
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER], stdout=subprocess.PIPE, text=True, cwd=Path.cwd()
    )
    assert trainer.stdout is not None
    assert trainer.stdout.readline() == "played\n"
    workers = psutil.Process(trainer.pid).children()
    assert workers
    trainer.send_signal(signal.SIGKILL)
    trainer.wait()
    trainer.stdout.close()
    _, alive = psutil.wait_procs(workers, timeout=SECONDS)
    assert not alive


# -- 3. the engine --------------------------------------------------------------------------------


def base_client() -> Any:
    made = sampler_of("evert-tiny")
    assert made.sampler  # load it now
    return made


def greeted() -> Callable[..., Any]:
    async def agent(client: Any, task: str) -> float:
        messages = [{"role": "user", "content": task}]
        reply = await client.chat.completions.create(messages=messages, model="judge")
        await client.chat.completions.create(messages=messages)
        return float(len(reply.choices[0].message.content))

    return agent


async def test_groups_play_the_same_in_workers_as_in_this_process(
    pool: PoolRollouts, engine: Engine
) -> None:
    there, here = [
        [await play(executor, says_task(), task, client=base_client()) for task in (0.0, 3.0)]
        for executor in (pool, None)
    ]
    assert [rewards(group) for group in there] == [[0.0, 0.0], [3.0, 3.0]]
    assert [action.tokens for action in said(there)] == [action.tokens for action in said(here)]


async def test_frozen_weights_are_sampled_from_the_current_engine(tmp_path: Path) -> None:
    models = {"judge": TinkerModel("evert-tiny", seed=3, max_tokens=20)}
    with PoolRollouts(1, 2) as executor:  # the worker outlives the first engine
        for name in ("first", "second"):
            with embedded_engine(tmp_path / name, device="cpu"):
                options: dict[str, Any] = {"client": base_client(), "models": models, "size": 1}
                there = await play(executor, greeted(), "Say something long.", **options)
                here = await play(None, greeted(), "Say something long.", **options)
            assert rewards(there) == rewards(here)


async def test_weights_are_served_as_long_as_they_are_the_newest_or_in_use(engine: Engine) -> None:
    with PoolRollouts(1, 2) as executor:
        for client in (base_client(), base_client()):
            await play(executor, says_task(), client=client)
            service: Any = executor._offers._service
            assert [*service._offered.values()] == [client]
    assert not service._thread.is_alive()


async def test_workers_cannot_reach_other_machines(pool: PoolRollouts, engine: Engine) -> None:
    def calls_out(task: float) -> None:
        socket.create_connection(("192.0.2.1", 80), timeout=1)

    with pytest.raises(AgentError, match="raised NetworkRefusedError"):
        await play(pool, after_a_call(calls_out), client=base_client())
