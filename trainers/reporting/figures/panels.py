"""The figures of a report, as PNG: what is drawn, and how.

A panel is one metric by step or by wall clock, a line a run; ``draw_panel`` draws it.
``draw_time`` draws where the time went, a bar a run. Colours are those of Okabe and Ito, which
people who do not see all colours can tell apart; from the seventh run on, the dashes differ, too.

Figures are small and single, so that they can be read on a phone; they have few colours, so that a
page of them is small; and their paper is white: in the dark, the page's style inverts them.
Matplotlib's ``Figure`` is used without ``pyplot``.
"""

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from evert.trainers.reporting.metrics import Curve
from evert.trainers.reporting.run import EPISODE_TOKENS, HELD_OUT_SUCCESS, SUCCESS, TRAIN, Run
from evert.trainers.runs.folder import HELD_OUT_REWARD, TRAIN_REWARD

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DASHES = ("-", "--")
MOST_RUNS = 12
"""Runs that lines can tell apart: as many as there are colours and dashes."""
FEW = 10
"""Curves with fewer points are drawn as they are, with markers."""
MOST_POINTS = 200
"""Points of the raw line; more are averaged, as they would fall on the same pixels."""
PNG_COLOURS = 64


PAPER, INK, GRID = "#ffffff", "#3f4751", "#e4e8ec"
RUN_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
PART_COLOURS = ("#22405c", "#5b86a8", "#a5c0d6", "#dbe4ec")
"""Of the parts of the time."""


@dataclass(frozen=True)
class Panel:
    """A metric to draw."""

    file: str
    """Name of its PNG file, without the ending."""
    title: str
    unit: str
    """What the vertical axis says."""
    key: str
    by_clock: bool = False


REWARD = (
    Panel("reward", "Reward in training", "mean reward of an episode", TRAIN_REWARD),
    Panel("reward_clock", "Reward in training, by time", "mean reward of an episode",
          TRAIN_REWARD, by_clock=True),
    Panel("held_out", "Reward held out", "mean reward, temperature 1", HELD_OUT_REWARD),
    Panel("held_out_clock", "Reward held out, by time", "mean reward, temperature 1",
          HELD_OUT_REWARD, by_clock=True),
)  # fmt: skip
OUTCOMES = (
    Panel("success", "Success in training", "share of episodes", SUCCESS),
    Panel("held_out_success", "Success held out", "share of episodes", HELD_OUT_SUCCESS),
    Panel("mixed_groups", "Groups that teach", "share whose rewards differ",
          f"{TRAIN}by_group/frac_mixed"),
)  # fmt: skip
EPISODES = (
    Panel("turns", "Turns", "model calls an episode", f"{TRAIN}turns_per_episode"),
    Panel("tokens_a_turn", "Tokens sampled a turn", "tokens", f"{TRAIN}ac_tokens_per_turn"),
    Panel("tokens_an_episode", "Tokens sampled an episode", "tokens", EPISODE_TOKENS),
)
POLICY = (
    Panel("entropy", "Entropy", "nats a token", "optim/entropy"),
    Panel("kl", "KL, sampler to trainer", "nats a token", "optim/kl_sample_train_v1"),
    Panel("kl_base", "KL, policy to reference", "nats a token", "kl_policy_base"),
)
TIME = (Panel("seconds_a_step", "Time a step", "seconds", "time/total"),)
CONVERSATIONS = (
    Panel("drift", "Drift", "breaks a trajectory", f"{TRAIN}drift"),
    Panel("data", "Data a trajectory", "lineages", f"{TRAIN}lineages"),
)
TOOLS = (
    Panel("tool_calls", "Tool calls", "calls an episode", f"{TRAIN}tools/calls"),
    Panel("tool_calls_unparsed", "Tool calls that did not parse", "calls an episode",
          f"{TRAIN}tools/calls_unparsed"),
    Panel("tool_markup", "Tool markup left in text", "replies an episode",
          f"{TRAIN}tools/markup_in_text"),
)  # fmt: skip
SPENT = "time_spent"
"""File of the figure that ``draw_time`` draws."""
TIME_PARTS = {
    "sampling": "time/sampling",
    "training": "time/train_step",
    "held-out scores": "time/run_evaluations_parallel",
}
"""What a step's time is spent on, by the Cookbook's metric; what is left is "the rest"."""


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


def time_spent(run: Run) -> dict[str, float] | None:
    """Seconds by part, "the rest" included; None where a run did not record all of them.

    Where sampling and training overlap, the Cookbook does not record them apart.
    """
    if not run.rows or not all(run.total(TIME_PARTS[p]) for p in ("sampling", "training")):
        return None
    parts = {name: run.total(key) for name, key in TIME_PARTS.items()}
    return {**parts, "the rest": max(0.0, run.seconds - sum(parts.values()))}


# -- drawing -------------------------------------------------------------------------------------


def draw_panel(
    panel: Panel, curves: Sequence[Curve], labels: Sequence[str], smooth: float
) -> bytes:
    """Draw a metric of each run, as PNG.

    Args:
        panel: What is drawn.
        curves: Of the runs; those without points have no line, and keep their colour.
        labels: Names of the runs, for the legend; a single run needs none.
        smooth: Weight of the past in the bold lines.
    """
    figure, axes = _figure(legend_rows=len(labels) if len(labels) > 1 else 0)
    unit, seconds = "step", 1.0
    if panel.by_clock:
        unit, seconds = _clock_unit(max((c.seconds[-1] for c in curves if c.seconds), default=0))
    lines = []
    for number, curve in enumerate(curves):
        places = [s / seconds for s in curve.seconds] if panel.by_clock else curve.steps
        lines.append(_draw_curve(axes, places, curve.scores, number, smooth))
    axes.set_title(panel.title, loc="left", fontsize=11, fontweight="bold", color=INK)
    axes.set(xlabel=f"{unit} of training" if panel.by_clock else "training step", ylabel=panel.unit)
    if not panel.by_clock:
        axes.xaxis.get_major_locator().set_params(integer=True)
    if len(labels) > 1:
        _legend(figure, lines, labels)
    return _png(figure)


def draw_time(spent: Sequence[dict[str, float] | None], labels: Sequence[str]) -> bytes:
    """Draw where the time of each run went, as PNG; runs that did not record it have no bar."""
    rows = [(label, parts) for label, parts in zip(labels, spent, strict=True) if parts]
    figure, axes = _figure(legend_rows=1, height=1.1 + 0.42 * len(rows))
    unit, seconds = _clock_unit(max(sum(parts.values()) for _, parts in rows))
    bars, starts = [], [0.0] * len(rows)
    for colour, name in zip(PART_COLOURS, rows[0][1], strict=True):
        widths = [parts[name] / seconds for _, parts in rows]
        bars.append(axes.barh(range(len(rows)), widths, 0.62, starts, color=colour))
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    shown = [_plain(label, 24) for label, _ in rows] if len(labels) > 1 else [""] * len(rows)
    axes.set_yticks(range(len(rows)), shown)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.set_title("Where the time went", loc="left", fontsize=11, fontweight="bold",
                   color=INK)  # fmt: skip
    axes.set_xlabel(unit)
    _legend(figure, bars, list(rows[0][1]), columns=4)
    return _png(figure)


def _figure(legend_rows: int, height: float = 3.0) -> tuple["Figure", Any]:
    from matplotlib.figure import Figure

    size = (4.8, height + 0.2 * legend_rows)
    figure = Figure(figsize=size, dpi=200, layout="constrained", facecolor=PAPER)
    axes = figure.subplots()
    axes.set_facecolor(PAPER)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(colors=INK, labelsize=9, length=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set(color=INK, fontsize=9.5)
        axis.offsetText.set(color=INK, fontsize=9)
    return figure, axes


def _draw_curve(
    axes: Any,
    places: Sequence[float],
    scores: Sequence[float],
    number: int,
    smooth: float,
) -> Any:
    """Raw and faint, smoothed and bold; the bold line is returned."""
    colour = RUN_COLOURS[number % len(RUN_COLOURS)]
    style: dict[str, Any] = {"color": colour, "ls": DASHES[number // len(RUN_COLOURS)]}
    if len(scores) < FEW:
        return axes.plot(places, scores, lw=2, marker="o", ms=4.5, **style)[0]
    places = thinned(places)
    if smooth:
        axes.plot(places, thinned(scores), lw=1, alpha=0.3, color=colour)
    return axes.plot(places, thinned(smoothed(scores, smooth)), lw=2, **style)[0]


def _legend(
    figure: "Figure", handles: Sequence[Any], labels: Sequence[str], columns: int = 1
) -> None:
    figure.legend(
        list(handles), [_plain(label, 48) for label in labels], loc="outside lower left",
        ncols=columns, frameon=False, fontsize=9, labelcolor=INK,
        handlelength=1.4, columnspacing=1.2, labelspacing=0.3,
    )  # fmt: skip


def _plain(label: str, most: int) -> str:
    """A label that Matplotlib takes for text: no formula, and not one to leave out."""
    label = label if len(label) <= most else f"{label[: most - 1]}…"
    return label.lstrip("_").replace("$", r"\$") or "run"


def _clock_unit(seconds: float) -> tuple[str, float]:
    """The unit that suits a length of time, and its seconds."""
    units = (("seconds", 1.0), ("minutes", 60.0), ("hours", 3600.0), ("days", 86400.0))
    for (name, size), (_, next_size) in pairwise(units):
        if seconds < 2 * next_size:
            return name, size
    return units[-1]


def _png(figure: "Figure") -> bytes:
    """The figure with a palette: a third of the size."""
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a run's name in a script without font
        figure.savefig(drawn, format="png")
    with Image.open(drawn) as image:
        image.convert("RGB").quantize(PNG_COLOURS, dither=Image.Dither.NONE).save(
            small, format="png", optimize=True
        )
    return small.getvalue()
