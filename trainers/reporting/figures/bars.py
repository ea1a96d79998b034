"""Bar charts of models' success rates with 95% intervals, and of how runs spent their time.

The bars are horizontal to leave room for long names. Rates, intervals and counts are shown next to
them.
"""

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from evert.trainers.episodes.scores import Score, share_text
from evert.trainers.reporting.figures import style
from evert.trainers.reporting.figures.colours import COLOURS
from evert.trainers.reporting.figures.style import INK, SMALL, SOFT, Axes, plain

SPLITS = {"train": "seen in training", "test": "held out"}
PARTS = (("#22405c", "#ffffff"), ("#5b86a8", "#ffffff"), ("#a5c0d6", INK), ("#dbe4ec", INK))
"""For each segment of a time bar: its colour, and the colour of the number shown on it."""
LONGEST = 28
"""Maximum length of a bar's label."""


def draw_splits(title: str, scores: Sequence[Score]) -> Figure:
    """Draw a group of bars per model, with one bar per split."""
    splits = [SPLITS.get(score.split, score.split) for score in scores]
    return _draw_shares(title, scores, [_name(score.model) for score in scores], splits)


def draw_categories(title: str, scores: Sequence[Score]) -> Figure:
    """Draw a group of bars per category, with one bar per model. Splits are combined."""
    models = [_name(score.model) for score in scores]
    return _draw_shares(title, scores, [score.category for score in scores], models)


def _name(model: str) -> str:
    return model if "://" in model else Path(model).name


def _draw_shares(
    title: str, scores: Sequence[Score], groups: Sequence[str], bars: Sequence[str]
) -> Figure:
    colours = dict(zip(dict.fromkeys(bars), itertools.cycle(COLOURS), strict=False))
    is_grouped = len(colours) > 1
    inches = 1.1 + 0.25 * (len(scores) + 1.3 * is_grouped * len(set(groups)))
    figure, (axes,) = style.new_figure(7.2, inches)
    place, ticks = 0.0, {}
    for group in dict.fromkeys(groups):
        if is_grouped:
            axes.text(0, place, plain(group, 60), va="center", fontsize=SMALL, weight="bold", c=INK)
            place += 1
        for score, score_group, bar in zip(scores, groups, bars, strict=True):
            if score_group == group:
                _draw_share(axes, place, score, colours[bar])
                ticks[place] = plain(bar if is_grouped else group, LONGEST)
                place += 1
        place += 0.3 * is_grouped
    _lay(axes, ticks, place - 0.4)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    style.head(axes, title, "success rate, with 95 % confidence interval")
    return figure


def _draw_share(axes: Axes, place: float, score: Score, colour: str) -> None:
    axes.barh(place, score.success, 0.7, color=colour)
    ends = [[max(0.0, score.success - score.low)], [max(0.0, score.high - score.success)]]
    axes.errorbar(score.success, place, xerr=ends, fmt="none", ecolor=INK, elinewidth=1.2,
                  capsize=2.5, clip_on=False)  # fmt: skip
    look = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": SMALL}
    text = f"{share_text(score.success, score.low, score.high)}, n = {score.episodes}"
    axes.annotate(text, (1.03, place), color=SOFT, **look)


def draw_time(labels: Sequence[str], spent: Sequence[Mapping[str, float] | None]) -> Figure:
    """Draw one bar per run that shows how its time was spent. Skip runs without recorded times."""
    pairs = zip(style.short_names(labels), spent, strict=True)
    rows = [(plain(name, LONGEST), parts) for name, parts in pairs if parts]
    totals = [sum(parts.values()) or 1.0 for _, parts in rows]
    figure, (axes,) = style.new_figure(4.8, 1.35 + 0.36 * len(rows))
    unit, size = style.clock_unit(max(totals))
    starts = [0.0] * len(rows)
    for (colour, ink), part in zip(PARTS, rows[0][1], strict=True):
        seconds = [parts[part] for _, parts in rows]
        widths = [value / size for value in seconds]
        bars = axes.barh(range(len(rows)), widths, 0.7, starts, color=colour, label=part)
        shares = [f"{100 * value / total:.0f} %" if value > max(totals) / 9 else ""
                  for value, total in zip(seconds, totals, strict=True)]  # fmt: skip
        axes.bar_label(bars, shares, label_type="center", color=ink, fontsize=SMALL)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    _lay(axes, dict(enumerate(name for name, _ in rows)), len(rows) - 0.4)
    style.head(axes, "Where the time went", f"{unit} of training")
    figure.legend(loc="outside lower left", ncols=len(PARTS), frameon=False, fontsize=SMALL,
                  labelcolor=INK, handlelength=1, columnspacing=1)  # fmt: skip
    return figure


def _lay(axes: Axes, ticks: Mapping[float, str], bottom: float) -> None:
    """Label the bars and order them from top to bottom."""
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.set_ylim(bottom, -0.6)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", labelcolor=INK)
