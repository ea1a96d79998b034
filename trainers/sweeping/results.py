"""Results of a sweep: objectives, ranking and table.

To avoid picking a lucky run, values are ranked by the lower bound of the confidence interval for
their mean over seeds. The intervals require several seeds. They all hold at once with 95%
confidence.
"""

import math
import textwrap
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from evert.bridge.errors import EvertError
from evert.trainers.episodes.scores import interval
from evert.trainers.reporting.figures.formatting import show
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.sweeping.study import HELD_OUT, SEED, SweepRun


class ObjectiveError(EvertError, ValueError):
    """A finished run has no value for the objective."""


@dataclass(frozen=True)
class Configuration:
    """Values of the searched settings (except the seed), with the results of their runs."""

    values: dict[str, Any]
    mean: float
    """Mean of the objective."""
    low: float | None
    high: float | None
    """Bounds of the mean's confidence interval; None if no configuration has several seeds."""
    runs: tuple[int, ...]
    """Numbers of the runs with these values, one per seed."""


def objective_of(folder: RunFolder, objective: str) -> float:
    """Return the value of the objective (see ``SweepSettings``) for a finished run."""
    metrics: dict[str, Any] = {key: value for row in folder.steps() for key, value in row.items()}
    after = folder.after or {}
    metrics |= {key: after[way]["reward"] for key, way in HELD_OUT.items() if way in after}
    value = metrics.get(objective)
    if isinstance(value, int | float) and math.isfinite(value):
        return float(value)
    names = textwrap.shorten(", ".join(metrics), 300, placeholder=" ...") or "nothing"
    raise ObjectiveError(
        f"the run's {objective!r} is {value}, not a finite number; available: {names}"
    )


def rank(runs: Sequence[SweepRun]) -> list[Configuration]:
    """Return all configurations with a completed run, from best to worst."""
    by_values: dict[Any, dict[Any, SweepRun]] = defaultdict(dict)
    for run in runs:
        if run.objective is not None:  # a repeated seed counts once
            values = tuple((key, value) for key, value in run.values.items() if key != SEED)
            by_values[values][run.values.get(SEED)] = run
    choices = []
    samples = {v: [[r.objective or 0.0] for r in same.values()] for v, same in by_values.items()}
    for values, sample in samples.items():
        rivals = [rival for rival in samples.values() if rival is not sample]
        low, high = interval(sample, other_samples=rivals) or (None, None)
        numbers = tuple(run.number for run in by_values[values].values())
        choices.append(
            Configuration(dict(values), fmean(score for [score] in sample), low, high, numbers)
        )
    return sorted(choices, key=lambda c: (-(c.mean if c.low is None else c.low), -c.mean))


def as_rows(runs: Sequence[SweepRun], ranked: Sequence[Configuration]) -> list[dict[str, Any]]:
    """Return one row per run: the best values first, runs without an objective last."""
    place = {number: n for n, choice in enumerate(ranked) for number in choice.runs}
    rows = []
    for run in sorted(runs, key=lambda run: (place.get(run.number, len(place)), run.number)):
        row = {"run": run.number, **run.values, "objective": run.objective}
        if ranked and ranked[0].low is not None:
            choice = ranked[place[run.number]] if run.number in place else None
            row |= {name: getattr(choice, name, None) for name in ("mean", "low", "high")}
        row |= {"status": run.attempts[-1]["status"], "attempts": len(run.attempts)}
        row["history"] = " > ".join(attempt["status"] for attempt in run.attempts)
        row["seconds"] = round(sum(attempt["seconds"] for attempt in run.attempts), 1)
        rows.append({**row, "error": run.attempts[-1]["error"]})
    return rows


def praise(ranked: Sequence[Configuration]) -> str:
    """Describe the result of the best configuration, and how certain it is."""
    best = ranked[0]
    if best.low is None or best.high is None:
        return f"best: {show(best.mean)}, but with one seed it may be luck (try seed=0,1,2)"
    close = sum(best.low <= (choice.high or 0.0) for choice in ranked[1:])
    seeds = f"{show(best.mean)} ({show(best.low)} to {show(best.high)}) over {len(best.runs)} seeds"
    return (
        f"best: {seeds} (ranked by the lower bound of the interval); {close} of the other "
        f"{len(ranked) - 1} may be just as good"
    )
