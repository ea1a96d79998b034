"""Figures of bars.

    draw_splits      success of models, train against held out, with 95 % intervals
    draw_categories  success by category, a bar a model, with 95 % intervals
    draw_time        where the time of runs went

Bars lie, so that names of any length can be read; shares, intervals and numbers stand beside them.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from evert.trainers.reporting.figures.style import (
    COLOURS,
    INK,
    PAPER,
    SMALL,
    SOFT,
    Axes,
    clock_unit,
    head,
    new_figure,
    plain,
    short_names,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from evert.trainers.evaluation.scores import Score

SPLITS = {"train": "seen in training", "test": "held out"}
PARTS = ("#22405c", "#5b86a8", "#a5c0d6", "#dbe4ec")
"""Colours of the parts of the time."""
ROW = 0.25
"""Height of a bar and its room, in inches."""
LONGEST = 28
"""Characters of a name at a bar."""


def draw_splits(title: str, scores: Sequence["Score"]) -> "Figure":
    """Draw a group of bars a model, a bar a split."""
    return _draw_scores(
        title, scores, lambda score: _name(score.model), lambda s: SPLITS.get(s.split, s.split)
    )


def draw_categories(title: str, scores: Sequence["Score"]) -> "Figure":
    """Draw a group of bars a category, a bar a model; both splits together."""
    return _draw_scores(title, scores, lambda s: s.category, lambda score: _name(score.model))


def _name(model: str) -> str:
    """A path's last part: the run's name."""
    return model if "://" in model else Path(model).name


def _draw_scores(
    title: str,
    scores: Sequence["Score"],
    group_of: Callable[["Score"], str],
    bar_of: Callable[["Score"], str],
) -> "Figure":
    """Draw shares as bars, those of a group together; a group of one bar has its name only."""
    groups: dict[str, list[Score]] = {}
    for score in scores:
        groups.setdefault(group_of(score), []).append(score)
    kinds = list(dict.fromkeys(bar_of(score) for score in scores))
    rows: list[tuple[float, str, Score]] = []
    headings: list[tuple[float, str]] = []
    place = 0.0
    for group, members in groups.items():
        if len(kinds) > 1:
            headings.append((place, group))
            place += 1
        for score in members:
            rows.append((place, bar_of(score) if len(kinds) > 1 else group, score))
            place += 1
        place += 0.3 if len(kinds) > 1 else 0
    figure, (axes,) = new_figure(7.2, 1.1 + ROW * place)
    for where, _, score in rows:
        _draw_share(axes, where, score, COLOURS[kinds.index(bar_of(score)) % len(COLOURS)])
    for where, name in headings:
        axes.text(0, where, plain(name, 60), va="center", fontsize=SMALL, fontweight="bold",
                  color=INK)  # fmt: skip
    axes.set_yticks([where for where, *_ in rows], [plain(name, LONGEST) for _, name, _ in rows])
    axes.set_ylim(place - 0.4, -0.7)
    _frame(axes)
    axes.set_xlim(0, 1)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"])
    head(axes, title, "share of episodes that succeeded, with its 95 % interval")
    return figure


def _draw_share(axes: Axes, place: float, score: "Score", colour: str) -> None:
    """A bar, the interval over it, and both as figures at the right."""
    axes.barh(place, score.success, 0.7, color=colour)
    below, above = score.success - score.low, score.high - score.success
    axes.errorbar(score.success, place, xerr=[[max(0.0, below)], [max(0.0, above)]], fmt="none",
                  ecolor=INK, elinewidth=1.2, capsize=2.5, clip_on=False)  # fmt: skip
    style = {"xycoords": ("axes fraction", "data"), "va": "center", "fontsize": SMALL}
    share, low, high = (f"{100 * value:.0f}" for value in (score.success, score.low, score.high))
    axes.annotate(f"{share} %", (1.12, place), ha="right", color=INK, weight="bold", **style)
    axes.annotate(f"{low} to {high} %, n = {score.episodes}", (1.14, place), color=SOFT, **style)


def draw_time(labels: Sequence[str], spent: Sequence[Mapping[str, float] | None]) -> "Figure":
    """Draw where the time of each run went: a bar a run, its parts one after another.

    Args:
        labels: Names of the runs; not shown where there is one.
        spent: Seconds by part, in one order; None: not recorded, so no bar.
    """
    names = short_names(labels)
    rows = [(name, parts) for name, parts in zip(names, spent, strict=True) if parts]
    totals = [sum(parts.values()) or 1.0 for _, parts in rows]
    figure, (axes,) = new_figure(4.8, 1.35 + 0.36 * len(rows))
    unit, size = clock_unit(max(totals))
    starts = [0.0] * len(rows)
    for colour, ink, part in zip(PARTS, (PAPER, PAPER, INK, INK), rows[0][1], strict=True):
        seconds = [parts[part] for _, parts in rows]
        widths = [each / size for each in seconds]
        bars = axes.barh(range(len(rows)), widths, 0.7, starts, color=colour, label=part)
        shown = [f"{100 * each / total:.0f} %" if each > max(totals) / 9 else ""
                 for each, total in zip(seconds, totals, strict=True)]  # fmt: skip
        axes.bar_label(bars, shown, label_type="center", color=ink, fontsize=SMALL)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.set_yticks(range(len(rows)), [plain(name, LONGEST) for name, _ in rows])
    axes.invert_yaxis()
    _frame(axes)
    head(axes, "Where the time went", f"{unit} of training")
    figure.legend(loc="outside lower left", ncols=len(PARTS), frameon=False, fontsize=SMALL,
                  labelcolor=INK, handlelength=1, columnspacing=1)  # fmt: skip
    return figure


def _frame(axes: Axes) -> None:
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", labelcolor=INK)
