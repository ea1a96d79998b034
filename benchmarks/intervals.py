"""How often the 95 % intervals of ``evert evaluate`` contain the true share of successes.

Each draw simulates tasks and their episodes, and computes the interval. The episodes of a task are
independent ("free"), or all have the same result in half of the tasks ("half") or in every task
("alike", as with greedy players).

    python benchmarks/intervals.py [--quick] [--method evert|bootstrap] [--draws 2000]

A cell is the share of draws whose interval contains the truth, and the mean width of the intervals.
The benchmark fails if evert's intervals contain it in fewer than 93 % of the draws. For comparison,
``bootstrap`` resamples tasks with SciPy's percentiles: it has no width if all tasks end alike.
"""

import argparse
import random
import sys
import warnings
from collections.abc import Callable, Sequence
from statistics import fmean

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats  # type: ignore[import-untyped]

from evert.trainers.episodes.scores import interval

SHARES = (0.02, 0.1, 0.5, 0.9, 0.98)
TASKS = (5, 10, 40, 200)
PLAYS = {"1": (1, 0.0), "4, free": (4, 0.0), "4, half": (4, 0.5), "4, alike": (4, 1.0)}
"""Name of a row -> episodes per task, and the share of tasks whose episodes all end alike."""
LEAST = 0.93

Interval = Callable[[Sequence[Sequence[bool]]], tuple[float, float]]


def bootstrap(by_task: Sequence[Sequence[bool]]) -> tuple[float, float]:
    """Return SciPy's percentile bootstrap interval over tasks."""
    means = np.array([fmean(task) for task in by_task])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy warns if all are equal
        found = stats.bootstrap((means,), np.mean, n_resamples=999, method="percentile", rng=0)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


METHODS: dict[str, Interval] = {"evert": interval, "bootstrap": bootstrap}


def task(share: float, episodes: int, alike: float, rng: random.Random) -> list[bool]:
    """Simulate the successes of a task's episodes."""
    if rng.random() < alike:
        return [rng.random() < share] * episodes
    return [rng.random() < share for _ in range(episodes)]


def cover(
    method: Interval, share: float, tasks: int, play: tuple[int, float], draws: int
) -> tuple[float, float]:
    """Return the share of draws whose interval contains the truth, and the mean width."""
    rng = random.Random(f"{share}/{tasks}/{play}")
    found = [method([task(share, *play, rng) for _ in range(tasks)]) for _ in range(draws)]
    held = fmean(low <= share <= high for low, high in found)
    return held, fmean(high - low for low, high in found)


def main() -> int:
    """Measure and print the table; return 1 if evert's intervals are too often wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer draws and tasks")
    parser.add_argument("--method", choices=METHODS, default="evert")
    parser.add_argument("--draws", type=int, default=2000)
    options = parser.parse_args()
    draws, sizes = (300, TASKS[:2]) if options.quick else (options.draws, TASKS)
    table = Table(title=f"{options.method}: held, width; {draws} draws")
    for name in ("tasks", "episodes", *map(str, SHARES)):
        table.add_column(name, justify="right")
    worst = 1.0
    for tasks in sizes:
        for name, play in PLAYS.items():
            cells = [cover(METHODS[options.method], s, tasks, play, draws) for s in SHARES]
            worst = min(worst, *(held for held, _ in cells))
            shown = [f"{held:.1%} {width:.2f}" for held, width in cells]
            table.add_row(str(tasks), name, *shown, end_section=name == "4, alike")
    Console(width=100).print(table)
    print(f"worst: {worst:.1%}")
    return int(options.method == "evert" and worst < LEAST)


if __name__ == "__main__":
    sys.exit(main())
