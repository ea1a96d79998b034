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


@pytest.mark.parametrize(
    ("engine", "fit"),
    [
        ({}, 8),
        ({"threads": 3}, 2),
        ({"threads": 16}, 1),
        ({"device": "cuda:0"}, 1),
        ({"steps": 0}, 0),
    ],
)
def test_there_are_as_many_as_the_cores_are_enough_for_and_nobody_knows_before_the_first_step(
    tmp_path: Path, engine: Any, fit: int
) -> None:
    assert room(tmp_path, **engine) == fit


@pytest.mark.parametrize(("beside", "fit"), [(3.5, 4), (0.5, 1)])
def test_each_has_to_fit_into_the_free_memory_with_some_to_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beside: float, fit: int
) -> None:
    monkeypatch.setattr(process, "free_memory", lambda: of_mine(beside))
    assert room(tmp_path) == fit


def test_a_run_that_is_over_meanwhile_takes_nothing(tmp_path: Path) -> None:
    room(tmp_path)
    assert room_for(RunFolder(tmp_path, resumed=True), 2**22 + 1) == 8
    assert 0 < free_memory() <= psutil.virtual_memory().total


# -- how it ended --------------------------------------------------------------------------------


MANY = "\n".join(f"line {n}" for n in range(9))


@pytest.mark.parametrize(
    ("code", "printed", "stopped", "status", "error"),
    [
        (0, "error: of another time\n", False, "completed", ""),
        (INTERRUPTED, "error: of another time\n", False, "interrupted", ""),
        (-signal.SIGKILL, "error: old\n", False, "failed", "killed by SIGKILL (out of memory?)"),
        (-signal.SIGSEGV, "error: old\n", False, "failed", "killed by SIGSEGV"),
        (1, "error: old\n1\nerror: no luck\n\nTry.\n", False, "failed", "error: no luck\n\nTry."),
        (1, MANY, False, "failed", MANY.partition("2\n")[2]),
        (1, "", False, "failed", "exit status 1"),
        (0, "KeyboardInterrupt\n", True, "completed", ""),
        (1, "KeyboardInterrupt\n", True, "interrupted", ""),
        (-signal.SIGKILL, "KeyboardInterrupt\n", True, "interrupted", ""),
    ],
)
def test_its_exit_code_and_its_last_error_or_last_lines_say_how_it_ended(
    tmp_path: Path, code: int, printed: str, stopped: bool, status: str, error: str
) -> None:
    (tmp_path / "output").write_text(printed)
    assert ending(code, tmp_path / "output", stopped=stopped) == (status, error)
