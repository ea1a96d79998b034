"""Computes scores of episodes (means, rates and pass@k, with intervals), and formats them.

All tables, figures and pages get their scores from here, by model, split and category. Intervals
are 95% confidence intervals that treat the tasks as a sample from all tasks of that type. Their
coverage is measured in ``benchmarks/intervals.py``.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from rich.table import Column, Table

from evert.envs.games import Game, metrics_of
from evert.trainers.system import files

if TYPE_CHECKING:  # ``playing`` imports torch, which a viewer does not need
    from evert.trainers.episodes.playing import EpisodeResult

QUESTIONS = "questions"
"""Metric that counts a game's questions. If a game doesn't have it, turns are counted instead."""
CALLS = ("searches", "tools/calls")
"""Metrics that count tool calls. The first one that an episode has is used."""
ENDS = ("won", "drawn", "lost")
"""Metrics of games against an opponent. In each episode, the metric of its result is 1."""
ENDINGS = "", "_low", "_high"
"""Suffixes for pass_at_K in CSV column names."""
ByTask = Sequence[Sequence[float]]
"""The values of each task's episodes. For a rate, they are 0 or 1."""


@dataclass(frozen=True)
class PassAt:
    """An estimate of pass@k, from 0 to 1, with its 95% interval (``low`` to ``high``)."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Score:
    """The score of a set of episodes. A model, split or category of "" stands for all of them.

    Attributes:
        success: Success rate, with its 95% interval in ``low`` and ``high``.
        reward: Mean reward (None if all episodes failed).
        questions: Mean number of questions (or turns) in successful episodes (None if there are
            no successful episodes).
        calls: Mean number of tool calls.
        errors: Number of episodes that failed.
        won, drawn, lost: Fraction of episodes with this result (None if not recorded).
        play: Means of the game's own metrics (``Game.metrics``), if they were recorded.
        reward_error: Half the width of the mean reward's 95% interval (None for fewer than two
            tasks).
        pass_at: Maps k to pass@k.
    """

    model: str
    split: str
    category: str
    episodes: int
    success: float
    low: float
    high: float
    reward: float | None
    questions: float | None
    calls: float
    errors: int
    won: float | None = None
    drawn: float | None = None
    lost: float | None = None
    play: dict[str, float] = field(default_factory=dict)
    reward_error: float | None = None
    pass_at: dict[int, PassAt] = field(default_factory=dict)


def scores(
    episodes: Iterable["EpisodeResult"],
    *by: str,
    game: Game | None = None,
    pass_at: Sequence[int] = (),
) -> list[Score]:
    """Return one score per model, in order of appearance.

    To get separate scores for each split or category, pass "split" or "category" in ``by``.
    ``game`` is the user's own game, whose metrics are included in addition to those of evert's
    games. ``pass_at`` lists the values of k for pass@k. Each task must have at least k episodes.
    """
    groups: dict[tuple[str, str, str], list[EpisodeResult]] = defaultdict(list)
    for episode in episodes:
        split, category = (getattr(episode, n) if n in by else "" for n in ("split", "category"))
        groups[episode.model, split, category].append(episode)
    metric_names = [name for name, metric in metrics_of(game).items() if metric.tabled]
    return [_score(*group, members, metric_names, pass_at) for group, members in groups.items()]


def _score(
    model: str,
    split: str,
    category: str,
    episodes: Sequence["EpisodeResult"],
    metric_names: Sequence[str],
    ks: Sequence[int],
) -> Score:
    tasks: dict[tuple[str, int], list[EpisodeResult]] = defaultdict(list)
    for episode in episodes:
        tasks[episode.split, episode.task].append(episode)
    outcomes = [[e.success for e in task] for task in tasks.values()]
    low, high = interval(outcomes, is_share=True) or (0.0, 1.0)
    earned = [[e.reward for e in task if e.reward is not None] for task in tasks.values()]
    rewards = [reward for task in earned for reward in task]
    questions = [e.metrics.get(QUESTIONS, e.turns) for e in episodes if e.success]
    return Score(
        model,
        split,
        category,
        episodes=len(episodes),
        success=fmean(episode.success for episode in episodes),
        low=low,
        high=high,
        reward=fmean(rewards) if rewards else None,
        questions=fmean(questions) if questions else None,
        calls=fmean(next((e.metrics[n] for n in CALLS if n in e.metrics), 0.0) for e in episodes),
        errors=sum(bool(episode.error) for episode in episodes),
        reward_error=half_of([task for task in earned if task]),
        **_ends(episodes),
        play=_means(episodes, metric_names),
        pass_at={k: pass_at(k, outcomes) for k in ks},
    )


def _ends(episodes: Sequence["EpisodeResult"]) -> dict[str, float]:
    counts = {name: math.fsum(e.metrics.get(name, 0.0) for e in episodes) for name in ENDS}
    total = math.fsum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def _means(episodes: Sequence["EpisodeResult"], names: Sequence[str]) -> dict[str, float]:
    by_metric = {name: [e.metrics[name] for e in episodes if name in e.metrics] for name in names}
    return {name: fmean(values) for name, values in by_metric.items() if values}


# -- intervals -----------------------------------------------------------------------------------


def interval(
    by_task: ByTask, *, is_share: bool = False, other_samples: Sequence[ByTask] = ()
) -> tuple[float, float] | None:
    """Return the bounds of the 95% interval, or None for a mean with only one task.

    For means, this is Student's t-interval over the task means. For rates, it is Clopper and
    Pearson's exact binomial interval (Biometrika 26, 1934), using the effective number of
    independent episodes given the variance between tasks, as in Korn and Graubard's method for
    surveys (Survey Methodology 24, 1998).

    To compare a mean with the means of ``other_samples``, the variance is pooled over all samples
    (analysis of variance), and the intervals have a joint coverage of 95% (Bonferroni).
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
    """Return half the width of a mean's interval, or None for fewer than two tasks."""
    ends = interval(by_task)
    return ends and (ends[1] - ends[0]) / 2


def independent(by_task: ByTask) -> float:
    """Return the effective number of independent episodes, given the variance between tasks.

    We add two artificial tasks, one with only ones and one with only zeros, because a small number
    of real tasks may vary too little. (Agresti and Coull add trials in a similar way, The American
    Statistician 52, 1998.)
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


def pass_at(k: int, outcomes: Sequence[Sequence[bool]]) -> PassAt:
    """Estimate pass@k, the fraction of tasks that are solved by at least one of k episodes.

    If c of a task's n episodes succeed, the unbiased estimate is 1 - C(n - c, k) / C(n, k). We
    average it over tasks (Chen et al., Evaluating Large Language Models Trained on Code, 2021, eq.
    1).

    To compute the interval, we treat each task as n // k independent draws, because the variance of
    its estimate is at most that of the mean of n // k disjoint draws of k episodes (Hoeffding, JASA
    58, 1963). The interval of pass@1 is therefore the same as that of the success rate.

    Raises:
        ValueError: A task has fewer than ``k`` episodes.
    """
    if (fewest := min(map(len, outcomes), default=0)) < k:
        raise ValueError(f"pass@{k} needs {k} episodes per task, but one task has {fewest}.")
    solved = [
        1 - math.comb(len(task) - sum(task), k) / math.comb(len(task), k) for task in outcomes
    ]
    draws = [[share] * (len(task) // k) for share, task in zip(solved, outcomes, strict=True)]
    low, high = interval(draws, is_share=True) or (0.0, 1.0)
    return PassAt(fmean(solved), low, high)


# -- texts and files -----------------------------------------------------------------------------


def mean_text(mean: float | None, half: float | None = None) -> str:
    """Format a mean as "0.75 ± 0.12", or "0.75" if its interval is unknown. Return "" for None."""
    text = "" if mean is None else f"{mean:.2f}"
    return text if half is None or not text else f"{text} ± {half:.2f}"


def share_text(share: float | None, low: float = math.nan, high: float = math.nan) -> str:
    """Format a rate, such as "75.0% (50-100%)" if its interval is known. Return "" for None."""
    text = "" if share is None else f"{share:.1%}"
    return text if math.isnan(low) or not text else f"{text} ({100 * low:.0f}-{high:.0%})"


def as_csv(rows: Iterable[Score]) -> str:
    """Return scores as CSV. Rates are from 0 to 1, and missing values are empty."""
    return files.as_csv([_as_row(row) for row in rows])


def _as_row(score: Score) -> dict[str, Any]:
    columns = {
        name: value for name, value in vars(score).items() if name not in ("play", "pass_at")
    }
    columns |= {
        f"pass_at_{k}{end}": value
        for k, estimate in score.pass_at.items()
        for end, value in zip(ENDINGS, astuple(estimate), strict=True)
    }
    values = columns | {name: value for name, value in score.play.items() if name not in columns}
    return {k: f"{v:.4f}" if isinstance(v, float) else v for k, v in values.items()}


def read_scores(path: Path) -> list[Score]:
    """Read a CSV file written with ``as_csv``.

    Games' own metrics and rows from other versions are skipped.
    """
    rows = list[Score]()
    for row in files.read_csv(path):
        with suppress(KeyError, ValueError):
            ks = [key[8:] for key in row if re.fullmatch(r"pass_at_\d+", key)]
            values = {int(k): [float(row[f"pass_at_{k}{end}"]) for end in ENDINGS] for k in ks}
            estimates = {k: PassAt(*ends) for k, ends in values.items()}
            rows.append(replace(read_score(row), pass_at=estimates))
    return rows


def read_score(record: Mapping[str, Any]) -> Score:
    """Read a score, except pass@k, from parsed JSON or a row of strings.

    Raises:
        ValueError: The record is from a different version.
    """
    try:
        numbers = {name: float(record[name]) for name in ("success", "low", "high", "calls")}
        known = {name: record.get(name) for name in ("reward", "questions", "reward_error", *ENDS)}
        means = {n: None if value in (None, "") else float(value) for n, value in known.items()}
        counts = {name: int(record[name]) for name in ("episodes", "errors")}
        texts = {name: str(record[name]) for name in ("model", "split", "category")}
        play = {str(name): float(value) for name, value in dict(record.get("play") or {}).items()}
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error
    fields: dict[str, Any] = {**texts, **counts, **numbers, **means}
    return Score(**fields, play=play)


# -- tables --------------------------------------------------------------------------------------


def turns_name(episodes: Iterable["EpisodeResult"]) -> str:
    """Return what ``Score.questions`` counts: "questions", or "turns" if that metric is missing."""
    return QUESTIONS if any(QUESTIONS in episode.metrics for episode in episodes) else "turns"


def as_table(rows: Sequence[Score], questions: str = QUESTIONS) -> Table:
    """Format scores as a table for the terminal, omitting columns without information."""
    columns: dict[str, Callable[[Score], str]] = {
        "episodes": lambda row: str(row.episodes),
        "success (95 %)": lambda row: share_text(row.success, row.low, row.high),
        questions: lambda row: mean_text(row.questions),
    }
    for k in rows[0].pass_at if rows else ():
        columns[f"pass@{k}"] = partial(_pass_at, k)
    if any(row.won is not None for row in rows):
        for name in ENDS:
            columns[name] = partial(_share, name)
    if any(row.reward is None or abs(row.reward - row.success) > 1e-9 for row in rows):
        columns["reward"] = lambda row: mean_text(row.reward)
    if any(row.calls for row in rows):
        columns["tool calls"] = lambda row: mean_text(row.calls)
    if any(row.errors for row in rows):
        columns["failed"] = lambda row: f"{row.errors} ({row.errors / row.episodes:.0%})"
    return _table(rows, columns)


def as_play_table(rows: Sequence[Score]) -> Table | None:
    """Format games' own metrics as a table for the terminal. Return None if there are none."""
    with_play = [row for row in rows if row.play]
    names = dict.fromkeys(name for row in with_play for name in row.play)
    columns = {name.replace("_", " "): partial(_play_text, name) for name in names}
    return _table(with_play, columns) if with_play else None


def _table(rows: Sequence[Score], columns: Mapping[str, Callable[[Score], str]]) -> Table:
    numbers = [Column(name, justify="right") for name in columns]
    table = Table(Column("model", overflow="fold"), "split", *numbers)
    for row in rows:
        table.add_row(row.model, row.split or "all", *(show(row) for show in columns.values()))
    return table


def _pass_at(k: int, row: Score) -> str:
    return share_text(*astuple(row.pass_at[k]))


def _share(name: str, row: Score) -> str:
    return share_text(getattr(row, name))


def _play_text(name: str, row: Score) -> str:
    return mean_text(row.play.get(name))
