"""Whatever a pool worker does, the trainer finds out in time, and nothing is left behind."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.faults import stalls
from tests.faults.scene import is_as, line
from tests.faults.workers import DEEDS, PROGRAMS, Deed, Program, agent_of
from tests.kit import Patch, Shown
from tests.trainers.workers.conftest import play, says_task

from evert.trainers.workers import pool
from evert.trainers.workers.pool import PoolRollouts

Group = tuple[Callable[..., Any], object]
"""An agent and a task."""


@dataclass(frozen=True)
class Seen:
    lines: list[str]  # the result of each group
    told: list[str]  # messages logged in the meantime
    stall: float  # the longest time the executor's loop was blocked, in seconds
    left: list[psutil.Process]


def seen_of(groups: Sequence[Group], mark: Path, monkeypatch: Patch, **options: Any) -> Seen:
    """Play groups in a separate pool and return everything the trainer can see."""
    monkeypatch.syspath_prepend(str(mark))  # puts the path on the workers' command line
    handler, logger = BufferingHandler(10_000), logging.getLogger("evert.trainers.workers")
    logger.addHandler(handler)
    try:
        with PoolRollouts(groups_per_worker=1, **options) as executor:
            lines, stall = asyncio.run(_play(executor, groups))
    finally:
        logger.removeHandler(handler)
    return Seen(lines, [one.getMessage() for one in handler.buffer], stall, _left(str(mark)))


async def _play(executor: PoolRollouts, groups: Sequence[Group]) -> tuple[list[str], float]:
    over = asyncio.Event()

    async def watch() -> float:
        async with stalls.watched() as stall:
            await over.wait()
        return stall.longest

    watching = asyncio.run_coroutine_threadsafe(watch(), executor._loop)
    lines = await asyncio.gather(*(_outcome(executor, *group) for group in groups))
    executor._loop.call_soon_threadsafe(over.set)
    return lines, await asyncio.wrap_future(watching)


async def _outcome(executor: PoolRollouts, agent: Any, task: object) -> str:
    try:
        return line(await play(executor, agent, task, size=1))
    except Exception as error:
        return line(error)


def _left(mark: str) -> list[psutil.Process]:
    """Wait a while for the marked processes to exit, and return those still running."""
    processes: list[psutil.Process] = []
    for _ in range(100):
        processes = [
            process
            for process in psutil.process_iter(["cmdline", "status"])
            if process.info["status"] != psutil.STATUS_ZOMBIE
            and any(mark in argument for argument in process.info["cmdline"] or ())
        ]
        if not processes:
            break
        time.sleep(0.02)
    return processes


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """Play all deeds in one pool with a single group per worker."""
    folder = tmp_path_factory.mktemp("deeds")
    groups = [(agent_of(deed, folder / deed.name), deed.name) for deed in DEEDS]
    with pytest.MonkeyPatch.context() as patch:
        return seen_of(groups, folder, patch, workers=2)


@pytest.mark.parametrize("deed", DEEDS, ids=str)
def test_a_broken_worker_is_reported_and_its_group_is_retried(deed: Deed, once: Seen) -> None:
    seen = once.lines[DEEDS.index(deed)]
    messages = [message for message in once.told if f"task '{deed.name}'" in message]

    assert is_as(seen, deed.trainer_sees), seen
    assert not deed.told or any(is_as(message, deed.told) for message in messages), messages
    assert bool(messages) == bool(deed.told)


def test_broken_workers_leave_nothing_behind_and_do_not_block_the_loop(once: Seen) -> None:
    assert once.left == []
    assert once.stall < stalls.LONGEST


@pytest.mark.parametrize("program", PROGRAMS, ids=str)
def test_a_worker_that_always_fails_is_distinguished_from_a_slow_one(
    program: Program, tmp_path: Path, monkeypatch: Patch, capfd: Shown
) -> None:
    monkeypatch.setattr(pool, "BOOT", program.boot)
    monkeypatch.setattr(pool, "START_SECONDS", program.start_seconds)
    seen = seen_of(
        [(says_task(), 1.0)], tmp_path, monkeypatch, workers=1, worker_timeout=program.seconds
    )

    [came] = seen.lines
    assert is_as(came, program.trainer_sees), came
    assert is_as("; ".join(seen.told), program.told), seen.told
    assert program.printed in capfd.readouterr().err
    assert seen.left == []
    assert seen.stall < stalls.LONGEST
