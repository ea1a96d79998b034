"""pass@k: the share of tasks that at least one of k episodes solves.

Of a task's n episodes c succeed. The unbiased estimate is 1 - C(n - c, k) / C(n, k), the mean over
tasks (Chen et al., Evaluating Large Language Models Trained on Code, 2021, equation 1).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb
from statistics import fmean

from evert.trainers.episodes.intervals import interval


@dataclass(frozen=True)
class PassAt:
    """An estimate of pass@k, from 0 to 1; ``low`` and ``high`` are its 95 % interval."""

    value: float
    low: float
    high: float


def pass_at(k: int, outcomes: Sequence[Sequence[bool]]) -> PassAt:
    """Estimate pass@k from the outcomes of each task's episodes.

    A task counts as n // k independent draws in the interval: its estimate varies no more than the
    mean of that many disjoint draws of k (Hoeffding, JASA 58, 1963). So pass@1 has the interval of
    the success rate.

    Raises:
        ValueError: A task has fewer than ``k`` episodes.
    """
    if (fewest := min(map(len, outcomes), default=0)) < k:
        raise ValueError(f"pass@{k} needs {k} episodes of each task; one has {fewest}.")
    solved = [1 - comb(len(task) - sum(task), k) / comb(len(task), k) for task in outcomes]
    draws = [[share] * (len(task) // k) for share, task in zip(solved, outcomes, strict=True)]
    low, high = interval(draws, is_share=True) or (0.0, 1.0)
    return PassAt(fmean(solved), low, high)
