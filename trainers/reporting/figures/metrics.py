"""Computes curves and times from a run's per-step metrics.

A row contains the Cookbook's metrics for a step. Rows are read from ``metrics.jsonl`` by
``rundir/metrics.py``. ``read_curve`` returns the curve of any metric, and ``curves`` returns the
curves of the training reward and the held-out reward. ``clock`` returns the time at each step, and
``time_spent`` returns the total time spent on sampling, training and so on.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evert.trainers.rundir.metrics import HELD_OUT_REWARD, TRAIN_REWARD

TRAIN, HELD_OUT = "env/all/", "test/env/all/"
"""Prefixes of the Cookbook's episode metrics, for training and held-out tasks."""
TIME_PARTS = {
    "sampling": "time/sampling",
    "training": "time/train_step",
    "held-out scores": "time/run_evaluations_parallel",
}
"""The Cookbook's metric for each part of a step. All other time is called "the rest"."""
MOST_POINTS = 200
"""Maximum number of points in a line. Beyond that, neighbouring points are averaged."""


@dataclass
class Curve:
    """Scores in chronological order. All lists have the same length."""

    steps: list[int] = field(default_factory=list)
    """Steps, counted from 1. Held-out scores are measured after a step; 0 means before training."""
    seconds: list[float] = field(default_factory=list)
    """Training time so far."""
    scores: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    """Half the width of each score's 95% interval (NaN if unknown). Empty if not computed."""


def curves(rows: Sequence[Mapping[str, Any]], after: float | None = None) -> tuple[Curve, Curve]:
    """Return the curves of training and held-out reward. ``after`` is the final held-out reward."""
    train = read_curve(rows, TRAIN_REWARD)
    held_out = read_curve(rows, HELD_OUT_REWARD, before_step=True)
    if after is not None and rows:
        held_out.steps.append(rows[-1]["step"] + 1)
        held_out.seconds.append(clock(rows)[-1])
        held_out.scores.append(after)
    return train, held_out


def read_curve(rows: Sequence[Mapping[str, Any]], key: str, *, before_step: bool = False) -> Curve:
    """Return the curve of a metric, skipping rows where it is missing or not finite."""
    offset = 0 if before_step else 1
    times = clock(rows)[offset:]
    values = [(row["step"] + offset, t, row.get(key)) for row, t in zip(rows, times, strict=False)]
    points = [point for point in values if is_number(point[2])]
    return Curve(*map(list, zip(*points, strict=True)))


def is_number(value: object) -> bool:
    """Return whether a value is a finite number, so that it can be plotted."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # integer too large for a float
        return False


def clock(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return how many seconds of training preceded each step, followed by the total."""
    times = [0.0]
    for row in rows:
        times.append(times[-1] + row.get("time/total", 0.0))
    return times


def time_spent(rows: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """Return the seconds spent on each part, or None if sampling or training was not recorded."""
    parts = {name: sum(row.get(key, 0.0) for row in rows) for name, key in TIME_PARTS.items()}
    if not (parts["sampling"] and parts["training"]):
        return None
    return {**parts, "the rest": max(0.0, clock(rows)[-1] - sum(parts.values()))}


def thinned(values: Sequence[float], limit: int = MOST_POINTS) -> list[float]:
    """Reduce to at most ``limit`` values by averaging neighbours."""
    size = -(-len(values) // limit)
    chunks = [values[start : start + size] for start in range(0, len(values), max(1, size))]
    return [sum(chunk) / len(chunk) for chunk in chunks]
