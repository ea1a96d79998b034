"""A run as a process of its own: how many fit, and how it ended.

1. Nobody knows how many fit until a run has done a step; then cores and memory say it.
2. How a run ended is told by its exit code and by what it printed.

Cores and free memory are the test's; that the processes do what they should, when they are killed
and interrupted, too, is in ``test_sweep.py``.
"""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from evert.trainers.rundir.folder import RunFolder
from evert.trainers.sweeping import process
from evert.trainers.sweeping.process import SPARE, ending, room_for
from evert.trainers.system.command import INTERRUPTED
from evert.trainers.system.files import RUN
from evert.trainers.system.machine import free_memory

# -- how many fit --------------------------------------------------------------------------------


def of_mine(runs: float) -> int:
    """Bytes that so many runs like this process need, and what other tests left it as children."""
    mine = psutil.Process()
    family = (mine, *mine.children(recursive=True))
    return int(runs * SPARE * sum(each.memory_full_info().uss for each in family))


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores, and memory for a hundred runs."""
    monkeypatch.setattr(process, "machine", lambda: {"cpus": 8})
    monkeypatch.setattr(process, "free_memory", lambda: of_mine(100))


def room(path: Path, steps: int = 1, **engine: Any) -> int:
    """How many fit like one that is this process, after so many steps."""
    (path / RUN).write_text(json.dumps({"engine": {"device": "cpu", "threads": 1, **engine}}))
    if steps:
        record = {"name": "x", "state_path": "tinker://x", "batch": steps}
        (path / "checkpoints.jsonl").write_text(json.dumps(record) + "\n")
    return room_for(RunFolder(path, resumed=True), os.getpid())


def test_nobody_knows_before_the_first_step(tmp_path: Path) -> None:
    assert room(tmp_path, steps=0) == 0
    assert room(tmp_path, steps=1) > 0


@pytest.mark.parametrize(("threads", "fit"), [(1, 8), (3, 2), (16, 1)])
def test_there_are_as_many_as_the_cores_are_enough_for(
    tmp_path: Path, threads: int, fit: int
) -> None:
    assert room(tmp_path, threads=threads) == fit


def test_a_gpu_is_for_one_run_at_a_time(tmp_path: Path) -> None:
    assert room(tmp_path, device="cuda:0") == 1


@pytest.mark.parametrize(("beside", "fit"), [(3.5, 4), (0.5, 1)])
def test_each_has_to_fit_into_the_free_memory_with_some_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: float, fit: int
) -> None:
    monkeypatch.setattr(process, "free_memory", lambda: of_mine(beside))
    assert room(tmp_path) == fit


def test_a_run_that_is_over_meanwhile_takes_nothing(tmp_path: Path) -> None:
    room(tmp_path)
    assert room_for(RunFolder(tmp_path, resumed=True), 2**22 + 1) == 8


def test_free_memory_is_some_and_no_more_than_the_machine_has() -> None:
    assert 0 < free_memory() <= psutil.virtual_memory().total


# -- how it ended --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        (0, "completed", ""),
        (INTERRUPTED, "interrupted", ""),
        (-signal.SIGKILL, "failed", "killed by SIGKILL (out of memory?)"),
        (-signal.SIGSEGV, "failed", "killed by SIGSEGV"),
    ],
)
def test_an_exit_code_says_how_it_ended(tmp_path: Path, code: int, status: str, error: str) -> None:
    (tmp_path / "output").write_text("error: of another time\n")
    assert ending(code, tmp_path / "output", stopped=False) == (status, error)


@pytest.mark.parametrize(
    ("printed", "error"),
    [
        ("error: old\nstep 1\nerror: no luck\n\nTry again.\n", "error: no luck\n\nTry again."),
        ("\n".join(f"line {n}" for n in range(9)), "\n".join(f"line {n}" for n in range(3, 9))),
        ("", "exit status 1"),
    ],
)
def test_what_went_wrong_is_its_last_error_or_its_last_lines(
    tmp_path: Path, printed: str, error: str
) -> None:
    (tmp_path / "output").write_text(printed)
    assert ending(1, tmp_path / "output", stopped=False) == ("failed", error)


@pytest.mark.parametrize(
    ("code", "status"), [(0, "completed"), (1, "interrupted"), (-signal.SIGKILL, "interrupted")]
)
def test_a_run_that_was_told_to_stop_did_not_fail(tmp_path: Path, code: int, status: str) -> None:
    (tmp_path / "output").write_text("KeyboardInterrupt\n")
    assert ending(code, tmp_path / "output", stopped=True) == (status, "")
