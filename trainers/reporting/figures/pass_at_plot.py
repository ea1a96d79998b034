"""Plot pass@k against k, to show how much more a model can solve with more attempts."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from evert.trainers.episodes.scores import Score
from evert.trainers.reporting.figures import style
from evert.trainers.reporting.figures.colours import COLOURS


def draw_pass_at(title: str, scores: Sequence[Score]) -> Figure:
    """Plot pass@k against k, with 95% intervals and one line per model and split."""
    figure, (axes,) = style.new_figure(6.0, 3.6)
    names = style.short_names([f"{score.model}, {score.split}" for score in scores])
    looks = [(colour, dashes) for dashes in style.DASHES for colour in COLOURS]
    ends = []
    for name, score, (colour, dashes) in zip(names, scores, looks, strict=False):
        ks = sorted(score.pass_at)
        estimates = [score.pass_at[k] for k in ks]
        values = [estimate.value for estimate in estimates]
        errors = [
            [max(0.0, estimate.value - estimate.low) for estimate in estimates],
            [max(0.0, estimate.high - estimate.value) for estimate in estimates],
        ]
        axes.errorbar(ks, values, errors, color=colour, ls=dashes, marker="o", ms=4.5, capsize=3)
        ends.append((name, ks[-1], values[-1], colour))
    axes.set_xscale("log", base=2)
    axes.set_xticks(ks, [str(k) for k in ks])
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("k", loc="right")
    style.name_ends(axes, ends)
    style.head(axes, title, "share of tasks solved within k episodes, with 95 % interval")
    return figure
