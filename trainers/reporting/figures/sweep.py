"""Plot a sweep as parallel coordinates, with one line per run through its values and objective.

The values of a list are evenly spaced, and ranges have a linear or logarithmic scale. Lines are
coloured by the objective. The best runs are drawn last, and the best one is bold. (We don't use
Optuna's version, because it is experimental, uses ``pyplot``, and draws lines across labels.)
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from evert.trainers.reporting.figures.formatting import show
from evert.trainers.reporting.figures.style import INK, PAPER, SMALL, Axes, head, new_figure, plain


@dataclass(frozen=True)
class Scale:
    """A vertical axis for a list of values, or for a range from ``low`` to ``high``."""

    title: str
    choices: Sequence[Any] = ()
    """The list's values, lowest first. Empty for a range."""
    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def place(self, value: Any) -> float:
        """Return the height of a value, from 0 at the bottom to 1 at the top."""
        if self.choices:
            return list(self.choices).index(value) / max(1, len(self.choices) - 1)
        if self.log:
            return log10(value / self.low) / log10(self.high / self.low)
        return float((value - self.low) / (self.high - self.low))

    def ticks(self) -> list[tuple[float, str]]:
        """Return heights and labels of a list's values, or of a range's ends and round numbers."""
        if self.choices:
            return [(self.place(value), show(value)) for value in self.choices]
        round_numbers = LogLocator() if self.log else MaxNLocator(5)
        between = map(float, round_numbers.tick_values(self.low, self.high))
        inner = [value for value in between if 0.06 <= self.place(value) <= 0.94]
        return [(self.place(value), show(value)) for value in (self.low, *inner, self.high)]


def draw_sweep(
    title: str,
    scales: Sequence[Scale],
    runs: Sequence[tuple[Mapping[str, Any], float]],
    objective: str,
) -> Figure:
    """Draw completed runs. Each run is a pair: its values (by scale title) and its objective."""
    by_score = sorted(runs, key=lambda run: run[1])
    low, high = by_score[0][1], by_score[-1][1]
    last = Scale(objective, low=low, high=high) if low < high else Scale(objective, [low])
    columns = [*scales, last]
    figure, (axes,) = new_figure(2.0 + 1.9 * len(columns), 4.2)
    for number, (values, score) in enumerate(by_score, 1):
        places = [*(scale.place(values[scale.title]) for scale in scales), last.place(score)]
        look = {"lw": 3.5} if number == len(by_score) else {"lw": 1.3, "alpha": 0.8}
        colour = colormaps["viridis_r"](0.1 + 0.9 * last.place(score))
        axes.plot(range(len(columns)), places, color=colour, **look)
    _rule(axes, columns)
    head(axes, title, f"{len(by_score)} runs, one line per run; the best run is bold")
    return figure


def _rule(axes: Axes, scales: Sequence[Scale]) -> None:
    axes.grid(visible=False)
    for number, scale in enumerate(scales):
        axes.axvline(number, color=INK, lw=0.8, zorder=3)
        for height, label in scale.ticks():
            axes.annotate(
                plain(label, 24), (number, height), xytext=(5, 0), textcoords="offset points",
                va="center", fontsize=SMALL, color=INK, zorder=4,
                bbox={"facecolor": PAPER, "alpha": 0.8, "edgecolor": "none", "pad": 0.8},
            )  # fmt: skip
    axes.set_xticks(range(len(scales)), [plain(scale.title, 24) for scale in scales])
    axes.tick_params(axis="x", labelcolor=INK)
    axes.set_xlim(-0.1, len(scales) - 0.6)
    axes.set_yticks([])
    axes.spines["bottom"].set_visible(False)
