"""What stands where on a report's page: ``sections`` of figures and tables, ``card`` and ``facts``.

Everything here is plain data for the template (``report.html.j2``), and text is still as it was
found: the template escapes it. A figure that no run has a metric for is left out, and its section
names it; a section's table has a column a run.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from evert.trainers.reporting.figures import panels as figures
from evert.trainers.reporting.figures.panels import Panel
from evert.trainers.reporting.run import SUCCESS_NAMES, TRAIN, Run, differing
from evert.trainers.reporting.text import count, dollars, duration, score, shorten
from evert.trainers.reporting.tokens import Prices, Tokens

LONGEST_VALUE = 160
"""Characters of a setting that are shown."""


@dataclass(frozen=True)
class Figure:
    """A drawn figure."""

    file: str
    """Name of the PNG file, with its ending."""
    png: bytes
    alt: str
    """What it shows, for those who do not see it."""


@dataclass(frozen=True)
class Table:
    """Rows of a name, and a text a run."""

    rows: list[tuple[str, list[str]]]
    differ: frozenset[str] = frozenset()
    """Names of rows to stand out."""


@dataclass(frozen=True)
class Section:
    """A part of the page under a heading."""

    name: str
    title: str
    about: str
    figures: list[Figure] = field(default_factory=list)
    table: Table | None = None
    missing: str = ""
    """What is not shown, in one line; empty if there is all."""


@dataclass(frozen=True)
class Card:
    """A run at a glance."""

    label: str
    model: str
    score: tuple[str, str] | None
    """Held-out reward before and after; None where it was not measured before."""
    score_about: str
    lines: list[tuple[str, str]]


# -- a run at a glance ---------------------------------------------------------------------------


def card(run: Run, label: str, tokens: Tokens | None, prices: Prices) -> Card:
    """The headline figures of a run."""
    scores = {how: _before_and_after(run, how) for how in ("temperature_1", "greedy")}
    lines = [("steps", _steps(run))]
    if scores["greedy"]:
        lines.insert(0, ("greedy", " → ".join(scores["greedy"])))
    lines.append(("time of the steps", duration(run.seconds)))
    if tokens:
        lines.append(("tokens sampled", count(tokens.sampled)))
        if (cost := prices.cost(tokens)) is not None:
            lines.append(("cost", dollars(cost)))
    model = run.settings.get("model_name") or "model not recorded"
    about = "mean reward on held-out tasks, temperature 1"
    return Card(label, str(model), scores["temperature_1"], about, lines)


def _steps(run: Run) -> str:
    """Steps done; of how many, unless a resumed run was given more."""
    done, planned = len(run.rows), run.planned or 0
    of = f" of {planned}" if planned >= done else ""
    return f"{done}{of}" if run.finished else f"{done}{of}, not finished"


def _before_and_after(run: Run, how: str) -> tuple[str, str] | None:
    if how not in run.before:
        return None
    after = score(run.after[how]) if how in run.after else "…"
    return score(run.before[how]), after


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


# -- sections ------------------------------------------------------------------------------------


def sections(
    runs: Sequence[Run],
    labels: Sequence[str],
    smooth: float,
    counted: Sequence[Tokens | None],
    prices: Prices,
) -> list[Section]:
    """All sections with figures or tables, in the order of the page; ``counted`` are the tokens."""
    used = sorted(
        {n for n in SUCCESS_NAMES for run in runs if any(TRAIN + n in r for r in run.rows)}
    )
    success = f"Success is the agent's metric {' or '.join(used)}. " if used else ""
    draw = _Drawing(runs, labels, smooth)
    return [
        draw.section("reward", "Reward", figures.REWARD,
            "In training, an episode's mean reward at each step; held out, the same on tasks that "
            "are never trained on, before the step and after the last one. Faint lines are as "
            f"measured, bold ones smoothed with weight {smooth:g}; a few points are drawn as they "
            "are."),
        draw.section("outcomes", "Outcomes", figures.OUTCOMES,
            f"{success}A group of episodes teaches only where their rewards differ."),
        draw.section("episodes", "Episodes", figures.EPISODES,
            "How long episodes are, and how much the model says."),
        draw.section("policy", "Policy", figures.POLICY,
            "Entropy says how undecided the policy still is. The divergence between the sampler "
            "and the trainer says how exactly the two agree: it should stay near zero."),
        _time(draw),
        _tokens(counted, prices),
        draw.section("conversations", "Conversations", figures.CONVERSATIONS,
            "A conversation that only grows is one training datum. Drift counts where a history "
            "came back other than it was, which starts a new one." + _causes(runs)),
        draw.section("tools", "Tool calls", figures.TOOLS,
            "Calls that do not parse are lost in silence."),
    ]  # fmt: skip


@dataclass(frozen=True)
class _Drawing:
    """Draws panels of the same runs."""

    runs: Sequence[Run]
    labels: Sequence[str]
    smooth: float

    def section(self, name: str, title: str, panels: Sequence[Panel], about: str) -> Section:
        """A section of panels; those without data are named in its last line."""
        drawn = [figure for panel in panels if (figure := self.panel(panel))]
        there = {figure.file for figure in drawn}
        absent = [_lower(panel.title) for panel in panels if f"{panel.file}.png" not in there]
        absent = [title for title in absent if not title.endswith("by time")]
        missing = f"Not recorded, so not shown: {'; '.join(absent)}." if absent else ""
        return Section(name, title, about, drawn, missing=missing)

    def panel(self, panel: Panel) -> Figure | None:
        """A figure; None where no run has the metric."""
        curves = [run.curve(panel.key) for run in self.runs]
        if not any(curve.scores for curve in curves):
            return None
        png = figures.draw_panel(panel, curves, self.labels, self.smooth)
        ends = [
            f"{label} from {curve.scores[0]:.3g} to {curve.scores[-1]:.3g}"
            if curve.scores
            else f"{label} did not record it"
            for label, curve in zip(self.labels, curves, strict=True)
        ]
        return Figure(f"{panel.file}.png", png, f"{panel.title}: {'; '.join(ends)}.")


def _lower(title: str) -> str:
    """A title in the middle of a sentence; abbreviations keep their capitals."""
    return title if title[:2].isupper() else title[0].lower() + title[1:]


def _time(draw: _Drawing) -> Section:
    """Where the time went: a bar a run, and the figures."""
    spent = [figures.time_spent(run) for run in draw.runs]
    about = "Of the steps; loading, and held-out tasks before and after, come on top."
    section = draw.section("time", "Time", figures.TIME, about)
    known = [parts for parts in spent if parts]
    if not known:
        missing = "The split into sampling and training was not recorded, so it is not shown."
        return Section("time", "Time", about, section.figures, missing=missing)
    names = list(known[0])
    rows = [("all steps", [duration(run.seconds) for run in draw.runs])]
    for name in names:
        rows.append((name, [_part(parts, name) for parts in spent]))
    bars = Figure(
        f"{figures.SPENT}.png",
        figures.draw_time(spent, draw.labels),
        "Where the time went: the same figures as in the table.",
    )
    return Section("time", "Time", about, [bars, *section.figures], Table(rows), section.missing)


def _part(parts: dict[str, float] | None, name: str) -> str:
    if parts is None:
        return "not recorded"
    return f"{duration(parts[name])} ({100 * parts[name] / (sum(parts.values()) or 1):.0f} %)"


def _tokens(counted: Sequence[Tokens | None], prices: Prices) -> Section:
    """What went through the model, and what that costs."""
    about = "Training and the held-out scores on the way; those before and after are not counted."
    if not any(counted):
        missing = "Not recorded, so not shown: tokens."
        return Section("tokens", "Tokens and cost", about, missing=missing)
    rows = [
        ("given to the model (prefill)", [count(t.prefill) if t else "not known" for t in counted]),
        ("sampled", [count(t.sampled) if t else "not known" for t in counted]),
        ("trained on", [_trained(t) for t in counted]),
    ]
    missing = "No prices were given, so no cost is shown."
    if prices.given:
        costs = [prices.cost(t) if t else None for t in counted]
        rows.append(("cost", [dollars(c) if c is not None else "not known" for c in costs]))
        named = ", ".join(f"{name} ${price:g}" for name, price in prices.given.items())
        about += f" Dollars per million tokens: {named}."
        missing = ""
    return Section("tokens", "Tokens and cost", about, table=Table(rows), missing=missing)


def _trained(tokens: Tokens | None) -> str:
    if tokens is None or tokens.trained is None:
        return "not known"
    if tokens.is_estimate:
        return f"about {count(float(f'{tokens.trained:.3g}'))}"
    return count(tokens.trained)


def _causes(runs: Sequence[Run]) -> str:
    """The causes of drift that any run saw, as a sentence; empty if none."""
    prefix = f"{TRAIN}drift/"
    causes = sorted({k.removeprefix(prefix) for r in runs for row in r.rows for k in row
                     if k.startswith(prefix)})  # fmt: skip
    return f" Causes seen: {', '.join(causes)}." if causes else ""
