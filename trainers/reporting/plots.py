"""The figure of a run: reward by training step and by wall clock, in training and held out.

``read_curve`` reads one line off the Cookbook's metrics, ``curves`` the two of a run;
``draw_curves`` draws one run, and ``draw_games`` several seeds of several games. Matplotlib's
``Figure`` is used without ``pyplot``: no window system is looked for, and no state is left behind.
(The page of ``evert report`` has figures of its own: ``reporting/figures.py``.)
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evert.trainers.runs.folder import HELD_OUT_REWARD, TRAIN_REWARD

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAIN_COLOUR, HELD_OUT_COLOUR = "#7f9bb5", "#c2410c"
LINES = (("training", TRAIN_COLOUR), ("held out", HELD_OUT_COLOUR))


@dataclass
class Curve:
    """Scores in the order they were taken; all lists have one length."""

    steps: list[int] = field(default_factory=list)
    """Updates the weights had had."""
    seconds: list[float] = field(default_factory=list)
    """Training time gone by."""
    scores: list[float] = field(default_factory=list)

    def add(self, step: int, seconds: float, score: float) -> None:
        """Append a point."""
        self.steps.append(step)
        self.seconds.append(seconds)
        self.scores.append(score)


def curves(rows: Sequence[Mapping[str, Any]], after: float | None = None) -> tuple[Curve, Curve]:
    """Training reward and held-out score, both at temperature 1.

    Args:
        rows: A step's metrics each, in order. The held-out score of a step was taken before it.
        after: The held-out score of the final weights.
    """
    train = read_curve(rows, TRAIN_REWARD)
    held_out = read_curve(rows, HELD_OUT_REWARD, before_step=True)
    if after is not None and rows:
        held_out.add(rows[-1]["step"] + 1, clock(rows)[-1], after)
    return train, held_out


def read_curve(rows: Sequence[Mapping[str, Any]], key: str, *, before_step: bool = False) -> Curve:
    """One metric's curve; rows without it, or where it is no finite number, have no point.

    Args:
        rows: A step's metrics each, in order.
        key: Of the metric.
        before_step: The metric was measured before the step was done, as held-out scores are.
    """
    curve, times = Curve(), clock(rows)
    for number, row in enumerate(rows):
        value = row.get(key)
        if isinstance(value, int | float) and math.isfinite(value):
            curve.add(row["step"], times[number if before_step else number + 1], value)
    return curve


def clock(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Seconds of training gone by before each step, and at the end: one more than rows."""
    times = [0.0]
    for row in rows:
        times.append(times[-1] + row.get("time/total", 0.0))
    return times


def draw_curves(path: Path, title: str, train: Curve, held_out: Curve) -> None:
    """Draw one run: by step on the left, by wall clock on the right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), dpi=130, layout="constrained")
    by_step, by_clock = figure.subplots(1, 2, sharey=True)
    for axes, unit in ((by_step, "steps"), (by_clock, "seconds")):
        axes.plot(
            getattr(train, unit), train.scores, color=TRAIN_COLOUR, marker=".", label="training"
        )
        axes.plot(
            getattr(held_out, unit), held_out.scores, color=HELD_OUT_COLOUR, marker="o", lw=2,
            label="held out",
        )  # fmt: skip
        _frame(axes)
    by_step.set(xlabel="training step", ylabel="mean reward, temperature 1")
    by_clock.set(xlabel="seconds of training")
    by_clock.legend(loc="lower right", frameon=False)
    figure.suptitle(title, fontsize=11)
    save(figure, path)


def draw_games(path: Path, title: str, games: Mapping[str, Sequence[tuple[Curve, Curve]]]) -> None:
    """Draw several runs of several games: a panel a game, a thin line a seed, the mean bold."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5 * len(games), 3.8), dpi=130, layout="constrained")
    panels = figure.subplots(1, len(games), squeeze=False)[0]
    for axes, (game, runs) in zip(panels, games.items(), strict=True):
        for _, held_out in runs:
            axes.plot(held_out.steps, held_out.scores, color=HELD_OUT_COLOUR, lw=0.8, alpha=0.5)
        for number, (label, colour) in enumerate(LINES):
            mean = _mean([run[number] for run in runs])
            axes.plot(mean.steps, mean.scores, color=colour, lw=2, label=f"{label}, mean")
        axes.set(title=game, xlabel="training step", ylabel="mean reward, temperature 1")
        axes.legend(loc="lower right", frameon=False)
        _frame(axes)
    figure.suptitle(title, fontsize=11)
    save(figure, path)


def _mean(runs: Sequence[Curve]) -> Curve:
    """The mean at the steps that every run has."""
    shared = set.intersection(*(set(run.steps) for run in runs)) if runs else set()
    mean = Curve()
    for step in sorted(shared):
        scores = [run.scores[run.steps.index(step)] for run in runs]
        mean.add(step, 0.0, sum(scores) / len(scores))
    return mean


def _frame(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def save(figure: Any, path: Path) -> None:
    """Write a figure whole, or not at all."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        figure.savefig(draft, format="png")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
