"""What a sweep comes to: the objective of a run, the best values, and the files and tables.

Where ``seed`` is one of the settings searched, runs that differ in nothing else are repetitions:
the best values are those with the best mean.
"""

import csv
import io
import math
import shlex
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from evert.bridge.errors import EvertError
from evert.trainers.runs import folder as run_folder
from evert.trainers.runs.folder import RunFolder
from evert.trainers.sweeping.folder import PLOT, RESULTS_CSV, RESULTS_JSON, SweepFolder
from evert.trainers.sweeping.record import Run
from evert.trainers.sweeping.space import HELD_OUT, Choices, Plan, Value, show

SEED = "seed"


class ObjectiveError(EvertError, ValueError):
    """A finished run has no such objective."""


@dataclass(frozen=True)
class Best:
    """The values that did best."""

    values: dict[str, Value]
    """Without the seed."""
    objective: float
    """The mean, where there are several seeds."""
    runs: tuple[int, ...]
    """Numbers of the runs with these values."""


def objective_of(folder: RunFolder, objective: str) -> float:
    """What a finished run reached.

    Args:
        folder: Of the run.
        objective: As in ``space.OWN``.

    Raises:
        ObjectiveError: It is not there, or is no finite number.
    """
    if objective in HELD_OUT:
        result = folder.read_json(run_folder.RESULT) or {}
        after = (result.get("held_out") or {}).get("after") or {}
        found = after.get(HELD_OUT[objective], {}).get("reward")
        names = list(HELD_OUT)
    else:
        last: dict[str, Any] = {}
        for row in folder.steps():
            last.update(row)
        found, names = last.get(objective), list(last)
    if isinstance(found, int | float) and math.isfinite(found):
        return float(found)
    if found is None:
        raise ObjectiveError(f"the run has no {objective!r}; it has {', '.join(names) or 'none'}")
    raise ObjectiveError(f"{objective} is {found}, which is no finite number")


def ranked(runs: Sequence[Run]) -> list[Run]:
    """The best first; runs without an objective last, in order of their number."""
    return sorted(
        runs, key=lambda run: (run.objective is None, -(run.objective or 0.0), run.number)
    )


def best_of(runs: Sequence[Run]) -> Best | None:
    """The best values; None if no run has completed."""
    return next(iter(means(runs)), None)


def means(runs: Sequence[Run]) -> list[Best]:
    """Each choice of values with its mean over seeds, the best first.

    Choices with the most seeds come before those of which some have not completed.
    """
    alike: dict[tuple[tuple[str, Value], ...], list[Run]] = {}
    for run in runs:
        if run.objective is not None:
            values = tuple((key, value) for key, value in run.values.items() if key != SEED)
            alike.setdefault(values, []).append(run)
    found = [
        Best(
            dict(values),
            statistics.fmean(run.objective for run in same if run.objective is not None),
            tuple(run.number for run in same),
        )
        for values, same in alike.items()
    ]
    return sorted(found, key=lambda best: (-len(best.runs), -best.objective))


def best_command(plan: Plan, best: Best, program: Sequence[str]) -> str:
    """The command line that trains with the best values, to paste into a shell."""
    return shlex.join([*program, *plan.arguments(best.values)])


def write_results(folder: SweepFolder, runs: Sequence[Run], program: Sequence[str]) -> None:
    """Write the tables and, where two runs have completed, the figure."""
    best = best_of(runs)
    command = None if best is None else best_command(folder.plan, best, program)
    content = {
        "search": folder.plan.search,
        "objective": folder.plan.objective,
        "planned": folder.plan.trials,
        "best": None if best is None else {**asdict(best), "command": command},
        "runs": [
            {**_row(folder, run), "attempts": [asdict(attempt) for attempt in run.attempts]}
            for run in ranked(runs)
        ],
    }
    folder.write_json(RESULTS_JSON, content)
    folder.write(RESULTS_CSV, _csv([_row(folder, run) for run in ranked(runs)]))
    if sum(run.objective is not None for run in runs) > 1:
        _draw(folder, runs)


def _draw(folder: SweepFolder, runs: Sequence[Run]) -> None:
    from evert.trainers.reporting.figures.style import save
    from evert.trainers.reporting.figures.sweep import Scale, draw_sweep

    plan = folder.plan
    scales = [
        Scale(axis.key, axis.values)
        if isinstance(axis, Choices)
        else Scale(axis.key, low=axis.low, high=axis.high, log=axis.log)
        for axis in plan.axes
    ]
    done = [(run.values, run.objective) for run in runs if run.objective is not None]
    title = f"{plan.name}: {plan.search} search"
    save(draw_sweep(title, scales, done, plan.objective), folder.path / PLOT)


def _row(folder: SweepFolder, run: Run) -> dict[str, Any]:
    return {
        "run": run.number,
        **run.values,
        "objective": run.objective,
        "status": run.status,
        "attempts": len(run.attempts),
        "history": " > ".join(attempt.status for attempt in run.attempts),
        "seconds": round(run.seconds, 1),
        "folder": str(folder.run_path(run).relative_to(folder.path)),
        "error": run.attempts[-1].error,
    }


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else ["run"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def show_results(
    console: Console, folder: SweepFolder, runs: Sequence[Run], program: Sequence[str]
) -> None:
    """Show every run, the best first, and how to train with the best values."""
    keys = [axis.key for axis in folder.plan.axes]
    title = f"{folder.plan.name}: {folder.plan.objective}, {folder.plan.search} search"
    console.print(title, soft_wrap=True, markup=False)
    table = Table()
    for name in ("run", *keys, "objective", "attempts", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("status")
    for run in ranked(runs):
        history = " > ".join(attempt.status for attempt in run.attempts)
        score = "" if run.objective is None else show(run.objective)
        values = [show(run.values[key]) for key in keys]
        tried = (str(len(run.attempts)), f"{run.seconds:.0f}", history)
        table.add_row(str(run.number), *values, score, *tried)
    console.print(table)
    if SEED in keys:
        _show_means(console, means(runs), [key for key in keys if key != SEED])
    _show_best(console, folder, runs, program)


def _show_means(console: Console, found: Sequence[Best], keys: Sequence[str]) -> None:
    table = Table()
    for name in (*keys, "mean", "seeds"):
        table.add_column(name, justify="right")
    for best in found:
        shown = [show(best.values[key]) for key in keys]
        table.add_row(*shown, show(best.objective), str(len(best.runs)))
    console.print(table)


def _show_best(
    console: Console, folder: SweepFolder, runs: Sequence[Run], program: Sequence[str]
) -> None:
    for run in runs:
        if run.status == "failed":
            error = run.attempts[-1].error.splitlines()[-1:]
            _say(console, f"run {run.number} failed: {' '.join(error)}; all it said is in "
                 f"{folder.output_path(run)}")  # fmt: skip
    _say(console, f"results: {folder.path / RESULTS_CSV}")
    if (folder.path / PLOT).is_file():
        _say(console, f"plot: {folder.path / PLOT}")
    best = best_of(runs)
    if best is not None:
        mean = f" (mean of {len(best.runs)} seeds)" if len(best.runs) > 1 else ""
        _say(console, f"best: {show(best.objective)}{mean}. To train with it:")
        _say(console, f"  {best_command(folder.plan, best, program)}")


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, markup=False)
