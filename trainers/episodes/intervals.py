"""``interval``: the 95 % interval of a mean or of a share, for every table, figure and page.

It covers all tasks of the kind; the played tasks are a sample. A mean has Student's interval over
the tasks' means. A share has Clopper and Pearson's exact binomial interval (Biometrika 26, 1934)
for the effective number of independent episodes, given the spread between tasks, as Korn and
Graubard do for surveys (Survey Methodology 24, 1998). ``benchmarks/intervals.py`` measures both.
"""

import math
from collections.abc import Sequence

ByTask = Sequence[Sequence[float]]  # the values of each task's episodes; for a share, 0 or 1


def interval(
    by_task: ByTask, *, is_share: bool = False, other_samples: Sequence[ByTask] = ()
) -> tuple[float, float] | None:
    """Return the ends of the 95 % interval; None for a mean of one task, whose spread is unknown.

    ``other_samples`` are those that a mean is compared with: the spread is pooled over all
    (analysis of variance), and the 95 % are for all intervals together (Bonferroni).
    """
    from scipy import special  # type: ignore[import-untyped]

    if is_share:
        count = independent(by_task)
        ones = count * _mean([value for task in by_task for value in task])
        low = special.betaincinv(ones, count - ones + 1, 0.025) if ones > 0 else 0.0
        high = special.betaincinv(ones + 1, count - ones, 0.975) if ones < count else 1.0
        return float(low), float(high)
    samples = [[*map(_mean, sample)] for sample in (by_task, *other_samples)]
    freedom = sum(map(len, samples)) - len(samples)
    if freedom < 1:
        return None
    errors = [value - mean for means in samples for mean in [_mean(means)] for value in means]
    deviation = math.sqrt(sum(error * error for error in errors) / freedom / len(by_task))
    half = float(special.stdtrit(freedom, 1 - 0.025 / len(samples))) * deviation
    return _mean(samples[0]) - half, _mean(samples[0]) + half


def half_of(by_task: ByTask) -> float | None:
    """Return half the interval of a mean, as for ± in a table; None for fewer than two tasks."""
    ends = interval(by_task)
    return ends and (ends[1] - ends[0]) / 2


def independent(by_task: ByTask) -> float:
    """Return the number of independent episodes whose share has the variance that tasks show.

    Two artificial tasks are added, of ones and of zeros, since few real ones may vary too little
    (as Agresti and Coull add trials, The American Statistician 52, 1998).
    """
    size = _mean([*map(len, by_task)])
    totals = [(sum(task), len(task)) for task in by_task] + [(size, size), (0, size)]
    tasks, episodes = len(totals), sum(count for _, count in totals)
    share = sum(ones for ones, _ in totals) / episodes
    errors = sum((ones - share * count) ** 2 for ones, count in totals)
    effect = tasks / (tasks - 1) * errors / episodes / (share * (1 - share))
    return min(size, max(1.0, size / effect)) * len(by_task)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)  # fmean raises OverflowError for rewards near 1e308
