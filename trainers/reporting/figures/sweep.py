"""The figure of a sweep: parallel coordinates, a line a run from value to value to its objective.

Lists have their values at even distances, ranges a scale, logarithmic where the range is. The
colour is the objective; the best runs are drawn last, and the best one is bold.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evert.trainers.reporting.figures.curves import save
from evert.trainers.sweeping.record import Run
from evert.trainers.sweeping.space import Axis, Choices, Plan, Range, Value, show

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TICKS = 5
"""Most labels on a linear axis, about."""
ROOM = 0.05
"""Of an axis, between two labels."""


@dataclass(frozen=True)
class Scale:
    """One vertical axis: labels and where they are, from 0 at the bottom to 1 at the top."""

    title: str
    ticks: tuple[tuple[float, str], ...]
    axis: Axis

    def place(self, value: Value) -> float:
        """Where a value is."""
        if isinstance(self.axis, Choices):
            return _even(self.axis.values.index(value), len(self.axis.values))
        return _along(self.axis, float(value or 0))


def scale_of(axis: Axis) -> Scale:
    """The scale of a searched setting."""
    if isinstance(axis, Choices):
        labels = [show(value) for value in axis.values]
        places = [_even(number, len(labels)) for number in range(len(labels))]
        return Scale(axis.key, tuple(zip(places, labels, strict=True)), axis)
    ticks = _decades(axis) if axis.log else _round_numbers(axis)
    return Scale(axis.key, tuple((_along(axis, tick), show(float(tick))) for tick in ticks), axis)


def _even(number: int, count: int) -> float:
    return number / (count - 1) if count > 1 else 0.5


def _along(axis: Range, value: float) -> float:
    if axis.log:
        return log10(value / axis.low) / log10(axis.high / axis.low)
    return (value - axis.low) / (axis.high - axis.low)


def _decades(axis: Range) -> list[float]:
    """The ends and the powers of ten between them."""
    powers = [10.0**power for power in range(ceil(log10(axis.low)), floor(log10(axis.high)) + 1)]
    return _with_ends(axis, powers)


def _round_numbers(axis: Range) -> list[float]:
    from matplotlib.ticker import MaxNLocator

    ticks = MaxNLocator(TICKS, integer=axis.integer).tick_values(axis.low, axis.high)
    return _with_ends(axis, [float(tick) for tick in ticks])


def _with_ends(axis: Range, ticks: Sequence[float]) -> list[float]:
    """Those ticks that leave room for the labels of the ends, and the ends."""
    between = [tick for tick in ticks if axis.low < tick < axis.high]
    apart = [tick for tick in between if ROOM <= _along(axis, tick) <= 1 - ROOM]
    return [axis.low, *apart, axis.high]


def draw_sweep(path: Path, plan: Plan, runs: Sequence[Run]) -> None:
    """Draw the completed runs of a sweep.

    Args:
        path: Of the PNG.
        plan: Of the sweep.
        runs: All of them; at least one has an objective.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    done = sorted((run.objective, run.number, run) for run in runs if run.objective is not None)
    low, high = done[0][0], done[-1][0]
    if low == high:
        low, high = low - 0.5, high + 0.5
    scales = [
        *(scale_of(axis) for axis in plan.axes),
        scale_of(Range(plan.objective, low, high, log=False, integer=False)),
    ]
    figure = Figure(figsize=(2.0 + 1.9 * len(scales), 4.2), dpi=130, layout="constrained")
    axes: Any = figure.subplots()
    for objective, _, run in done:
        values = [*(run.values[axis.key] for axis in plan.axes), objective]
        heights = [scale.place(value) for scale, value in zip(scales, values, strict=True)]
        best = run is done[-1][2]
        axes.plot(
            range(len(scales)), heights, lw=3.0 if best else 1.2, alpha=1.0 if best else 0.75,
            color=colormaps["viridis"]((objective - low) / (high - low)),
        )  # fmt: skip
    _rule(axes, scales)
    figure.suptitle(f"{plan.name}: {len(done)} runs, {plan.search} search", fontsize=11)
    save(figure, path)


def _rule(axes: "Axes", scales: Sequence[Scale]) -> None:
    """Draw the vertical axes with their labels, and nothing else."""
    for number, scale in enumerate(scales):
        axes.axvline(number, color="#333333", lw=0.8, zorder=3)
        for height, label in scale.ticks:
            axes.annotate(
                label, (number, height), xytext=(4, 0), textcoords="offset points",
                va="center", fontsize=8, zorder=4,
                bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.6},
            )  # fmt: skip
    axes.set_xticks(range(len(scales)), [scale.title for scale in scales])
    axes.set_xlim(-0.15, len(scales) - 0.55)
    axes.set_yticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
