"""Line charts of a metric over steps or time, for one or more runs.

Long curves are drawn as a faint raw line and a bold smoothed line. Short curves have markers.
"""

from collections.abc import Sequence
from typing import TypeAlias

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from evert.trainers.reporting.figures import style
from evert.trainers.reporting.figures.colours import COLOURS
from evert.trainers.reporting.figures.metrics import Curve, thinned
from evert.trainers.reporting.figures.style import DASHES, Axes, head, new_figure

Line: TypeAlias = tuple[str, Curve, str, str]
"""Name, points, colour and dash style of a line."""

REWARD = "mean reward of an episode, temperature 1"
REWARDS = (("in training", COLOURS[5]), ("held out", COLOURS[1]))
FEW = 10
"""Curves with fewer points than this are not smoothed, and have markers."""
FLAT = 10
"""Lines are considered flat if their range is at most a tenth of their largest value."""
LEAST = {"nats per token": 0.01}
"""For each unit, the smallest range that matters. Lines with a smaller range count as flat."""


def draw_panel(
    title: str,
    unit: str,
    lines: Sequence[tuple[str, Curve]],
    *,
    by_clock: bool = False,
    smooth: float = 0.0,
) -> Figure:
    """Draw one line per run. If there is only one run, it is not labelled.

    A curve without points is not drawn, but still takes up a colour. ``smooth`` is the smoothing
    factor of the bold lines.
    """
    figure, (axes,) = new_figure(4.8, 3.1)
    names = style.short_names([name for name, _ in lines])
    looks = [(colour, dashes) for dashes in DASHES for colour in COLOURS]
    styled_lines = [
        (n, curve, *look) for n, (_, curve), look in zip(names, lines, looks, strict=False)
    ]
    ends = _draw(axes, styled_lines, by_clock=by_clock, smooth=smooth)
    _settle(axes, unit, styled_lines)
    style.name_ends(axes, ends)
    head(axes, title, unit)
    return figure


def draw_run(title: str, train: Curve, held_out: Curve) -> Figure:
    """Draw a run's rewards over steps (left) and over time (right)."""
    figure, (by_step, by_clock) = new_figure(9.6, 3.6, 2)
    by_clock.sharey(by_step)
    lines = _rewards(train, held_out)
    _draw(by_step, lines)
    ends = _draw(by_clock, lines, by_clock=True)
    _settle(by_clock, REWARD, lines)
    style.name_ends(by_clock, ends)
    head(by_step, title, REWARD)
    return figure


def _rewards(*curves: Curve) -> list[Line]:
    return [(name, c, colour, "-") for (name, colour), c in zip(REWARDS, curves, strict=True)]


def _draw(
    axes: Axes, lines: Sequence[Line], *, by_clock: bool = False, smooth: float = 0.0
) -> list[style.End]:
    longest = max((curve.seconds[-1] for _, curve, *_ in lines if curve.steps), default=0)
    unit, size = style.clock_unit(longest)
    ends = []
    for name, curve, colour, dashes in lines:
        x = [seconds / size for seconds in curve.seconds] if by_clock else curve.steps
        y, look = curve.scores, {"color": colour, "ls": dashes, "lw": 2}
        if len(y) < FEW:
            axes.plot(x, y, marker="o", ms=4.5, **look)
            if curve.errors:
                axes.errorbar(x, y, curve.errors, fmt="none", ecolor=colour, lw=1, capsize=3)
        else:
            if smooth:
                axes.plot(thinned(x), thinned(y), color=colour, lw=1, alpha=0.3)
            x, y = thinned(x), thinned(smoothed(y, smooth))
            axes.plot(x, y, **look)
        if y:
            ends.append((name, x[-1], y[-1], colour))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=not by_clock))
    axes.set_xlabel(f"{unit} of training" if by_clock else "training step", loc="right")
    return ends


def _settle(axes: Axes, unit: str, lines: Sequence[Line]) -> None:
    """Set the limits of the y axis. For fractions, include 0 and 1; for flat lines, include 0.

    Confidence intervals are clipped if they would make the axis more than three times as long.
    """
    scores = [score for _, curve, *_ in lines for score in curve.scores]
    if not scores:
        return  # nothing is drawn
    (bottom, top), low, high = axes.dataLim.intervaly, min(scores), max(scores)
    size, least = max(abs(low), abs(high)), LEAST.get(unit, 0.0)
    reach = max(high - low, size)
    low, high = max(bottom, low - reach), min(top, high + reach)
    if unit.startswith("share"):
        low, high = min(low, 0.0), max(high, 1.0)
    elif high - low <= max(size / FLAT, least):
        low, high = min(low, 0.0), max(high, 0.0, least)
        high += low == high
    margin = 0.05 * (high - low)
    axes.set_ylim(low - margin, high + margin)


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """Return the exponential moving average; ``weight`` is the weight of past values."""
    average, total_weight, out = 0.0, 0.0, []
    for value in values:
        average = weight * average + (1 - weight) * value
        total_weight = weight * total_weight + (1 - weight)
        out.append(average / total_weight)
    return out


def mean(runs: Sequence[Curve]) -> Curve:
    """Return the mean over runs at each step that all runs have."""
    scores = [dict(zip(run.steps, run.scores, strict=True)) for run in runs]
    steps = sorted(set.intersection(*map(set, scores))) if scores else []
    means = [sum(curve[step] for curve in scores) / len(scores) for step in steps]
    return Curve(steps, [0.0] * len(steps), means)
