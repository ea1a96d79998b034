"""Scores of episodes: success with its interval, by model, split and category; and their tables."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from math import fsum
from statistics import fmean
from typing import Any

from rich.table import Column, Table

from evert.envs.games import Game, metrics_of
from evert.trainers.episodes.intervals import half_of, interval
from evert.trainers.episodes.pass_at import PassAt, pass_at
from evert.trainers.episodes.playing import EpisodeResult
from evert.trainers.system import files

QUESTIONS = "questions"
"""Metric of a game that counts its questions; without it turns are counted."""
CALLS = ("searches", "tools/calls")
"""Metrics that count tool calls; the first that an episode has is used."""
ENDS = ("won", "drawn", "lost")
"""Metrics of a game against an opponent: 1 in the episodes that ended so."""


@dataclass(frozen=True)
class Score:
    """The score of some episodes; a model, split or category "" means all.

    Attributes:
        success: Share of episodes that succeeded; ``low`` and ``high`` are its 95 % interval.
        reward: Mean reward; None if every episode failed.
        questions: Mean number of questions (or of turns) in successful episodes; None: no success.
        calls: Mean number of tool calls.
        errors: Number of episodes that failed.
        won, drawn, lost: Shares of the games, by the game's metrics; None if not recorded.
        play: Means of the game's own metrics (``Game.metrics``), where it recorded them.
        reward_error: Half the 95 % interval of the mean reward; None for fewer than two tasks.
        pass_at: pass@k by k.
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
    episodes: Iterable[EpisodeResult],
    *by: str,
    game: Game | None = None,
    pass_at: Sequence[int] = (),
) -> list[Score]:
    """One score per model, in order of appearance, and per "split" or "category" if ``by`` has it.

    ``game`` is a game of the user's, for its metrics; None: only metrics of evert's games.
    ``pass_at`` has the values of k for pass@k; each task must have that many episodes.
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
    episodes: Sequence[EpisodeResult],
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


def _ends(episodes: Sequence[EpisodeResult]) -> dict[str, float]:
    counts = {name: fsum(e.metrics.get(name, 0.0) for e in episodes) for name in ENDS}
    total = fsum(counts.values())
    return {name: count / total for name, count in counts.items()} if total else {}


def _means(episodes: Sequence[EpisodeResult], names: Sequence[str]) -> dict[str, float]:
    by_metric = {name: [e.metrics[name] for e in episodes if name in e.metrics] for name in names}
    return {name: fmean(values) for name, values in by_metric.items() if values}


# -- tables --------------------------------------------------------------------------------------


def as_csv(rows: Iterable[Score]) -> str:
    """Scores as CSV; shares are from 0 to 1, and missing values empty."""
    return files.as_csv([_as_row(row) for row in rows])


def _as_row(score: Score) -> dict[str, Any]:
    columns = {
        name: value for name, value in vars(score).items() if name not in ("play", "pass_at")
    }
    columns |= {
        f"pass_at_{k}{end}": value
        for k, estimate in score.pass_at.items()
        for end, value in zip(("", "_low", "_high"), astuple(estimate), strict=True)
    }
    values = columns | {name: value for name, value in score.play.items() if name not in columns}
    return {k: f"{v:.4f}" if isinstance(v, float) else v for k, v in values.items()}


def turns_name(episodes: Iterable[EpisodeResult]) -> str:
    """What ``Score.questions`` counts: questions, or turns if no episode has questions."""
    return QUESTIONS if any(QUESTIONS in episode.metrics for episode in episodes) else "turns"


def as_table(rows: Sequence[Score], questions: str = QUESTIONS) -> Table:
    """Scores for a terminal, without uninformative columns."""
    columns: dict[str, Callable[[Score], str]] = {
        "episodes": lambda row: str(row.episodes),
        "success": lambda row: f"{row.success:.1%}",
        "95 %": lambda row: f"{row.low:.0%}-{row.high:.0%}",
        questions: lambda row: two_digits(row.questions),
    }
    for k in rows[0].pass_at if rows else ():
        columns[f"pass@{k}"] = partial(_pass_at, k)
    if any(row.won is not None for row in rows):
        for name in ENDS:
            columns[name] = partial(_share, name)
    if any(row.reward is None or abs(row.reward - row.success) > 1e-9 for row in rows):
        columns["reward"] = lambda row: two_digits(row.reward)
    if any(row.calls for row in rows):
        columns["tool calls"] = lambda row: f"{row.calls:.2f}"
    if any(row.errors for row in rows):
        columns["failed"] = lambda row: f"{row.errors} ({row.errors / row.episodes:.0%})"
    return _table(rows, columns)


def as_play_table(rows: Sequence[Score]) -> Table | None:
    """The games' own metrics, for a terminal; None if there are none."""
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
    estimate = row.pass_at[k]
    return f"{estimate.value:.1%}\n{estimate.low:.0%}-{estimate.high:.0%}"


def _share(name: str, row: Score) -> str:
    share = getattr(row, name)
    return "" if share is None else f"{share:.1%}"


def _play_text(name: str, row: Score) -> str:
    return two_digits(row.play.get(name))


def two_digits(value: float | None) -> str:
    """A number for a terminal; "" for none."""
    return "" if value is None else f"{value:.2f}"
