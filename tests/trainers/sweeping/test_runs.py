"""How many runs fit on a machine: the first shows what a run takes.

Memory and cores are the test's; whether the processes do what they should is in ``test_sweep.py``.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evert.trainers.runs import folder as run_folder
from evert.trainers.runs.folder import RUN, RunFolder
from evert.trainers.sweeping import runs as sweep_runs
from evert.trainers.sweeping.runs import Room

GIGABYTE = 10**9


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight cores, ten gigabytes free."""
    monkeypatch.setattr(run_folder, "machine", lambda: {"cpus": 8})
    monkeypatch.setattr(sweep_runs, "free_memory", lambda: 10 * GIGABYTE)


def running(path: Path, memory: int, steps: int = 1, **engine: Any) -> Any:
    """A run that takes so much memory, after so many steps."""
    path.mkdir(exist_ok=True)
    (path / RUN).write_text(json.dumps({"engine": {"device": "cpu", "threads": 1, **engine}}))
    if steps:
        record = {"state_path": "tinker://x", "batch": steps}
        (path / "checkpoints.jsonl").write_text(json.dumps(record) + "\n")
    folder = RunFolder(path, resumed=True)
    return SimpleNamespace(folder=folder, memory=memory, peak=memory, over=False)


def room_for(runs: list[Any]) -> bool:
    """Whether another one fits, beside these, as the sweep finds out."""
    room = Room(None)
    room.look(runs)
    return room.for_another(runs)


def test_the_first_run_always_fits() -> None:
    assert Room(None).for_another([])
    assert Room(1).for_another([])


def test_a_given_number_is_kept_whatever_they_take(tmp_path: Path) -> None:
    runs = [running(tmp_path / str(n), 100 * GIGABYTE) for n in range(2)]
    assert Room(3).for_another(runs)
    assert not Room(2).for_another(runs)


def test_a_second_run_waits_until_the_first_has_taken_a_step(tmp_path: Path) -> None:
    assert not room_for([running(tmp_path / "a", GIGABYTE, steps=0)])
    assert room_for([running(tmp_path / "a", GIGABYTE, steps=1)])


def test_there_are_as_many_as_the_cores_are_enough_for(tmp_path: Path) -> None:
    four_threads = [running(tmp_path / str(n), 1, threads=4) for n in range(2)]
    assert room_for(four_threads[:1])
    assert not room_for(four_threads)
    one_thread = [running(tmp_path / str(n), 1) for n in range(8)]
    assert room_for(one_thread[:7])
    assert not room_for(one_thread)


def test_a_gpu_is_for_one_run_at_a_time(tmp_path: Path) -> None:
    assert not room_for([running(tmp_path / "a", 1, device="cuda:0")])


def test_another_run_has_to_fit_into_memory_with_some_to_spare(tmp_path: Path) -> None:
    assert room_for([running(tmp_path / "a", 7 * GIGABYTE)])
    assert not room_for([running(tmp_path / "a", 9 * GIGABYTE)])


def test_what_the_others_have_yet_to_take_is_not_free(tmp_path: Path) -> None:
    grown, young = running(tmp_path / "a", 4 * GIGABYTE), running(tmp_path / "b", GIGABYTE, steps=0)
    assert room_for([grown, young])
    grown.memory = grown.peak = 6 * GIGABYTE
    assert not room_for([grown, young])


def test_a_run_that_is_over_counts_by_what_it_took(tmp_path: Path) -> None:
    room = Room(None)
    ended = running(tmp_path / "a", 0)
    ended.peak, ended.over = 9 * GIGABYTE, True
    room.look([ended])
    assert not room.for_another([running(tmp_path / "b", GIGABYTE)])
