"""What runs are, and where they differ: ``labels``, and the tables ``facts`` and ``settings``.

Tables are plain data for the template (``report.html.j2``), a column a run, and text is still as it
was found: the template escapes it.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evert.trainers.reporting.figures.formatting import count, shorten, show
from evert.trainers.reporting.run import Run

UNTOLD = ("log_path",)
"""Settings in which any two runs differ, and which say nothing."""
LONGEST_VALUE = 160
"""Characters of a setting that are shown."""


def differing(runs: Sequence[Run]) -> list[str]:
    """The settings in which runs differ, in the order in which they are recorded.

    A setting that a run does not record, as one of an older version, is not known to differ.
    """
    keys = dict.fromkeys(key for run in runs for key in run.settings if key not in UNTOLD)
    return [
        key
        for key in keys
        if len({repr(run.settings[key]) for run in runs if key in run.settings}) > 1
    ]


def labels(runs: Sequence[Run]) -> list[str]:
    """A name for each run that no other one has.

    What was trained, if that tells them apart; with one or two settings, if those do; or the
    folders' names, numbered where they repeat.
    """
    keys = differing(runs)
    for shown in [], keys if len(keys) <= 2 else []:
        told = [[f"{key}={show(run.settings.get(key))}" for key in shown] for run in runs]
        named = [", ".join([run.name, *each]) for run, each in zip(runs, told, strict=True)]
        if len(set(named)) == len(runs):
            return named
    names = [run.path.resolve().name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: number + 1].count(name)})"
        for number, name in enumerate(names)
    ]


@dataclass(frozen=True)
class Table:
    """Rows of a name, and a text a run."""

    rows: list[tuple[str, list[str]]]
    differ: frozenset[str] = frozenset()
    """Names of rows to stand out."""


def facts(runs: Sequence[Run]) -> Table:
    """What the runs are: settings in which they differ, what they ran on, how they were started."""
    rows = {name: values for name, values in settings(runs).rows if name in differing(runs)}
    for name, fact in _FACTS.items():
        values = [shorten(fact(run), 3 * LONGEST_VALUE) for run in runs]
        if any(values):
            rows.setdefault(name, values)
    told_apart = [name for name, values in rows.items() if len(set(values)) > 1]
    return Table(list(rows.items()), frozenset(told_apart) - {"started", "command", "folder"})


def _engine(run: Run) -> str:
    engine = run.facts.get("engine")
    if not isinstance(engine, dict):
        return ""
    where = engine.get("device") or engine.get("base_url") or "Tinker"
    size = f", {count(engine['parameters'])} parameters" if engine.get("parameters") else ""
    return f"{engine.get('engine')} on {where}{size}, trains {engine.get('trains')}"


def _listed(run: Run, name: str) -> str:
    parts = run.facts.get(name)
    return ", ".join(f"{k} {v}" for k, v in parts.items()) if isinstance(parts, dict) else ""


_FACTS: Mapping[str, Callable[[Run], str]] = {
    "agent": lambda run: str(run.settings.get("agent") or run.name),
    "model_name": lambda run: str(run.settings.get("model_name") or ""),
    "ran on": _engine,
    "machine": lambda run: _listed(run, "machine"),
    "versions": lambda run: _listed(run, "versions"),
    "git revision": lambda run: str(run.facts.get("git") or ""),
    "started": lambda run: str(run.facts.get("started") or ""),
    "command": lambda run: shlex.join(map(str, run.facts.get("command") or ())),
    "folder": lambda run: str(run.path),
}
"""Name -> what a run's record says; empty where it says nothing."""


def settings(runs: Sequence[Run]) -> Table:
    """All settings; those in which the runs differ first."""
    changed = differing(runs)
    keys = dict.fromkeys([*changed, *(key for run in runs for key in run.settings)])
    rows = [
        (key, [shorten(str(run.settings.get(key, "not recorded")), LONGEST_VALUE) for run in runs])
        for key in keys
    ]
    return Table(rows, frozenset(changed))
