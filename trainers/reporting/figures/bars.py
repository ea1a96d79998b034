"""Scores as bars with their 95 % intervals: a model beside the other, train against held out.

Colours are told apart by people who
see few of them (Okabe and Ito's).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evert.trainers.evaluation.scores import Score
from evert.trainers.reporting.figures.curves import save

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#999999", "#000000")
SPLITS = {"train": ("seen in training", 0.45), "test": ("held out", 1.0)}
"""Split -> what the legend calls it, and how solid its bars are."""


def draw_splits(path: Path, title: str, rows: Sequence[Score]) -> None:
    """A group of bars a model, a bar a split."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row.model for row in rows))
    splits = list(dict.fromkeys(row.split for row in rows))
    figure = Figure(figsize=(max(6.5, 1.5 + 1.4 * len(models)), 4), dpi=130, layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(splits)
    for number, split in enumerate(splits):
        label, alpha = SPLITS.get(split, (split, 1.0))
        chosen = [row for row in rows if row.split == split]
        places = [
            models.index(row.model) + (number - (len(splits) - 1) / 2) * width for row in chosen
        ]
        _bars(axes, places, chosen, width, COLOURS[0], alpha, label)
    axes.set_xticks(range(len(models)), [_short(model) for model in models])
    axes.legend(frameon=False, ncols=len(splits), loc="upper center", bbox_to_anchor=(0.5, -0.1))
    _frame(axes, title)
    save(figure, path)


def draw_categories(path: Path, title: str, rows: Sequence[Score]) -> None:
    """A row of bars a category, a bar a model; both splits together."""
    from matplotlib.figure import Figure

    models = list(dict.fromkeys(row.model for row in rows))
    categories = list(dict.fromkeys(row.category for row in rows))
    inches = 1.2 + len(categories) * (0.2 + 0.14 * len(models))
    figure = Figure(figsize=(7.5, inches), dpi=130, layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(models)
    for number, model in enumerate(models):
        chosen = [row for row in rows if row.model == model]
        shift = (number - (len(models) - 1) / 2) * height
        places = [categories.index(row.category) + shift for row in chosen]
        axes.barh(
            places, [row.success for row in chosen], height * 0.92, xerr=_errors(chosen),
            color=COLOURS[number % len(COLOURS)], label=_short(model),
            error_kw={"lw": 0.8, "ecolor": "#444444"},
        )  # fmt: skip
    axes.set_yticks(range(len(categories)), categories)
    axes.set_ylim(len(categories) - 0.5, -0.5)
    axes.set(xlim=(0, 1), xlabel="success rate, 95 % interval")
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(models))
    figure.suptitle(title, fontsize=11)
    save(figure, path)


def _bars(
    axes: "Axes",
    places: Sequence[float],
    rows: Sequence[Score],
    width: float,
    colour: str,
    alpha: float,
    label: str,
) -> None:
    bars = axes.bar(
        places, [row.success for row in rows], width * 0.92, yerr=_errors(rows), color=colour,
        alpha=alpha, label=label, capsize=3, error_kw={"lw": 1, "ecolor": "#444444"},
    )  # fmt: skip
    axes.bar_label(bars, [f"{row.success:.0%}" for row in rows], padding=2, fontsize=8)


def _errors(rows: Sequence[Score]) -> list[list[float]]:
    below = [max(0.0, row.success - row.low) for row in rows]
    return [below, [max(0.0, row.high - row.success) for row in rows]]


def _frame(axes: "Axes", title: str) -> None:
    axes.set(ylim=(0, 1.12), ylabel="success rate, 95 % interval", title=title)
    axes.title.set_fontsize(11)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def _short(model: str) -> str:
    """A path's last part: the run's name."""
    return model if "://" in model else Path(model).name
