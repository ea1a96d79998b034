"""What a sweep comes to: the objective of a run, and which values are best.

The best values are those whose interval over seeds has the highest lower end: neither the luckiest
run nor the values that were drawn most often.
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from evert.trainers.rundir.folder import RunFolder
from evert.trainers.sweeping.results import (
    ObjectiveError,
    as_rows,
    objective_of,
    praise,
    rank,
)
from evert.trainers.sweeping.study import Run
from evert.trainers.system.files import METRICS, RESULT

COMPLETED = {"status": "completed", "seconds": 2.0, "error": ""}
FAILED = {"status": "failed", "seconds": 1.0, "error": "first\nerror: no luck"}


def run(number: int, objective: float | None, *attempts: dict[str, Any], **values: Any) -> Run:
    """A run that was tried."""
    return Run(number, values, list(attempts or [COMPLETED]), objective)


def runs(*scores: tuple[str, int, float]) -> list[Run]:
    """Completed runs: the loss, the seed and the objective of each."""
    return [run(n, score, loss_fn=loss, seed=seed) for n, (loss, seed, score) in enumerate(scores)]


# -- the objective -------------------------------------------------------------------------------


@pytest.fixture
def finished(tmp_path: Path) -> RunFolder:
    """A run folder with a result and two steps."""
    scores = {"greedy": {"reward": 0.5}, "temperature_1": {"reward": 0.25}}
    (tmp_path / RESULT).write_text(json.dumps({"held_out": {"after": scores}}))
    rows = [
        {"step": 0, "progress/done_frac": 0.5, "a": 1.0, "eval": 3.0},
        {"step": 1, "progress/done_frac": 0.5, "a": 2, "odd": float("nan")},
    ]
    (tmp_path / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunFolder(tmp_path, resumed=True)


def test_the_objective_is_a_held_out_score_or_a_last_metric(finished: RunFolder) -> None:
    for objective, value in {"held_out": 0.25, "held_out_greedy": 0.5, "a": 2, "eval": 3}.items():
        assert objective_of(finished, objective) == value


def test_an_objective_that_is_not_there_is_named_beside_those_that_are(
    finished: RunFolder, tmp_path: Path
) -> None:
    nothing = RunFolder(tmp_path / "nothing", resumed=True)
    for run, objective, message in (
        (finished, "reward", "'reward' is None, no finite number; it has .*a, eval, odd, held_out"),
        (finished, "odd", "'odd' is nan, no finite number"),
        (nothing, "held_out", "'held_out' is None, no finite number; it has nothing"),
    ):
        with pytest.raises(ObjectiveError, match=message):
            objective_of(run, objective)


# -- the best ------------------------------------------------------------------------------------


def test_values_that_were_drawn_most_often_are_not_the_best_for_that() -> None:
    drawn = runs(
        ("ppo", 0, 0.10), ("ppo", 0, 0.10), ("ppo", 1, 0.12), ("cispo", 0, 0.95), ("cispo", 2, 0.97)
    )  # fmt: skip
    best, other = rank(drawn)
    assert best.values == {"loss_fn": "cispo"}
    assert best.mean == pytest.approx(0.96)
    assert best.runs == (3, 4)
    assert other.mean == pytest.approx(0.11)  # the seed that was drawn twice counts once
    assert other.runs == (1, 2)


def test_one_lucky_run_does_not_beat_a_mean_over_seeds() -> None:
    drawn = runs(
        ("ppo", 0, 0.9), ("ppo", 1, 0.1), ("cispo", 0, 0.6), ("cispo", 1, 0.7), ("dro", 0, 0.75)
    )  # fmt: skip
    assert [choice.values["loss_fn"] for choice in rank(drawn)] == ["cispo", "ppo", "dro"]


def test_the_same_mean_over_more_seeds_is_better_and_its_interval_narrower() -> None:
    scores = [("ppo", seed, 0.5 + 0.1 * (-1) ** seed) for seed in range(4)]
    best, other = rank(runs(("cispo", 0, 0.6), ("cispo", 1, 0.4), *scores))
    assert (best.values["loss_fn"], len(best.runs)) == ("ppo", 4)
    assert best.mean == pytest.approx(other.mean)
    widths = [(choice.high or 0) - (choice.low or 0) for choice in (best, other)]
    assert widths[1] == pytest.approx(widths[0] * 2**0.5)


def test_the_interval_is_that_of_an_analysis_of_variance() -> None:
    best, other = rank(runs(("a", 0, 1.0), ("a", 1, 3.0), ("b", 0, 0.0), ("b", 1, 4.0)))
    # Pooled: (2 + 8) / 2 = 5 with two degrees of freedom; t at 1 - 0.05 / 2 / 2 is 6.2053.
    half = 6.205347 * (5 / 2) ** 0.5
    assert best.low == pytest.approx(2 - half)
    assert best.high == pytest.approx(2 + half)
    assert (other.low, other.high) == (best.low, best.high)


def test_the_intervals_hold_all_means_at_once_as_often_as_they_say() -> None:
    draw = random.Random(0)
    held = 0
    for _ in range(400):
        scores = [(str(n), seed, n + draw.gauss(0, 1)) for n in range(8) for seed in range(3)]
        held += all(
            (choice.low or 0) <= float(choice.values["loss_fn"]) <= (choice.high or 0)
            for choice in rank(runs(*scores))
        )
    assert 0.93 <= held / 400 <= 0.99


def test_where_nothing_is_repeated_the_best_mean_is_first_and_has_no_interval() -> None:
    best, other = rank([run(0, 0.25, rate=1e-3), run(1, None, FAILED), run(2, 0.75, rate=1e-4)])
    assert (best.values, best.low, best.high) == ({"rate": 1e-4}, None, None)
    assert other.mean == 0.25


def test_what_leaves_nothing_open_or_has_not_completed_is_ranked_too() -> None:
    (best,) = rank(runs(("ppo", 0, 0.0), ("ppo", 1, 0.0)))
    assert (best.mean, best.low, best.high) == (0.0, 0.0, 0.0)
    assert rank([run(0, None, FAILED)]) == []


# -- what is said --------------------------------------------------------------------------------


def test_the_best_is_said_with_how_it_was_chosen() -> None:
    ranked = rank(runs(("a", 0, 0.5), ("a", 1, 0.6), ("b", 0, 0.5), ("b", 1, 0.4), ("c", 0, -9.0)))
    assert praise(ranked) == (
        "best: 0.55 (0.1676 to 0.9324) over 2 seeds, by its lower end; 1 of 2 others may be as good"
    )
    assert "each tried once, so by luck, too" in praise(rank([run(0, 0.5)]))


def test_a_row_has_the_history_of_its_run_and_the_mean_of_its_values() -> None:
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
