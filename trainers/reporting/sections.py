"""Makes the sections of a report's page: figures, tables, and a line on what is missing.

A figure (``panels.py``) that no run has a metric for is left out, and its section names it. Tables
have a column per run, with text that is not escaped yet. Figures are drawn into the report's
folder; the text around them is in the template (``report.html.j2``).
"""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from evert.trainers.episodes.failures import shortened
from evert.trainers.reporting.figures.bars import draw_time
from evert.trainers.reporting.figures.curves import FEW, draw_panel
from evert.trainers.reporting.figures.formatting import count, dollars, duration, shorten, show
from evert.trainers.reporting.figures.metrics import Curve, time_spent
from evert.trainers.reporting.figures.style import save
from evert.trainers.reporting.panels import (
    BY_TIME,
    GAMES_OWN,
    PANELS,
    Panel,
    own_metrics,
    own_panels,
)
from evert.trainers.reporting.run import HELD_OUT_SUCCESS, SUCCESS, Run
from evert.trainers.reporting.tokens import (
    HELD_OUT_ROLLOUTS,
    ROLLOUTS,
    Tokens,
    cost,
    rewards_error,
    rollout_files,
)
from evert.trainers.rundir.metrics import HELD_OUT_REWARD, TRAIN_REWARD

TIME_SPENT = "time_spent.png"
UNTOLD = ("log_path",)
"""Settings that differ between any two runs, so they are uninformative."""
LONGEST_VALUE = 160
"""Maximum characters shown of a setting."""


@dataclass(frozen=True)
class Table:
    """Rows of a name, and a text per run."""

    rows: list[tuple[str, list[str]]]
    differ: frozenset[str] = frozenset()
    """Names of rows to highlight."""


@dataclass(frozen=True)
class Report:
    """The input of a report."""

    runs: Sequence[Run]
    labels: Sequence[str]
    """A name for each run."""
    tokens: Sequence[Tokens | None]
    """Of each run; None if its metrics do not have them."""
    prices: Mapping[str, float]
    """Dollars per million tokens, by the names of ``Tokens``."""
    smooth: float
    """Weight of the past in bold lines, from 0 to below 1."""
    out: Path
    """The folder that figures are drawn into."""


@dataclass(frozen=True)
class Section:
    """The content of a section."""

    figures: dict[str, str]
    """Name of the PNG file in the report's folder -> its description."""
    table: Table | None = None
    missing: str = ""
    """What is not shown, in one line; empty if nothing is missing."""


def sections(report: Report) -> dict[str, Section]:
    """Return the sections, by their names in the template."""
    by_name = {name: _draw_section(report, panels) for name, panels in PANELS.items()}
    by_name[GAMES_OWN] = _draw_section(
        report, own_panels(own_metrics(metric_names(report.runs, "")))
    )
    if not by_name[GAMES_OWN].figures:
        del by_name[GAMES_OWN]
    outcomes, time = _outcomes(report, by_name["outcomes"]), _time(report, by_name["time"])
    return {**by_name, "outcomes": outcomes, "time": time, "tokens": _tokens(report)}


def metric_names(runs: Sequence[Run], prefix: str) -> list[str]:
    """Return the names of the runs' metrics that have a prefix, without the prefix."""
    keys = {key for run in runs for row in run.rows for key in row if key.startswith(prefix)}
    return sorted(key.removeprefix(prefix) for key in keys)


def _draw_section(report: Report, panels: Mapping[str, Panel]) -> Section:
    figures, absent = {}, []
    for title, (file, unit, key) in panels.items():
        curves = [reward_curve(run, key) for run in report.runs]
        by_time = title.endswith(BY_TIME)
        if any(curve.steps for curve in curves):
            figures[f"{file}.png"] = f"{title}: {unit}{'' if by_time else ', by training step'}"
            lines = list(zip(report.labels, curves, strict=True))
            panel = draw_panel(title, unit, lines, by_clock=by_time, smooth=report.smooth)
            save(panel, report.out / f"{file}.png")
        elif not by_time and key not in (SUCCESS, HELD_OUT_SUCCESS):  # the section's text has them
            absent.append(title if title[:2].isupper() else title[0].lower() + title[1:])
    missing = f"Not recorded, so not shown: {'; '.join(absent)}." if absent else ""
    return Section(figures, missing=missing)


def reward_curve(run: Run, key: str) -> Curve:
    """Return a metric by step; the two rewards have intervals, if there are few points."""
    curve = run.curve(key)
    name = {TRAIN_REWARD: ROLLOUTS, HELD_OUT_REWARD: HELD_OUT_ROLLOUTS}.get(key)
    if name is None or len(curve.steps) >= FEW:
        return curve
    offset = int(key == TRAIN_REWARD)
    files = {step + offset: path for step, path in rollout_files(run.path, name).items()}
    errors = {step: rewards_error(path) for step, path in files.items()}
    if (final := run.after.get("temperature_1")) and not offset and curve.steps:
        errors[curve.steps[-1]] = final.reward_error
    return replace(curve, errors=[errors.get(step) or math.nan for step in curve.steps])


def _outcomes(report: Report, section: Section) -> Section:
    if not any(run.failures.count or run.skipped for run in report.runs):
        return section
    commonest = [run.failures.commonest for run in report.runs]
    rows = [
        ("failed in training", [run.failures.summary() for run in report.runs]),
        ("most frequent failure", [shortened(f.error) if f else "none" for f in commonest]),
        ("batches skipped", [count(run.skipped) for run in report.runs]),
    ]
    return Section(section.figures, Table(rows), section.missing)


def _time(report: Report, section: Section) -> Section:
    spent = [time_spent(run.rows) for run in report.runs]
    recorded_parts = next((parts for parts in spent if parts), None)
    if recorded_parts is None:
        missing = "The split into sampling and training was not recorded, so it is not shown."
        return Section(section.figures, missing=missing)
    rows = [("all steps", [duration(run.seconds) for run in report.runs])]
    rows += [(name, [_part(parts, name) for parts in spent]) for name in recorded_parts]
    save(draw_time(report.labels, spent), report.out / TIME_SPENT)
    bars = {TIME_SPENT: "Where the time went: the same numbers as in the table."}
    return Section({**bars, **section.figures}, Table(rows), section.missing)


def _part(parts: Mapping[str, float] | None, name: str) -> str:
    if parts is None:
        return "not recorded"
    return f"{duration(parts[name])} ({100 * parts[name] / (sum(parts.values()) or 1):.0f} %)"


def _tokens(report: Report) -> Section:
    if not any(report.tokens):
        return Section({}, missing="Not recorded, so not shown: tokens.")
    rows = [
        ("given to the model (prefill)", [count(t and t.prefill) for t in report.tokens]),
        ("sampled", [count(t and t.sample) for t in report.tokens]),
        ("trained on", [_trained_tokens(t) for t in report.tokens]),
    ]
    if not report.prices:
        return Section({}, Table(rows), "No prices were given, so no cost is shown.")
    rows.append(("cost", [dollars(t and cost(t, report.prices)) for t in report.tokens]))
    return Section({}, Table(rows))


def _trained_tokens(tokens: Tokens | None) -> str:
    if tokens is None or tokens.train is None or not tokens.is_estimate:
        return count(tokens and tokens.train)
    return f"about {count(float(f'{tokens.train:.3g}'))}"


# -- facts and settings ----------------------------------------------------------------------------


def differing_settings(runs: Sequence[Run]) -> list[str]:
    """Return the settings in which runs differ, among the runs that record a setting."""
    keys = dict.fromkeys(key for run in runs for key in run.settings if key not in UNTOLD)
    return [
        key
        for key in keys
        if len({repr(run.settings[key]) for run in runs if key in run.settings}) > 1
    ]


def labels(runs: Sequence[Run]) -> list[str]:
    """Return a unique name for each run.

    It is what was trained, if that is unique; else with the settings that differ, if there are at
    most two and that is unique; else the folder's name, numbered if it repeats.
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


def facts(runs: Sequence[Run]) -> Table:
    """Return the facts of the runs: settings that differ, machine, versions, command and so on."""
    table = settings(runs)
    rows = {name: values for name, values in table.rows if name in table.differ}
    for name, fact in _FACTS.items():
        values = [shorten(fact(run), 3 * LONGEST_VALUE) for run in runs]
        if any(values):
            rows.setdefault(name, values)
    differing = [name for name, values in rows.items() if len(set(values)) > 1]
    return Table(list(rows.items()), frozenset(differing) - {"started", "command", "folder"})


def _engine(run: Run) -> str:
    engine = run.facts.get("engine")
    if not isinstance(engine, dict):
        return ""
    where = engine.get("device") or engine.get("base_url") or "Tinker"
    size = f", {count(engine['parameters'])} parameters" if engine.get("parameters") else ""
    return f"{engine.get('engine')} on {where}{size}, trains {engine.get('trains')}"


def _facts_text(run: Run, name: str) -> str:
    parts = run.facts.get(name)
    return ", ".join(f"{k} {v}" for k, v in parts.items()) if isinstance(parts, dict) else ""


_FACTS: Mapping[str, Callable[[Run], str]] = {
    "agent": lambda run: str(run.settings.get("agent") or run.name),
    "model_name": lambda run: str(run.settings.get("model_name") or ""),
    "ran on": _engine,
    "machine": lambda run: _facts_text(run, "machine"),
    "versions": lambda run: _facts_text(run, "versions"),
    "git revision": lambda run: str(run.facts.get("git") or ""),
    "started": lambda run: str(run.facts.get("started") or ""),
    "command": lambda run: shlex.join(map(str, run.facts.get("command") or ())),
    "folder": lambda run: str(run.path),
}
"""Name -> the text from a run's record; empty if the record has none."""


def settings(runs: Sequence[Run]) -> Table:
    """Return all settings; those in which the runs differ come first."""
    differing_keys = differing_settings(runs)
    keys = dict.fromkeys([*differing_keys, *(key for run in runs for key in run.settings)])
    rows = [
        (key, [shorten(str(run.settings.get(key, "not recorded")), LONGEST_VALUE) for run in runs])
        for key in keys
    ]
    return Table(rows, frozenset(differing_keys))
