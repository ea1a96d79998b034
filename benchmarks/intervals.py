"""How often the 95 % intervals of tables and figures contain the truth: for shares and for means.

Each draw simulates tasks and their episodes, and computes the interval. For a share, the episodes
of a task are independent ("free"), or all have the same result in half of the tasks ("half") or in
every task ("alike", as with greedy players). For a mean, the tasks' rewards are normal, or uniform.

    python benchmarks/intervals.py [--quick] [--method evert|bootstrap|errors] [--draws 2000]

A cell is the share of draws whose interval contains the truth, and the mean width of the intervals.
The benchmark fails if evert's intervals contain it in fewer than 93 % of the draws (90 % for means
of uniform rewards, since Student's interval is exact only for normal ones). For comparison,
``bootstrap`` resamples tasks with SciPy's percentiles: it has no width if all tasks end alike.
``errors`` are 1.96 standard errors of the tasks' means to both sides.
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
"""Name of a row -> episodes per task, and the share of tasks whose episodes all end alike."""
FEW = (2, 3, 4, 8, 16, 40)
REWARDS: dict[str, Callable[[random.Random], float]] = {
    "normal": lambda rng: rng.gauss(0.5, 0.2),
    "uniform": lambda rng: rng.random(),
}
"""Name of a column -> the reward of a task; its mean is 0.5."""
LEAST = {"normal": 0.93, "uniform": 0.9}

Interval = Callable[..., tuple[float, float] | None]


def bootstrap(by_task: ByTask, **_: object) -> tuple[float, float]:
    """Return SciPy's percentile bootstrap interval over tasks."""
    means = np.array([fmean(task) for task in by_task])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # SciPy warns if all are equal
        found = stats.bootstrap((means,), np.mean, n_resamples=999, method="percentile", rng=0)
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def errors(by_task: ByTask, **_: object) -> tuple[float, float]:
    """Return 1.96 standard errors to both sides of the mean over tasks."""
    means = [fmean(task) for task in by_task]
    half = 1.96 * stdev(means) / len(means) ** 0.5
    return fmean(means) - half, fmean(means) + half


METHODS: dict[str, Interval] = {"evert": interval, "bootstrap": bootstrap, "errors": errors}


def task(share: float, episodes: int, alike: float, rng: random.Random) -> list[bool]:
    """Simulate the successes of a task's episodes."""
    if rng.random() < alike:
        return [rng.random() < share] * episodes
    return [rng.random() < share for _ in range(episodes)]


def cover(ends: Iterable[tuple[float, float] | None], truth: float) -> tuple[float, str]:
    """Return the share of intervals that contain the truth, and a cell: with their mean width."""
    known = [each or (-np.inf, np.inf) for each in ends]
    held = fmean(low <= truth <= high for low, high in known)
    return held, f"{held:.1%} {fmean(high - low for low, high in known):.2f}"


def of_share(
    method: Interval, share: float, tasks: int, play: tuple[int, float], draws: int
) -> tuple[float, str]:
    """Measure intervals of a share of successes."""
    rng = random.Random(f"{share}/{tasks}/{play}")
    played = ([task(share, *play, rng) for _ in range(tasks)] for _ in range(draws))
    return cover((method(by_task, is_share=True) for by_task in played), share)


def of_mean(method: Interval, name: str, tasks: int, draws: int) -> tuple[float, str]:
    """Measure intervals of a mean reward."""
    rng = random.Random(f"{name}/{tasks}")
    played = ([[REWARDS[name](rng)] for _ in range(tasks)] for _ in range(draws))
    return cover(map(method, played), 0.5)


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
    method, worst, spare = METHODS[options.method], 1.0, 1.0
    shares, means = (Table(title=f"{of}: held, width; {draws} draws") for of in ("shares", "means"))
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
    print(f"worst share: {worst:.1%}")
    return int(options.method == "evert" and (worst < LEAST["normal"] or spare < 0))


if __name__ == "__main__":
    sys.exit(main())
