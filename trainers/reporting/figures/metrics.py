"""A run's metrics by step: ``read_curve`` reads one metric from rows, ``curves`` the two rewards.

A row has the Cookbook's metrics of a step. ``clock`` returns the time at each step, ``time_spent``
the time by part. ``rundir/metrics.py`` makes the rows from ``metrics.jsonl``.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evert.trainers.rundir.metrics import HELD_OUT_REWARD, TRAIN_REWARD

TRAIN, HELD_OUT = "env/all/", "test/env/all/"
"""Prefixes of the Cookbook's metrics of episodes, in training and held out."""
TIME_PARTS = {
    "sampling": "time/sampling",
    "training": "time/train_step",
    "held-out scores": "time/run_evaluations_parallel",
}
"""Part of a step's time -> the Cookbook's metric; the remaining time is "the rest"."""
MOST_POINTS = 200
"""Maximum points of a line; neighbours are averaged, since they share pixels."""


@dataclass
class Curve:
    """Scores in order of time; all lists have equal length."""

    steps: list[int] = field(default_factory=list)
    """Counted from 1; held-out scores are measured after their step, or at 0 before training."""
    seconds: list[float] = field(default_factory=list)
    """Training time so far."""
    scores: list[float] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    """Half the 95 % interval of each score, NaN if unknown; empty if there are no intervals."""


def curves(rows: Sequence[Mapping[str, Any]], after: float | None = None) -> tuple[Curve, Curve]:
    """Return training and held-out reward; ``after`` is the held-out reward of final weights."""
    train = read_curve(rows, TRAIN_REWARD)
    held_out = read_curve(rows, HELD_OUT_REWARD, before_step=True)
    if after is not None and rows:
        held_out.steps.append(rows[-1]["step"] + 1)
        held_out.seconds.append(clock(rows)[-1])
        held_out.scores.append(after)
    return train, held_out


def read_curve(rows: Sequence[Mapping[str, Any]], key: str, *, before_step: bool = False) -> Curve:
    """Return a metric's curve, without rows in which the metric is missing or not finite."""
    offset = 0 if before_step else 1
    times = clock(rows)[offset:]
    values = [(row["step"] + offset, t, row.get(key)) for row, t in zip(rows, times, strict=False)]
    points = [point for point in values if is_number(point[2])]
    return Curve(*map(list, zip(*points, strict=True)))


def is_number(value: object) -> bool:
    """Return whether a value is a finite number, and so can be drawn."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # an integer too large for a float
        return False


def clock(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the seconds of training before each step, and at the end; one value more than rows."""
    times = [0.0]
    for row in rows:
        times.append(times[-1] + row.get("time/total", 0.0))
    return times


def time_spent(rows: Sequence[Mapping[str, float]]) -> dict[str, float] | None:
    """Return seconds by part, with "the rest"; None if sampling or training is not recorded."""
    parts = {name: sum(row.get(key, 0.0) for row in rows) for name, key in TIME_PARTS.items()}
    if not (parts["sampling"] and parts["training"]):
        return None
    return {**parts, "the rest": max(0.0, clock(rows)[-1] - sum(parts.values()))}


def thinned(values: Sequence[float], limit: int = MOST_POINTS) -> list[float]:
    """Return at most ``limit`` values, each the mean of neighbours."""
    size = -(-len(values) // limit)
    chunks = [values[start : start + size] for start in range(0, len(values), max(1, size))]
    return [sum(chunk) / len(chunk) for chunk in chunks]
