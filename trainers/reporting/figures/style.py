"""Style shared by all plots (colours, sizes, labels at the ends of lines), and saving as PNG.

Matplotlib is only used in this folder. We avoid ``pyplot``, because it looks for a display and
keeps all figures in memory.
"""

import io
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from matplotlib.figure import Figure
from PIL import Image

from evert.trainers.reporting.figures.colours import COLOURS
from evert.trainers.system.files import write_whole

Axes: TypeAlias = Any
"""Matplotlib's ``Axes``, whose methods are mostly untyped."""
End: TypeAlias = tuple[str, float, float, str]
"""The end point of a line: its name, x, y and colour."""

PAPER, INK, SOFT, GRID = "#ffffff", "#1d2329", "#56616c", "#e4e8ec"
DASHES = ("-", "--")
MOST_LINES = len(COLOURS) * len(DASHES)
"""Maximum number of lines that can be distinguished."""
FEW_LINES = 6
"""If a plot has at most this many lines, their labels can have several rows of text."""
TITLE, SMALL = 11, 8.5
"""Font sizes, in points."""
UNITS = (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0))
PNG_COLOURS = 64


def new_figure(width: float, height: float, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Create an empty figure with panels side by side. Sizes are in inches."""
    figure = Figure(figsize=(width, height), dpi=200, layout="constrained", facecolor=PAPER)
    panels = list(figure.subplots(1, columns, squeeze=False)[0])
    for axes in panels:
        axes.grid(color=GRID, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.spines["bottom"].set_color(GRID)
        axes.tick_params(colors=SOFT, labelsize=SMALL, length=0)
        axes.xaxis.label.set(color=SOFT, fontsize=SMALL)
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:.4g}".replace("-", "\u2212"))
    return figure, panels


def head(axes: Axes, title: str, about: str) -> None:
    """Add a title and, below it, a description of the quantity and its unit."""
    axes.set_title(plain(title, 90), loc="left", fontsize=TITLE, weight="bold", color=INK, pad=20)
    axes.annotate(plain(about, 110), (0, 1), xytext=(0, 7), xycoords="axes fraction",
                  textcoords="offset points", fontsize=SMALL, color=SOFT)  # fmt: skip


def name_ends(axes: Axes, ends: Sequence[End]) -> None:
    """Label the lines next to the panel. Call this last, because drawing changes the scale."""
    axes.autoscale_view()
    height = axes.get_figure().get_size_inches()[1] - 0.9  # excluding titles and labels
    names = [name.replace(", ", ",\n") if len(ends) <= FEW_LINES else name for name, *_ in ends]
    rows = max((name.count("\n") + 1 for name in names), default=1)
    at = [float(axes.transLimits.transform((x, y))[1]) for _, x, y, _ in ends]
    places = apart(at, rows * SMALL * 1.25 / 72 / height)
    for name, (_, x, y, colour), place in zip(names, ends, places, strict=True):
        if name:
            line = {"arrowstyle": "-", "color": colour, "lw": 1, "ls": ":"}
            axes.annotate(
                "\n".join(plain(row, 24) for row in name.split("\n")), (x, y), (1.05, place),
                textcoords="axes fraction", va="center", fontsize=SMALL, color=INK,
                annotation_clip=False,
                arrowprops={**line, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 2},
            )  # fmt: skip


def apart(places: Sequence[float], least: float) -> list[float]:
    """Move positions so that they are at least ``least`` apart, within [0, 1] if possible."""
    moved, low, high = sorted(places), -1.0, 1.0
    for number, place in enumerate(moved):
        low = moved[number] = max(place, low + least)
    for number, place in reversed(list(enumerate(moved))):
        moved[number] = min(place, high)
        high = moved[number] - least
    order = sorted(range(len(places)), key=places.__getitem__)
    return [place for _, place in sorted(zip(order, moved, strict=True))]


def plain(text: str, limit: int) -> str:
    """Cut the middle out of long text, and escape dollar signs, which Matplotlib treats as math."""
    if len(text) > limit:
        half = (limit - 1) // 2
        text = f"{text[: limit - 1 - half]}…{text[-half:]}"
    return text.replace("$", r"\$")


def short_names(names: Sequence[str]) -> list[str]:
    """Remove the parts that all names have in common. A single name becomes empty."""
    if len(names) < 2:
        return [""] * len(names)
    parts = [name.split(", ") for name in names]
    shared = set.intersection(*map(set, parts))
    distinct_names = [
        ", ".join(part for part in name_parts if part not in shared) for name_parts in parts
    ]
    return [short or name for short, name in zip(distinct_names, names, strict=True)]


def clock_unit(seconds: float) -> tuple[str, float]:
    """Return a suitable unit for a duration, and that unit's length in seconds."""
    return next((unit for unit in UNITS if seconds >= 2 * unit[1]), ("seconds", 1.0))


def save(figure: Figure, path: Path) -> None:
    """Save a figure as PNG, atomically. Using few colours reduces the file size to a third."""
    png, small_png = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # the font may not have all characters
        figure.savefig(png, format="png")
    image = Image.open(png).convert("RGB").quantize(PNG_COLOURS, dither=Image.Dither.NONE)
    image.save(small_png, format="png", optimize=True)
    write_whole(path, small_png.getvalue())
