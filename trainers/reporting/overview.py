"""The top of a report's page: a run at a glance (``card``), ``facts`` and ``settings``.

Everything here is plain data for the template (``report.html.j2``), and text is still as it was
found: the template escapes it. A table has a column a run.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evert.trainers.reporting.formatting import count, dollars, duration, score, shorten
from evert.trainers.reporting.run import Run, differing
from evert.trainers.reporting.tokens import Prices, Tokens

LONGEST_VALUE = 160
"""Characters of a setting that are shown."""


@dataclass(frozen=True)
class Table:
    """Rows of a name, and a text a run."""

    rows: list[tuple[str, list[str]]]
    differ: frozenset[str] = frozenset()
    """Names of rows to stand out."""


@dataclass(frozen=True)
class Card:
    """A run at a glance."""

    label: str
    model: str
    score: tuple[str, str] | None
    """Held-out reward before and after; None where it was not measured before."""
    score_about: str
    lines: list[tuple[str, str]]


def card(run: Run, label: str, tokens: Tokens | None, prices: Prices) -> Card:
    """The headline figures of a run."""
    lines = []
    if greedy := _before_and_after(run, "greedy"):
        lines.append(("greedy", " → ".join(greedy)))
    if reached := run.after.get("temperature_1") or run.before.get("temperature_1"):
        lines += [
            ("success after" if run.after else "success before", f"{100 * reached.success:.0f} %"),
            ("95 % interval", f"{100 * reached.low:.0f} to {100 * reached.high:.0f} %"),
            ("held-out episodes", count(reached.episodes)),
        ]
    lines += [("steps", _steps(run)), ("time of the steps", duration(run.seconds))]
    if tokens:
        lines.append(("tokens sampled", count(tokens.sampled)))
        if (cost := prices.cost(tokens)) is not None:
            lines.append(("cost", dollars(cost)))
    model = run.settings.get("model_name") or "model not recorded"
    about = "mean reward on held-out tasks, temperature 1"
    return Card(label, str(model), _before_and_after(run, "temperature_1"), about, lines)


def _steps(run: Run) -> str:
    """Steps done; of how many, unless a resumed run was given more."""
    done, planned = len(run.rows), run.planned or 0
    of = f" of {planned}" if planned >= done else ""
    return f"{done}{of}" if run.finished else f"{done}{of}, not finished"


def _before_and_after(run: Run, how: str) -> tuple[str, str] | None:
    if how not in run.before:
        return None
    return score(run.before[how].reward), score(run.after[how].reward) if how in run.after else "…"


def facts(runs: Sequence[Run]) -> Table:
    """What the runs are: settings in which they differ, what they ran on, how they were started."""
    rows = {name: values for name, values in settings(runs).rows if name in differing(runs)}
    for name, fact in _FACTS.items():
        values = [shorten(fact(run), 3 * LONGEST_VALUE) for run in runs]
        if any(values):
            rows.setdefault(name, values)
    told_apart = [name for name, values in rows.items() if len(set(values)) > 1]
    return Table(list(rows.items()), frozenset(told_apart) - _ALWAYS_DIFFER)


def _engine(run: Run) -> str:
    engine = run.facts.get("engine")
    if not isinstance(engine, dict):
        return ""
    where = (
        f"{engine.get('engine')} on {engine.get('device') or engine.get('base_url') or 'Tinker'}"
    )
    size = f", {count(engine['parameters'])} parameters" if engine.get("parameters") else ""
    return f"{where}{size}, trains {engine.get('trains')}"


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
_ALWAYS_DIFFER = frozenset({"started", "command", "folder"})


def settings(runs: Sequence[Run]) -> Table:
    """All settings; those in which the runs differ first."""
    changed = differing(runs)
    keys = dict.fromkeys([*changed, *(key for run in runs for key in run.settings)])
    rows = [
        (key, [shorten(str(run.settings.get(key, "not recorded")), LONGEST_VALUE) for run in runs])
        for key in keys
    ]
    return Table(rows, frozenset(changed))
