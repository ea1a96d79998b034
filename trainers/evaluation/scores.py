"""Scores of episodes: success with its interval, by model, split and category; and their tables.

The interval is Wilson's at 95 %, for as many independent episodes as there are: several seeds of
one task tell less than as many tasks, the more so the more they agree. Kish's design effect says
how much less, 1 + (m - 1) * rho for m episodes a task with intraclass correlation rho.

Sources: E. B. Wilson, "Probable inference, the law of succession, and statistical inference", JASA
22 (1927); L. Kish, "Survey Sampling" (1965), 5.4.
"""

import csv
import io
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pvariance
from typing import TypeAlias

from rich.table import Table

from evert.trainers.evaluation.episodes import Episode

Z = 1.959964
"""Standard deviations that hold 95 % of a normal distribution."""

QUESTIONS = "questions"
"""Metric of a game that counts its questions; else turns are counted."""
CALLS = ("searches", "tools/calls")
"""Metrics that count the use of tools, the first that is there."""

Group: TypeAlias = tuple[str, str, str]
"""Model, split and category; "" for all of them."""


@dataclass(frozen=True)
class Score:
    """How some episodes went.

    Attributes:
        model, split, category: Whose; "" for all.
        episodes: How many.
        success: Share of them that succeeded.
        low, high: Its 95 % interval.
        reward: Mean reward; None if every episode failed.
        questions: Mean number of questions (turns, where there are none) of the successes; None
            without one.
        calls: Mean number of tool calls.
        errors: Episodes whose agent failed.
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


def wilson(share: float, count: float) -> tuple[float, float]:
    """The 95 % interval of a share, seen in ``count`` independent trials."""
    centre = share + Z**2 / (2 * count)
    half = Z * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    scale = 1 + Z**2 / count
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def independent(by_task: Sequence[Sequence[bool]]) -> float:
    """How many independent episodes tell as much as these, which share tasks.

    Args:
        by_task: Successes of each task's episodes.
    """
    total = sum(map(len, by_task))
    episodes = [success for task in by_task for success in task]
    size = total / len(by_task)
    spread = pvariance(episodes)
    if size <= 1 or len(by_task) < 2:
        return float(len(by_task))
    if spread == 0:
        return float(total)
    within = fmean(pvariance(task) for task in by_task) * size / (size - 1)
    correlation = min(1.0, max(0.0, 1 - within / spread))
    return total / (1 + (size - 1) * correlation)


def score(group: Group, episodes: Sequence[Episode]) -> Score:
    """The score of some episodes; there must be one."""
    by_task: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for episode in episodes:
        by_task[episode.split, episode.task].append(episode.success)
    share = fmean(episode.success for episode in episodes)
    low, high = wilson(share, independent(list(by_task.values())))
    rewards = [episode.reward for episode in episodes if episode.reward is not None]
    questions = [
        episode.metrics.get(QUESTIONS, episode.turns) for episode in episodes if episode.success
    ]
    return Score(
        *group,
        episodes=len(episodes),
        success=share,
        low=low,
        high=high,
        reward=fmean(rewards) if rewards else None,
        questions=fmean(questions) if questions else None,
        calls=fmean(_calls(episode.metrics) for episode in episodes),
        errors=sum(bool(episode.error) for episode in episodes),
    )


def _calls(metrics: Mapping[str, float]) -> float:
    return next((metrics[name] for name in CALLS if name in metrics), 0.0)


def scores(episodes: Iterable[Episode], by: Callable[[Episode], Group]) -> list[Score]:
    """A score for each group, in the order in which groups are first met."""
    groups: dict[Group, list[Episode]] = defaultdict(list)
    for episode in episodes:
        groups[by(episode)].append(episode)
    return [score(group, members) for group, members in groups.items()]


def by_model(episode: Episode) -> Group:
    """All of a model's episodes together."""
    return episode.model, "", ""


def by_split(episode: Episode) -> Group:
    """A model's episodes on each split."""
    return episode.model, episode.split, ""


def by_category(episode: Episode) -> Group:
    """A model's episodes in each category, both splits together."""
    return episode.model, "", episode.category


def in_order(episodes: Sequence[Episode], models: Sequence[str]) -> list[Episode]:
    """Episodes by model, split, task and seed, whenever they were played."""
    rank = {model: index for index, model in enumerate(models)}
    wanted = [episode for episode in episodes if episode.model in rank]
    return sorted(wanted, key=lambda e: (rank[e.model], e.split != "train", e.task, e.seed))


# -- tables --------------------------------------------------------------------------------------

HEADER = (
    "model", "split", "category", "episodes", "success", "low", "high", "reward", "questions",
    "calls", "errors",
)  # fmt: skip


def as_csv(rows: Iterable[Score]) -> str:
    """Scores as CSV; shares of 1, an empty field for what there is none of."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(HEADER)
    for row in rows:
        values = [getattr(row, name) for name in HEADER]
        writer.writerow([f"{v:.4f}" if isinstance(v, float) else v for v in values])
    return written.getvalue()


def as_table(rows: Sequence[Score], *, category: bool = False) -> Table:
    """Scores for a terminal; columns that would say nothing are left out."""
    columns: dict[str, Callable[[Score], str]] = {
        "episodes": lambda row: str(row.episodes),
        "success": lambda row: f"{row.success:.1%}",
        "95 %": lambda row: f"{row.low:.0%}-{row.high:.0%}",
        "questions": lambda row: _shown(row.questions),
    }
    if any(row.reward is None or abs(row.reward - row.success) > 1e-9 for row in rows):
        columns["reward"] = lambda row: _shown(row.reward)
    if any(row.calls for row in rows):
        columns["tool calls"] = lambda row: f"{row.calls:.2f}"
    if any(row.errors for row in rows):
        columns["errors"] = lambda row: str(row.errors or "")
    table = Table()
    table.add_column("model", overflow="fold")
    table.add_column("category" if category else "split")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        said = (row.category if category else row.split) or "all"
        table.add_row(row.model, said, *(show(row) for show in columns.values()))
    return table


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
