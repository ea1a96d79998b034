"""What a sweep comes to: objective, ranking, tables, figure.

1. The objective is a score of the result or a metric's last value; one that is missing is named.
2. The best run comes first; with several seeds the best mean does.
3. The figure's scales put values where they belong.
"""

import csv
import io
import json
import shlex
from pathlib import Path

import pytest
from rich.console import Console

from evert.trainers.runs.folder import METRICS, RESULT, RunFolder
from evert.trainers.sweeping.folder import SweepFolder
from evert.trainers.sweeping.record import Attempt, Run
from evert.trainers.sweeping.results import (
    ObjectiveError,
    best_command,
    best_of,
    means,
    objective_of,
    ranked,
    show_results,
    write_results,
)
from evert.trainers.sweeping.space import Value, read_plan
from evert.trainers.train import parse

PLAN = read_plan(["env=identity", "steps=3", "learning_rate=1e-4,1e-3", "loss_fn=ppo,cispo"])
COMPLETED, FAILED = Attempt("completed", 2.0), Attempt("failed", 1.0, "first\nerror: no luck")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:pyparsing"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:matplotlib"),
]


def run(number: int, objective: float | None, attempts: list[Attempt], **values: Value) -> Run:
    """A run that was tried."""
    searched: dict[str, Value] = {"learning_rate": 1e-3, "loss_fn": "ppo", **values}
    return Run(number, searched, objective, attempts)


RUNS = [
    run(0, 0.25, [COMPLETED]),
    run(1, None, [FAILED], learning_rate=1e-4),
    run(2, 0.75, [FAILED, COMPLETED], loss_fn="cispo"),
]


@pytest.fixture
def finished(tmp_path: Path) -> RunFolder:
    """A run folder with a result and two steps."""
    scores = {"greedy": {"reward": 0.5}, "temperature_1": {"reward": 0.25}}
    (tmp_path / RESULT).write_text(json.dumps({"held_out": {"after": scores}}))
    rows = [
        {"step": 0, "progress": 0.5, "a": 1.0, "eval": 3.0},
        {"step": 1, "progress": 1.0, "a": 2, "odd": float("nan")},
    ]
    (tmp_path / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunFolder(tmp_path, resumed=True)


@pytest.mark.parametrize(
    ("objective", "value"), [("held_out", 0.25), ("held_out_greedy", 0.5), ("a", 2), ("eval", 3)]
)
def test_the_objective_is_a_held_out_score_or_a_last_metric(
    finished: RunFolder, objective: str, value: float
) -> None:
    assert objective_of(finished, objective) == value


def test_an_objective_that_is_not_there_is_named_beside_those_that_are(
    finished: RunFolder, tmp_path: Path
) -> None:
    with pytest.raises(ObjectiveError, match="no 'reward'; it has step, progress, a, eval, odd"):
        objective_of(finished, "reward")
    with pytest.raises(ObjectiveError, match="odd is nan"):
        objective_of(finished, "odd")
    (tmp_path / RESULT).unlink()
    with pytest.raises(ObjectiveError, match="no 'held_out'"):
        objective_of(finished, "held_out")


def test_the_best_run_comes_first_and_those_without_a_score_last() -> None:
    assert [one.number for one in ranked(RUNS)] == [2, 0, 1]


def test_the_best_command_trains_with_the_best_values() -> None:
    best = best_of(RUNS)
    assert best is not None
    command = shlex.split(best_command(PLAN, best, ("evert", "train")))
    assert command[:2] == ["evert", "train"]
    chosen = parse(command[2:])
    assert (chosen.learning_rate, chosen.loss_fn, chosen.steps) == (1e-3, "cispo", 3)


def test_there_is_no_best_where_nothing_has_completed() -> None:
    assert best_of(RUNS[1:2]) is None


def test_with_several_seeds_the_best_mean_wins_over_the_luckiest_run() -> None:
    scores = {(1e-4, 0): 0.9, (1e-4, 1): 0.1, (1e-3, 0): 0.6, (1e-3, 1): 0.7}
    seeded = [
        Run(number, {"learning_rate": rate, "seed": seed}, score, [COMPLETED])
        for number, ((rate, seed), score) in enumerate(scores.items())
    ]
    seeded.append(Run(4, {"learning_rate": 1e-2, "seed": 0}, 0.95, [COMPLETED]))
    best, *others = means(seeded)
    assert best.values == {"learning_rate": 1e-3}
    assert best.objective == pytest.approx(0.65)
    assert best.runs == (2, 3)
    assert [other.values["learning_rate"] for other in others] == [1e-4, 1e-2]


def test_the_tables_have_a_row_a_run_with_its_history(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path, PLAN, resumed=False)
    write_results(folder, RUNS, ("evert", "train"))
    rows = list(csv.DictReader(io.StringIO((tmp_path / "results.csv").read_text())))
    assert [row["run"] for row in rows] == ["2", "0", "1"]
    assert [row["history"] for row in rows] == ["failed > completed", "completed", "failed"]
    assert [row["attempts"] for row in rows] == ["2", "1", "1"]
    assert rows[0]["seconds"] == "3.0"
    assert rows[2]["error"] == "first\nerror: no luck"
    content = json.loads((tmp_path / "results.json").read_text())
    assert content["best"]["runs"] == [2]
    assert content["best"]["command"].startswith("evert train env=identity")
    assert content["runs"][0]["attempts"][0]["status"] == "failed"
    assert (tmp_path / "parallel_coordinates.png").exists()


def test_one_run_makes_no_figure(tmp_path: Path) -> None:
    write_results(SweepFolder(tmp_path, PLAN, resumed=False), RUNS[:2], ("evert", "train"))
    assert not (tmp_path / "parallel_coordinates.png").exists()


def test_the_screen_shows_every_run_the_error_and_the_best(tmp_path: Path) -> None:
    written = io.StringIO()
    folder = SweepFolder(tmp_path, PLAN, resumed=False)
    show_results(Console(file=written, width=200), folder, RUNS, ("evert", "train"))
    shown = written.getvalue()
    assert "failed > completed" in shown
    assert "run 1 failed: error: no luck; all it said is in" in shown
    assert "best: 0.75. To train with it:\n  evert train env=identity steps=3 " in shown


def test_a_folder_of_a_run_is_named_by_its_number_and_values(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path, PLAN, resumed=False)
    assert folder.run_path(RUNS[2]).name == "002-learning_rate-0.001-loss_fn-cispo"
    assert len(folder.run_path(run(3, None, [], loss_fn="x" * 300)).name) <= 80
