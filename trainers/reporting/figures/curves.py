"""Figures of lines: a metric by step or by time.

    draw_panel   a metric, a line a run: the figures of a report's page
    draw_run     one run's rewards, by step and by time
    draw_games   several games, a panel each, over seeds

Many points are drawn raw and faint, and smoothed and bold; few as they are, with markers.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from evert.trainers.reporting.figures.style import (
    COLOURS,
    DASHES,
    INK,
    TITLE,
    Axes,
    clock_unit,
    head,
    name_ends,
    new_figure,
    plain,
    short_names,
)
from evert.trainers.reporting.metrics import Curve

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REWARD = "mean reward of an episode, temperature 1"
TRAIN_COLOUR, HELD_OUT_COLOUR = COLOURS[5], COLOURS[1]
FEW = 10
"""Curves with fewer points are drawn as they are, with markers."""
MOST_POINTS = 200
"""Points of the raw line; more are averaged, as they would fall on the same pixels."""


def draw_panel(
    title: str,
    unit: str,
    lines: Sequence[tuple[str, Curve]],
    *,
    by_clock: bool = False,
    smooth: float = 0.0,
) -> "Figure":
    """Draw a metric of each run.

    Args:
        title: What is measured.
        unit: In what.
        lines: Name and curve of each run; the names are left out where there is one run. A curve
            without points has no line, and its colour is kept free.
        by_clock: Whether over time; else over steps.
        smooth: Weight of the past in the bold lines.
    """
    figure, (axes,) = new_figure(4.8, 3.1)
    shown = short_names([name for name, _ in lines])
    styled = [
        (name, curve, COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS)])
        for number, (name, (_, curve)) in enumerate(zip(shown, lines, strict=True))
    ]
    _draw(axes, styled, by_clock=by_clock, smooth=smooth)
    head(axes, title, unit)
    return figure


def draw_run(title: str, train: Curve, held_out: Curve) -> "Figure":
    """Draw one run's rewards: by step on the left, by time on the right."""
    figure, (by_step, by_clock) = new_figure(9.6, 3.6, 2)
    by_clock.sharey(by_step)
    lines = [
        ("in training", train, TRAIN_COLOUR, "-"),
        ("held out", held_out, HELD_OUT_COLOUR, "-"),
    ]
    _draw(by_step, [("", *rest) for _, *rest in lines])
    _draw(by_clock, lines, by_clock=True)
    head(by_step, title, REWARD)
    return figure


def draw_games(title: str, games: Mapping[str, Sequence[tuple[Curve, Curve]]]) -> "Figure":
    """Draw several runs of several games: a panel a game, a thin line a seed, the mean bold."""
    figure, panels = new_figure(4.8 * len(games), 3.6, len(games))
    for axes, (game, runs) in zip(panels, games.items(), strict=True):
        for kind, colour in enumerate((TRAIN_COLOUR, HELD_OUT_COLOUR)):
            for run in runs:
                axes.plot(run[kind].steps, run[kind].scores, color=colour, lw=0.8, alpha=0.45)
        _draw(axes, _rewards(*(mean([run[kind] for run in runs]) for kind in (0, 1))))
        head(axes, f"{game}, {len(runs)} seed{'s' * (len(runs) != 1)}", REWARD)
    figure.suptitle(plain(title, 110), x=0.01, ha="left", fontsize=TITLE, color=INK)
    return figure


def _rewards(
    train: Curve, held_out: Curve, *, named: bool = True
) -> list[tuple[str, Curve, str, str]]:
    return [
        ("in training" if named else "", train, TRAIN_COLOUR, "-"),
        ("held out" if named else "", held_out, HELD_OUT_COLOUR, "-"),
    ]


def _draw(
    axes: Axes,
    lines: Sequence[tuple[str, Curve, str, str]],
    *,
    by_clock: bool = False,
    smooth: float = 0.0,
) -> None:
    """Draw lines of a name (empty: not shown), a curve, a colour and dashes each."""
    from matplotlib.ticker import MaxNLocator

    unit, size = "step", 1.0
    if by_clock:
        unit, size = clock_unit(max((c.seconds[-1] for _, c, _, _ in lines if c.steps), default=0))
    ends = []
    for name, curve, colour, dashes in lines:
        x = [seconds / size for seconds in curve.seconds] if by_clock else curve.steps
        y = curve.scores
        if len(y) < FEW:
            axes.plot(x, y, color=colour, ls=dashes, lw=2, marker="o", ms=4.5)
        else:
            x, bold = thinned(x), thinned(smoothed(y, smooth))
            if smooth:
                axes.plot(x, thinned(y), color=colour, lw=1, alpha=0.3)
            axes.plot(x, bold, color=colour, ls=dashes, lw=2)
            y = bold
        if name and y:
            ends.append((name, x[-1], y[-1], colour))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=not by_clock))
    axes.set_xlabel(f"{unit} of training" if by_clock else "training step", loc="right")
    name_ends(axes, ends)


def smoothed(values: Sequence[float], weight: float) -> list[float]:
    """The exponential moving average, each from the values up to there alone.

    Args:
        values: In order.
        weight: Of the past, from 0 (no smoothing) to below 1.
    """
    average, known, out = 0.0, 0.0, []
    for value in values:
        average = weight * average + (1 - weight) * value
        known = weight * known + (1 - weight)
        out.append(average / known)
    return out


def thinned(values: Sequence[float], most: int = MOST_POINTS) -> list[float]:
    """Means of neighbours, so that there are at most that many."""
    size = -(-len(values) // most)
    chunks = [values[start : start + size] for start in range(0, len(values), max(1, size))]
    return [sum(chunk) / len(chunk) for chunk in chunks]


def mean(runs: Sequence[Curve]) -> Curve:
    """The mean at the steps that every run has."""
    shared = set.intersection(*(set(run.steps) for run in runs)) if runs else set()
    found = Curve()
    for step in sorted(shared):
        scores = [run.scores[run.steps.index(step)] for run in runs]
        found.add(step, 0.0, sum(scores) / len(scores))
    return found
