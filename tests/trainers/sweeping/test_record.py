"""What a sweep remembers: runs, attempts, and what is left to do.

1. A grid has each of its points once, however often it is interrupted.
2. A random search draws the same values, interrupted or not.
3. What failed, or was running when the sweep was killed, is done again under the same number.
"""

from pathlib import Path

import pytest

from evert.bridge.errors import MissingPackageError
from evert.trainers.sweeping.record import Attempt, Record, Run, Status
from evert.trainers.sweeping.space import Plan, read_plan


def plan(*arguments: str) -> Plan:
    """A search over some settings."""
    return read_plan(["env=identity", "steps=1", *arguments])


GRID = plan("seed=0,1,2", "group_size=2,4", "renderer_name=None,qwen3")
RANDOM = plan("learning_rate=1e-4..1e-2", "group_size=2..64", "loss_fn=ppo,cispo", "trials=12")


ALL: tuple[Status, ...] = ("completed",) * 12


def open_record(chosen: Plan, folder: Path) -> Record:
    """As a sweep does when it starts."""
    record = Record(chosen, folder)
    record.take_up()
    return record


def do(record: Record, *endings: Status) -> list[Run]:
    """Try as many runs, which end like that; those that complete score their number."""
    tried = []
    for status in endings:
        one = record.next()
        assert one is not None
        score = float(one.run.number) if status == "completed" else None
        if status != "running":
            record.finish(one, Attempt(status, 1.5, "" if score is not None else "why"), score)
        tried.append(one.run)
    return tried


def test_a_grid_has_each_point_once(tmp_path: Path) -> None:
    record = open_record(GRID, tmp_path)
    tried = do(record, *ALL)
    assert record.next() is None
    assert [run.number for run in tried] == list(range(12))
    points = {(r.values["seed"], r.values["group_size"], r.values["renderer_name"]) for r in tried}
    assert len(points) == 12
    assert (0, 2, None) in points


def test_a_grid_that_failed_and_was_killed_on_the_way_has_each_point_once(tmp_path: Path) -> None:
    do(open_record(GRID, tmp_path), "completed", "failed", "completed", "running", "running")
    again = open_record(GRID, tmp_path)
    assert [run.number for run in do(again, "completed", "running", "failed")] == [1, 3, 4]
    last = open_record(GRID, tmp_path)
    tried = do(last, *ALL[:9])
    assert [run.number for run in tried] == [3, 4, *range(5, 12)]
    assert last.next() is None
    runs = last.runs()
    assert len({tuple(run.values.items()) for run in runs}) == len(runs) == 12
    assert all(run.status == "completed" and run.objective == run.number for run in runs)
    assert [len(run.attempts) for run in runs] == [1, 2, 1, 3, 3, *[1] * 7]


def test_each_attempt_keeps_how_it_ended(tmp_path: Path) -> None:
    do(open_record(GRID, tmp_path), "failed", "running", "interrupted")
    record = open_record(GRID, tmp_path)
    do(record, "completed")
    first, second, third, *_ = record.runs()
    assert first.attempts == [Attempt("failed", 1.5, "why"), Attempt("completed", 1.5, "")]
    assert (first.status, first.seconds, first.objective) == ("completed", 3.0, 0.0)
    assert second.attempts[0].status == "interrupted"
    assert "the sweep was killed" in second.attempts[0].error
    assert [run.status for run in (second, third)] == ["waiting", "waiting"]


def test_taking_up_twice_asks_for_a_run_once(tmp_path: Path) -> None:
    do(open_record(GRID, tmp_path), *ALL[:11], "failed")
    open_record(GRID, tmp_path)
    record = open_record(GRID, tmp_path)
    assert [run.number for run in do(record, "completed")] == [11]
    assert record.next() is None


def test_a_random_search_draws_the_same_interrupted_or_not(tmp_path: Path) -> None:
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = do(open_record(RANDOM, tmp_path / "whole"), *ALL)
    do(open_record(RANDOM, tmp_path / "parts"), "completed", "running", "failed")
    parts = open_record(RANDOM, tmp_path / "parts")
    do(parts, *ALL[:11])
    assert parts.next() is None
    assert [run.values for run in parts.runs()] == [run.values for run in whole]
    assert len({run.values["learning_rate"] for run in whole}) == 12
    assert all(1e-4 <= float(run.values["learning_rate"] or 0) <= 1e-2 for run in whole)


def test_another_search_seed_draws_other_values(tmp_path: Path) -> None:
    rates = []
    for seed in ("0", "1"):
        folder = tmp_path / seed
        folder.mkdir()
        chosen = plan("learning_rate=1e-4..1e-2", f"search_seed={seed}")
        rates.append(do(open_record(chosen, folder), "completed")[0].values)
    assert rates[0] != rates[1]


def test_a_tpe_search_goes_where_the_scores_are(tmp_path: Path) -> None:
    record = open_record(plan("learning_rate=1e-5..1e-1", "search=tpe", "trials=40"), tmp_path)
    rates = []
    while (one := record.next()) is not None:
        rate = float(one.run.values["learning_rate"] or 0)
        record.finish(one, Attempt("completed", 1.0), rate)  # the larger the better
        rates.append(rate)
    assert len(rates) == 40
    assert sum(rates[20:]) > 2 * sum(rates[:10])


def test_without_optuna_a_sweep_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingPackageError, match=r"pip install 'evert\[sweep\]'"):
        Record(GRID, tmp_path)
