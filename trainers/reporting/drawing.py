"""``draw_figures``: draw a PNG file for each metric, with one line per run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evert.trainers.reporting.figures.bars import draw_time
from evert.trainers.reporting.figures.curves import FEW, draw_panel
from evert.trainers.reporting.figures.formatting import show
from evert.trainers.reporting.figures.metrics import Curve, time_spent
from evert.trainers.reporting.figures.style import save
from evert.trainers.reporting.panels import BY_TIME, panels_of
from evert.trainers.reporting.run import Run

TIME_SPENT = "time_spent.png"
UNINFORMATIVE = ("log_path",)
"""Settings to ignore, because they always differ between runs."""
Stages = Sequence[Mapping[str, Any]]
"""The steps of a run, as ``Run.intervals`` expects them."""


def draw_figures(runs: Sequence[tuple[Run, Stages]], smooth: float, out: Path) -> None:
    """Draw all plots for the given runs, and save them to a folder.

    Args:
        runs: At most ``MOST_LINES`` runs, each with its steps.
        smooth: Smoothing factor of the bold lines, at least 0 and less than 1.
        out: Output folder.
    """
    names = labels([run for run, _ in runs])
    keys = {key for run, _ in runs for row in run.rows for key in row}
    for panels in panels_of(keys).values():
        for title, (file, unit, key) in panels.items():
            curves = [reward_curve(run, key, stages) for run, stages in runs]
            if any(curve.steps for curve in curves):
                lines = list(zip(names, curves, strict=True))
                by_clock = title.endswith(BY_TIME)
                panel = draw_panel(title, unit, lines, by_clock=by_clock, smooth=smooth)
                save(panel, out / f"{file}.png")
    spent = [time_spent(run.rows) for run, _ in runs]
    if any(spent):
        save(draw_time(names, spent), out / TIME_SPENT)


def reward_curve(run: Run, key: str, stages: Stages) -> Curve:
    """Return a metric by step. A reward with few points also gets confidence intervals."""
    curve, halves = run.curve(key), run.intervals(key, stages)
    if not halves or len(curve.steps) >= FEW:
        return curve
    return replace(curve, errors=[halves.get(step, math.nan) for step in curve.steps])


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a unique label for each run.

    If all runs have different names, the labels are these names. Otherwise, we add the settings
    that differ, if there are at most two such settings and the labels become unique. As a last
    resort, we use the folders' names, and add numbers to names that occur more than once.
    """
    keys = differing_settings(runs)
    for label_keys in [], keys if len(keys) <= 2 else []:
        texts = [[f"{key}={show(run.settings.get(key))}" for key in label_keys] for run in runs]
        candidates = [", ".join([run.name, *parts]) for run, parts in zip(runs, texts, strict=True)]
        if len(set(candidates)) == len(runs):
            return candidates
    names = [run.path.resolve().name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: number + 1].count(name)})"
        for number, name in enumerate(names)
    ]


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings whose recorded values differ between the runs."""
    keys = dict.fromkeys(key for run in runs for key in run.settings if key not in UNINFORMATIVE)
    return [
        key
        for key in keys
        if len({repr(run.settings[key]) for run in runs if key in run.settings}) > 1
    ]
