"""What stands where on a report's page: ``sections`` of figures and tables.

``METRICS`` says which figures there are, and of which metric; one that no run has a metric for is
left out, and its section names it. Figures are drawn into the report's folder. Everything else is
plain data for the template (``report.html.j2``), which escapes it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from evert.trainers.reporting.figures.bars import draw_time
from evert.trainers.reporting.figures.curves import draw_panel
from evert.trainers.reporting.figures.style import save
from evert.trainers.reporting.formatting import count, dollars, duration
from evert.trainers.reporting.metrics import TRAIN, time_spent
from evert.trainers.reporting.overview import Table
from evert.trainers.reporting.run import (
    EPISODE_TOKENS,
    HELD_OUT_SUCCESS,
    SUCCESS,
    SUCCESS_NAMES,
    Run,
)
from evert.trainers.reporting.tokens import Prices, Tokens
from evert.trainers.runs.folder import HELD_OUT_REWARD, TRAIN_REWARD


@dataclass(frozen=True)
class Panel:
    """A metric to draw."""

    file: str
    """Name of its PNG file, without the ending."""
    title: str
    unit: str
    key: str
    by_clock: bool = False


@dataclass(frozen=True)
class Figure:
    """A drawn figure."""

    file: str
    """Name of the PNG file in the report's folder."""
    alt: str
    """What it shows, for those who do not see it."""


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
class Report:
    """What all sections are made of."""

    runs: Sequence[Run]
    labels: Sequence[str]
    """A name for each run."""
    tokens: Sequence[Tokens | None]
    """Of each run; None where its metrics do not tell."""
    prices: Prices
    smooth: float
    """Weight of the past in bold lines, from 0 to below 1."""
    out: Path
    """The folder that figures are drawn into."""


METRICS = {
    "reward": (
        Panel("reward", "Reward in training", "mean reward of an episode", TRAIN_REWARD),
        Panel("reward_clock", "Reward in training, by time", "mean reward of an episode",
              TRAIN_REWARD, by_clock=True),
        Panel("held_out", "Reward held out", "mean reward of an episode, temperature 1",
              HELD_OUT_REWARD),
        Panel("held_out_clock", "Reward held out, by time",
              "mean reward of an episode, temperature 1", HELD_OUT_REWARD, by_clock=True),
    ),
    "outcomes": (
        Panel("success", "Success in training", "share of episodes", SUCCESS),
        Panel("held_out_success", "Success held out", "share of episodes", HELD_OUT_SUCCESS),
        Panel("mixed_groups", "Groups that teach", "share of groups whose rewards differ",
              f"{TRAIN}by_group/frac_mixed"),
    ),
    "episodes": (
        Panel("turns", "Turns", "model calls an episode", f"{TRAIN}turns_per_episode"),
        Panel("tokens_a_turn", "Tokens sampled a turn", "tokens", f"{TRAIN}ac_tokens_per_turn"),
        Panel("tokens_an_episode", "Tokens sampled an episode", "tokens", EPISODE_TOKENS),
    ),
    "policy": (
        Panel("entropy", "Entropy", "nats a token", "optim/entropy"),
        Panel("kl", "KL, sampler to trainer", "nats a token", "optim/kl_sample_train_v1"),
        Panel("kl_base", "KL, policy to reference", "nats a token", "kl_policy_base"),
    ),
    "time": (Panel("seconds_a_step", "Time a step", "seconds", "time/total"),),
    "conversations": (
        Panel("drift", "Drift", "breaks a trajectory", f"{TRAIN}drift"),
        Panel("data", "Data a trajectory", "lineages", f"{TRAIN}lineages"),
    ),
    "tools": (
        Panel("tool_calls", "Tool calls", "calls an episode", f"{TRAIN}tools/calls"),
        Panel("tool_calls_unparsed", "Tool calls that did not parse", "calls an episode",
              f"{TRAIN}tools/calls_unparsed"),
        Panel("tool_markup", "Tool markup left in text", "replies an episode",
              f"{TRAIN}tools/markup_in_text"),
    ),
}  # fmt: skip
"""The panels of each section."""
TIME_SPENT = "time_spent.png"


def sections(report: Report) -> list[Section]:
    """All sections with figures or tables, in the order of the page."""
    return [
        _drawn(report, "reward", "Reward",
            "In training, an episode's mean reward at each step; held out, the same on tasks that "
            "are never trained on, before the step and after the last one. Faint lines are as "
            f"measured, bold ones smoothed with weight {report.smooth:g}; a few points are drawn "
            "as they are."),
        _drawn(report, "outcomes", "Outcomes",
            f"{_success(report.runs)}A group of episodes teaches only where their rewards differ."),
        _drawn(report, "episodes", "Episodes",
            "How long episodes are, and how much the model says."),
        _drawn(report, "policy", "Policy",
            "Entropy says how undecided the policy still is. The divergence between the sampler "
            "and the trainer says how exactly the two agree: it should stay near zero."),
        _time(report),
        _tokens(report),
        _drawn(report, "conversations", "Conversations",
            "A conversation that only grows is one training datum. Drift counts where a history "
            "came back other than it was, which starts a new one." + _causes(report.runs)),
        _drawn(report, "tools", "Tool calls", "Calls that do not parse are lost in silence."),
    ]  # fmt: skip


def _drawn(report: Report, name: str, title: str, about: str) -> Section:
    """A section of panels; those without data are named in its last line."""
    drawn = {panel.title: _draw(report, panel) for panel in METRICS[name]}
    absent = [_lower(t) for t, f in drawn.items() if f is None and not t.endswith("by time")]
    missing = f"Not recorded, so not shown: {'; '.join(absent)}." if absent else ""
    return Section(name, title, about, [f for f in drawn.values() if f], missing=missing)


def _draw(report: Report, panel: Panel) -> Figure | None:
    """Draw a panel; None where no run has its metric."""
    curves = [run.curve(panel.key) for run in report.runs]
    if not any(curve.steps for curve in curves):
        return None
    figure = Figure(f"{panel.file}.png", f"{panel.title}: {panel.unit}, by training step")
    if panel.by_clock:
        figure = Figure(figure.file, f"{panel.title}: {panel.unit}")
    lines = list(zip(report.labels, curves, strict=True))
    drawn = draw_panel(
        panel.title, panel.unit, lines, by_clock=panel.by_clock, smooth=report.smooth
    )
    save(drawn, report.out / figure.file)
    return figure


def _lower(title: str) -> str:
    """A title in the middle of a sentence; abbreviations keep their capitals."""
    return title if title[:2].isupper() else title[0].lower() + title[1:]


def _time(report: Report) -> Section:
    """Where the time went: a bar a run, and the figures."""
    about = "Of the steps; loading, and held-out tasks before and after, come on top."
    section = _drawn(report, "time", "Time", about)
    spent = [time_spent(run.rows) for run in report.runs]
    known = next((parts for parts in spent if parts), None)
    if known is None:
        missing = "The split into sampling and training was not recorded, so it is not shown."
        return Section("time", "Time", about, section.figures, missing=missing)
    rows = [("all steps", [duration(run.seconds) for run in report.runs])]
    rows += [(name, [_part(parts, name) for parts in spent]) for name in known]
    save(draw_time(report.labels, spent), report.out / TIME_SPENT)
    bars = Figure(TIME_SPENT, "Where the time went: the same figures as in the table.")
    return Section("time", "Time", about, [bars, *section.figures], Table(rows), section.missing)


def _part(parts: dict[str, float] | None, name: str) -> str:
    if parts is None:
        return "not recorded"
    return f"{duration(parts[name])} ({100 * parts[name] / (sum(parts.values()) or 1):.0f} %)"


def _tokens(report: Report) -> Section:
    """What went through the model, and what that costs."""
    about = "Training and the held-out scores on the way; those before and after are not counted."
    counted, prices = report.tokens, report.prices
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


def _success(runs: Sequence[Run]) -> str:
    """The metrics that are called success, as a sentence; empty if there are none."""
    used = sorted({name for name in _recorded(runs, TRAIN) if name in SUCCESS_NAMES})
    return f"Success is the agent's metric {' or '.join(used)}. " if used else ""


def _causes(runs: Sequence[Run]) -> str:
    """The causes of drift that any run saw, as a sentence; empty if none."""
    causes = sorted(set(_recorded(runs, f"{TRAIN}drift/")))
    return f" Causes seen: {', '.join(causes)}." if causes else ""


def _recorded(runs: Sequence[Run], prefix: str) -> Iterator[str]:
    """What metrics with a prefix are called after it."""
    for run in runs:
        for row in run.rows:
            yield from (key.removeprefix(prefix) for key in row if key.startswith(prefix))
