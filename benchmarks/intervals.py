"""Measure the coverage of the 95% intervals in tables and plots, for success rates and means.

Each draw simulates the episodes of some tasks and computes the interval. For success rates, there
are three cases. In "free", the episodes of a task are independent. In "alike", all episodes of a
task have the same result, as in greedy play. In "half", half of the tasks are like "free" and half
are like "alike". For means, the rewards of the tasks are normally or uniformly distributed.

    python benchmarks/intervals.py [--quick] [--method evert|bootstrap|errors] [--draws 2000]

Each cell shows the fraction of draws whose interval contains the true value, and the mean interval
width. The benchmark fails if evert's coverage is below 93% (90% for uniform rewards, because
Student's t interval is exact only for normal rewards). For comparison, ``bootstrap`` is SciPy's
percentile bootstrap over tasks, which has zero width if all tasks have the same result, and
``errors`` is the mean over tasks plus or minus 1.96 standard errors.
"""

import argparse
import random
import sys
import warnings
from collections.abc import Callable, Iterable
from statistics import fmean, stdev

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats  # type: ignore[import-untyped]

from evert.trainers.episodes.scores import ByTask, interval

SHARES = (0.02, 0.1, 0.5, 0.9, 0.98)
TASKS = (5, 10, 40, 200)
PLAYS = {"1": (1, 0.0), "4, free": (4, 0.0), "4, half": (4, 0.5), "4, alike": (4, 1.0)}
"""Row name -> episodes per task, and the fraction of tasks whose episodes all agree."""
FEW = (2, 3, 4, 8, 16, 40)
REWARDS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda rng: rng.gauss(0.5, 0.2),
    "uniform": lambda rng: rng.random(),
}
"""Column name -> function that draws a task's reward; the mean is 0.5."""
LEAST = {"normal": 0.93, "uniform": 0.9}

Interval = Callable[..., tuple[float, float] | None]


def bootstrap(by_task: ByTask, **_: object) -> tuple[float, float]:
    """Return SciPy's percentile bootstrap interval over tasks."""
    means = np.array([fmean(task) for task in by_task])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy warns if all values are equal
        found = stats.bootstrap((means,), np.mean, n_resamples=999, method="percentile", rng=0)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def errors(by_task: ByTask, **_: object) -> tuple[float, float]:
    """Return the mean over tasks plus or minus 1.96 standard errors."""
    means = [fmean(task) for task in by_task]
    half = 1.96 * stdev(means) / len(means) ** 0.5
    return fmean(means) - half, fmean(means) + half


METHODS: dict[str, Interval] = {"evert": interval, "bootstrap": bootstrap, "errors": errors}


def task(share: float, episodes: int, alike: float, rng: random.Random) -> list[bool]:
    """Simulate which of a task's episodes succeed."""
    if rng.random() < alike:
        return [rng.random() < share] * episodes
    return [rng.random() < share for _ in range(episodes)]


def cover(ends: Iterable[tuple[float, float] | None], truth: float) -> tuple[float, str]:
    """Return the intervals' coverage, and a table cell with the coverage and the mean width."""
    known = [each or (-np.inf, np.inf) for each in ends]
    held = fmean(low <= truth <= high for low, high in known)
    return held, f"{held:.1%} {fmean(high - low for low, high in known):.2f}"


def of_share(
    method: Interval, share: float, tasks: int, play: tuple[int, float], draws: int
) -> tuple[float, str]:
    """Measure the coverage for a success rate."""
    rng = random.Random(f"{share}/{tasks}/{play}")
    played = ([task(share, *play, rng) for _ in range(tasks)] for _ in range(draws))
    return cover((method(by_task, is_share=True) for by_task in played), share)


def of_mean(method: Interval, name: str, tasks: int, draws: int) -> tuple[float, str]:
    """Measure the coverage for a mean reward."""
    rng = random.Random(f"{name}/{tasks}")
    played = ([[REWARDS[name](rng)] for _ in range(tasks)] for _ in range(draws))
    return cover(map(method, played), 0.5)


def main() -> int:
    """Print the tables; return 1 if the coverage of evert's intervals is too low."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer draws and task counts")
    parser.add_argument("--method", choices=METHODS, default="evert")
    parser.add_argument("--draws", type=int, default=2000)
    options = parser.parse_args()
    draws, sizes = (300, TASKS[:2]) if options.quick else (options.draws, TASKS)
    method, worst, spare = METHODS[options.method], 1.0, 1.0
    shares, means = (Table(title=f"{of}: coverage, width ({draws})") for of in ("shares", "means"))
    for table, names in ((shares, ("tasks", "episodes", *SHARES)), (means, ("tasks", *REWARDS))):
        for name in names:
            table.add_column(str(name), justify="right")
    for tasks in sizes:
        for name, play in PLAYS.items():
            cells = [of_share(method, share, tasks, play, draws) for share in SHARES]
            worst = min(worst, *(held for held, _ in cells))
            row = str(tasks), name, *(cell for _, cell in cells)
            shares.add_row(*row, end_section=name == "4, alike")
    for tasks in FEW:
        cells = [of_mean(method, name, tasks, draws) for name in REWARDS]
        spare = min(
            spare, *(held - least for (held, _), least in zip(cells, LEAST.values(), strict=True))
        )
        means.add_row(str(tasks), *(cell for _, cell in cells))
    Console(width=100).print(shares, means)
    print(f"lowest coverage for shares: {worst:.1%}")
    return int(options.method == "evert" and (worst < LEAST["normal"] or spare < 0))


if __name__ == "__main__":
    sys.exit(main())
