"""The figure of a run: reward by training step and by wall clock, in training and held out.

``draw_curves`` draws one run, and ``draw_games`` several seeds of several games. Matplotlib's
``Figure`` is used without ``pyplot``: no window system is looked for, and no state is left behind.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evert.trainers.reporting.metrics import Curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAIN_COLOUR, HELD_OUT_COLOUR = "#7f9bb5", "#c2410c"
LINES = (("training", TRAIN_COLOUR), ("held out", HELD_OUT_COLOUR))


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
