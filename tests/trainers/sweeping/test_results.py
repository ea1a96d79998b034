"""Runs of a sweep: their processes, their objectives, and which values are best."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.kit import Patch

from evert.trainers.rundir.folder import RunFolder
from evert.trainers.sweeping import process
from evert.trainers.sweeping.process import SPARE, ending, room_for
from evert.trainers.sweeping.results import ObjectiveError, as_rows, objective_of, praise, rank
from evert.trainers.sweeping.study import SweepRun
from evert.trainers.system.command import INTERRUPTED
from evert.trainers.system.files import METRICS, RESULT, RUN
from evert.trainers.system.machine import free_memory


def of_mine(runs: float) -> int:
    """Return the bytes that this many runs need if each is like this process and its children."""
    mine = psutil.Process()
    family = (mine, *mine.children(recursive=True))
    return int(runs * SPARE * sum(process.memory_of(each) for each in family))


def room(path: Path, steps: int = 1, **engine: Any) -> int:
    """Return how many runs fit if this process is one of them and has done this many steps."""
    (path / RUN).write_text(json.dumps({"engine": {"device": "cpu", "threads": 1, **engine}}))
    if steps:
        record = {"name": "x", "state_path": "tinker://x", "batch": steps}
        (path / "checkpoints.jsonl").write_text(json.dumps(record) + "\n")
    return room_for(RunFolder(path), os.getpid())


@pytest.mark.parametrize(
    ("engine", "beside", "fit"),
    [
        ({}, 100, 8), ({"threads": 3}, 100, 2), ({"threads": 16}, 100, 1),
        ({"device": "cuda:0"}, 100, 1), ({"steps": 0}, 100, 0), ({}, 3.5, 4), ({}, 0.5, 1),
    ],
)  # fmt: skip
def test_the_number_of_parallel_runs_is_limited_by_cores_and_memory(
    tmp_path: Path, monkeypatch: Patch, engine: Any, beside: float, fit: int
) -> None:
    monkeypatch.setattr(process, "cores", lambda: 8)
    monkeypatch.setattr(process, "free_memory", lambda: of_mine(beside))
    assert room(tmp_path, **engine) == fit
    over = room_for(RunFolder(tmp_path), 2**22 + 1)  # a process that has exited
    assert over >= fit  # needs no memory
    assert 0 < free_memory() <= psutil.virtual_memory().total


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
def test_a_runs_exit_code_and_last_lines_determine_its_status(
    tmp_path: Path, code: int, printed: str, stopped: bool, status: str, error: str
) -> None:
    (tmp_path / "output").write_text(printed)
    assert ending(code, tmp_path / "output", stopped=stopped) == (status, error)


COMPLETED = {"status": "completed", "seconds": 2.0, "error": ""}
FAILED = {"status": "failed", "seconds": 1.0, "error": "first\nerror: no luck"}


def run(number: int, objective: float | None, *attempts: dict[str, Any], **values: Any) -> SweepRun:
    """Return a run with its attempts."""
    return SweepRun(number, values, list(attempts or [COMPLETED]), objective)


def runs(*scores: tuple[str, int, float]) -> list[SweepRun]:
    """Return completed runs with these losses, seeds and objectives."""
    return [run(n, score, loss_fn=loss, seed=seed) for n, (loss, seed, score) in enumerate(scores)]


@pytest.fixture
def finished(tmp_path: Path) -> RunFolder:
    """Create a run folder with a result and two steps."""
    scores = {"greedy": {"reward": 0.5}, "temperature_1": {"reward": 0.25}}
    (tmp_path / RESULT).write_text(json.dumps({"held_out": {"after": scores}}))
    rows = [
        {"step": 0, "progress/done_frac": 0.5, "a": 1.0, "eval": 3.0},
        {"step": 1, "progress/done_frac": 0.5, "a": 2, "odd": float("nan")},
    ]
    (tmp_path / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunFolder(tmp_path)


def test_the_objective_is_a_held_out_score_or_a_last_metric(finished: RunFolder) -> None:
    for objective, value in {"held_out": 0.25, "held_out_greedy": 0.5, "a": 2, "eval": 3}.items():
        assert objective_of(finished, objective) == value


def test_an_error_for_a_missing_objective_lists_the_available_ones(
    finished: RunFolder, tmp_path: Path
) -> None:
    nothing = RunFolder(tmp_path / "nothing")
    for run, objective, message in (
        (
            finished,
            "reward",
            "'reward' is None, not a finite number; .*a, eval, odd, held_out",
        ),
        (finished, "odd", "'odd' is nan, not a finite number"),
        (nothing, "held_out", "'held_out' is None, not a finite number; available: nothing"),
    ):
        with pytest.raises(ObjectiveError, match=message):
            objective_of(run, objective)


def test_values_do_not_rank_higher_for_being_drawn_more_often() -> None:
    drawn = runs(
        ("ppo", 0, 0.10), ("ppo", 0, 0.10), ("ppo", 1, 0.12), ("cispo", 0, 0.95), ("cispo", 2, 0.97)
    )  # fmt: skip
    best, other = rank(drawn)
    assert best.values == {"loss_fn": "cispo"}
    assert best.mean == pytest.approx(0.96)
    assert best.runs == (3, 4)
    assert other.mean == pytest.approx(0.11)  # the seed drawn twice counts only once
    assert other.runs == (1, 2)


def test_one_lucky_run_does_not_beat_a_mean_over_seeds() -> None:
    drawn = runs(
        ("ppo", 0, 0.9), ("ppo", 1, 0.1), ("cispo", 0, 0.6), ("cispo", 1, 0.7), ("dro", 0, 0.75)
    )  # fmt: skip
    assert [choice.values["loss_fn"] for choice in rank(drawn)] == ["cispo", "ppo", "dro"]


def test_more_seeds_with_an_equal_mean_rank_higher_with_a_narrower_interval() -> None:
    scores = [("ppo", seed, 0.5 + 0.1 * (-1) ** seed) for seed in range(4)]
    best, other = rank(runs(("cispo", 0, 0.6), ("cispo", 1, 0.4), *scores))
    assert (best.values["loss_fn"], len(best.runs)) == ("ppo", 4)
    assert best.mean == pytest.approx(other.mean)
    widths = [(choice.high or 0) - (choice.low or 0) for choice in (best, other)]
    assert widths[1] == pytest.approx(widths[0] * 2**0.5)


def test_the_interval_comes_from_an_analysis_of_variance() -> None:
    best, other = rank(runs(("a", 0, 1.0), ("a", 1, 3.0), ("b", 0, 0.0), ("b", 1, 4.0)))
    # Pooled variance (2 + 8) / 2 = 5 with 2 degrees of freedom; t at 1 - 0.05 / 2 / 2 is 6.2053.
    half = 6.205347 * (5 / 2) ** 0.5
    assert best.low == pytest.approx(2 - half)
    assert best.high == pytest.approx(2 + half)
    assert (other.low, other.high) == (best.low, best.high)


def test_without_repeated_seeds_the_best_mean_is_first_and_has_no_interval() -> None:
    best, other = rank([run(0, 0.25, rate=1e-3), run(1, None, FAILED), run(2, 0.75, rate=1e-4)])
    assert (best.values, best.low, best.high) == ({"rate": 1e-4}, None, None)
    assert other.mean == 0.25
    (best,) = rank(runs(("ppo", 0, 0.0), ("ppo", 1, 0.0)))  # equal scores leave no uncertainty
    assert (best.mean, best.low, best.high) == (0.0, 0.0, 0.0)
    assert rank([run(0, None, FAILED)]) == []


def test_the_best_values_are_shown_with_how_they_were_selected() -> None:
    ranked = rank(runs(("a", 0, 0.5), ("a", 1, 0.6), ("b", 0, 0.5), ("b", 1, 0.4), ("c", 0, -9.0)))
    assert praise(ranked) == (
        "best: 0.55 (0.1676 to 0.9324) over 2 seeds (ranked by the lower bound of the interval); "
        "1 of the other 2 may be just as good"
    )
    assert "but with one seed it may be luck" in praise(rank([run(0, 0.5)]))


def test_a_row_has_the_status_of_its_run_and_the_mean_of_its_values() -> None:
    tried = [
        run(0, 0.25, loss_fn="ppo", seed=0),
        run(1, None, FAILED, loss_fn="ppo", seed=1),
        run(2, 0.75, FAILED, COMPLETED, loss_fn="cispo", seed=0),
        run(3, 0.5, loss_fn="cispo", seed=1),
    ]
    rows = as_rows(tried, rank(tried))
    assert [row["run"] for row in rows] == [2, 3, 0, 1]
    assert [row["mean"] for row in rows] == [0.625, 0.625, 0.25, None]
    assert rows[0]["low"] < 0.625 < rows[0]["high"]
    assert [row["history"] for row in rows[::2]] == ["failed > completed", "completed"]
    assert (rows[0]["attempts"], rows[0]["seconds"], rows[0]["error"]) == (2, 3.0, "")
    assert (rows[3]["status"], rows[3]["error"]) == ("failed", "first\nerror: no luck")
    assert rows[3]["objective"] is rows[3]["low"] is None
    alone = [run(0, 0.25, loss_fn="ppo")]
    assert not {"mean", "low", "high"} & set(as_rows(alone, rank(alone))[0])
