"""What stands in the sections of a report's page: figures, tables, and what is missing.

``PANELS`` says which figures there are, and of which metric; one that no run has a metric for is
left out, and its section names it. Figures are drawn into the report's folder; the words around
them are the template's (``report.html.j2``).
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from evert.envs.games import metrics_of
from evert.trainers.episodes.failures import shortened
from evert.trainers.reporting.comparison import Table
from evert.trainers.reporting.figures.bars import draw_time
from evert.trainers.reporting.figures.curves import FEW, draw_panel
from evert.trainers.reporting.figures.formatting import count, dollars, duration
from evert.trainers.reporting.figures.metrics import HELD_OUT, TRAIN, Curve, time_spent
from evert.trainers.reporting.figures.style import save
from evert.trainers.reporting.run import EPISODE_TOKENS, HELD_OUT_SUCCESS, SUCCESS, Run
from evert.trainers.reporting.tokens import (
    HELD_OUT_ROLLOUTS,
    ROLLOUTS,
    Tokens,
    cost,
    rewards_error,
    rollout_files,
)
from evert.trainers.rundir.metrics import FAILED, HELD_OUT_REWARD, TRAIN_REWARD

BY_TIME = ", by time"
Panel: TypeAlias = tuple[str, str, str]
PANELS: Mapping[str, Mapping[str, Panel]] = {
    "reward": {
        "Reward in training": ("reward", "mean reward of an episode", TRAIN_REWARD),
        f"Reward in training{BY_TIME}": ("reward_clock", "mean reward of an episode", TRAIN_REWARD),
        "Reward held out": ("held_out", "mean reward, temperature 1", HELD_OUT_REWARD),
        f"Reward held out{BY_TIME}":
            ("held_out_clock", "mean reward, temperature 1", HELD_OUT_REWARD),
    },
    "outcomes": {
        "Success in training": ("success", "share of episodes", SUCCESS),
        "Success held out": ("held_out_success", "share of episodes", HELD_OUT_SUCCESS),
        "Groups that teach":
            ("mixed_groups", "share whose rewards differ", f"{TRAIN}by_group/frac_mixed"),
        "Episodes that failed": ("failed", "share of episodes", FAILED),
    },
    "episodes": {
        "Turns": ("turns", "model calls an episode", f"{TRAIN}turns_per_episode"),
        "Tokens sampled a turn": ("tokens_a_turn", "tokens", f"{TRAIN}ac_tokens_per_turn"),
        "Tokens sampled an episode": ("tokens_an_episode", "tokens", EPISODE_TOKENS),
    },
    "policy": {
        "Entropy": ("entropy", "nats a token", "optim/entropy"),
        "KL, sampler to trainer": ("kl", "nats a token", "optim/kl_sample_train_v1"),
        "KL, policy to reference": ("kl_base", "nats a token", "kl_policy_base"),
    },
    "time": {"Time a step": ("seconds_a_step", "seconds", "time/total")},
    "conversations": {
        "Drift": ("drift", "breaks a trajectory", f"{TRAIN}drift"),
        "Data a trajectory": ("data", "lineages", f"{TRAIN}lineages"),
    },
    "tools": {
        "Tool calls": ("tool_calls", "calls an episode", f"{TRAIN}tools/calls"),
        "Tool calls that did not parse":
            ("tool_calls_unparsed", "calls an episode", f"{TRAIN}tools/calls_unparsed"),
        "Tool markup left in text":
            ("tool_markup", "replies an episode", f"{TRAIN}tools/markup_in_text"),
    },
}  # fmt: skip
"""Section -> title of a panel -> its file without the ending, its unit, its metric."""
GAMES_OWN = "play"
"""A section of games' own metrics (``Game.metrics``); without a panel it is left out."""
TIME_SPENT = "time_spent.png"


@dataclass(frozen=True)
class Report:
    """What a report is made of."""

    runs: Sequence[Run]
    labels: Sequence[str]
    """A name for each run."""
    tokens: Sequence[Tokens | None]
    """Of each run; None where its metrics do not tell."""
    prices: Mapping[str, float]
    """Dollars per million tokens, by the names of ``Tokens``."""
    smooth: float
    """Weight of the past in bold lines, from 0 to below 1."""
    out: Path
    """The folder that figures are drawn into."""


@dataclass(frozen=True)
class Section:
    """What a section shows."""

    figures: dict[str, str]
    """Name of the PNG file in the report's folder -> what it shows, in words."""
    table: Table | None = None
    missing: str = ""
    """What is not shown, in one line; empty if there is all."""


def sections(report: Report) -> dict[str, Section]:
    """The sections by their names in the template."""
    drawn = {name: _drawn(report, panels) for name, panels in PANELS.items()}
    drawn[GAMES_OWN] = _drawn(report, _own_panels())
    if not drawn[GAMES_OWN].figures:
        del drawn[GAMES_OWN]
    outcomes, time = _outcomes(report, drawn["outcomes"]), _time(report, drawn["time"])
    return {**drawn, "outcomes": outcomes, "time": time, "tokens": _tokens(report)}


def _own_panels() -> dict[str, Panel]:
    """Figures of what the games note of how they were played."""
    panels = dict[str, Panel]()
    for name, metric in metrics_of().items():
        if "train" in metric.drawn:
            panels[metric.title] = name, metric.unit, f"{TRAIN}{name}"
        if "test" in metric.drawn:
            panels[f"{metric.title}, held out"] = f"held_out_{name}", metric.unit, HELD_OUT + name
    return panels


def _drawn(report: Report, panels: Mapping[str, Panel]) -> Section:
    figures, absent = {}, []
    for title, (file, unit, key) in panels.items():
        curves = [reward_curve(run, key) for run in report.runs]
        by_time = title.endswith(BY_TIME)
        if any(curve.steps for curve in curves):
            figures[f"{file}.png"] = f"{title}: {unit}{'' if by_time else ', by training step'}"
            lines = list(zip(report.labels, curves, strict=True))
            panel = draw_panel(title, unit, lines, by_clock=by_time, smooth=report.smooth)
            save(panel, report.out / f"{file}.png")
        elif not by_time and key not in (SUCCESS, HELD_OUT_SUCCESS):  # the section's text has these
            absent.append(title if title[:2].isupper() else title[0].lower() + title[1:])
    missing = f"Not recorded, so not shown: {'; '.join(absent)}." if absent else ""
    return Section(figures, missing=missing)


def reward_curve(run: Run, key: str) -> Curve:
    """A metric by step; of the two rewards with their intervals, where there are few points."""
    curve = run.curve(key)
    name = {TRAIN_REWARD: ROLLOUTS, HELD_OUT_REWARD: HELD_OUT_ROLLOUTS}.get(key)
    if name is None or len(curve.steps) >= FEW:
        return curve
    done = int(key == TRAIN_REWARD)
    files = {step + done: path for step, path in rollout_files(run.path, name).items()}
    found = {step: rewards_error(path) for step, path in files.items()}
    if (final := run.after.get("temperature_1")) and not done and curve.steps:
        found[curve.steps[-1]] = final.reward_error
    return replace(curve, errors=[found.get(step) or math.nan for step in curve.steps])


def _outcomes(report: Report, drawn: Section) -> Section:
    if not any(run.failures.count or run.skipped for run in report.runs):
        return drawn
    commonest = [run.failures.commonest for run in report.runs]
    rows = [
        ("failed in training", [run.failures.summary() for run in report.runs]),
        ("the commonest failure", [shortened(one.error) if one else "none" for one in commonest]),
        ("batches skipped", [count(run.skipped) for run in report.runs]),
    ]
    return Section(drawn.figures, Table(rows), drawn.missing)


def _time(report: Report, drawn: Section) -> Section:
    spent = [time_spent(run.rows) for run in report.runs]
    known = next((parts for parts in spent if parts), None)
    if known is None:
        missing = "The split into sampling and training was not recorded, so it is not shown."
        return Section(drawn.figures, missing=missing)
    rows = [("all steps", [duration(run.seconds) for run in report.runs])]
    rows += [(name, [_part(parts, name) for parts in spent]) for name in known]
    save(draw_time(report.labels, spent), report.out / TIME_SPENT)
    bars = {TIME_SPENT: "Where the time went: the same figures as in the table."}
    return Section({**bars, **drawn.figures}, Table(rows), drawn.missing)


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
        ("trained on", [_trained(t) for t in report.tokens]),
    ]
    if not report.prices:
        return Section({}, Table(rows), "No prices were given, so no cost is shown.")
    rows.append(("cost", [dollars(t and cost(t, report.prices)) for t in report.tokens]))
    return Section({}, Table(rows))


def _trained(tokens: Tokens | None) -> str:
    if tokens is None or tokens.train is None or not tokens.is_estimate:
        return count(tokens and tokens.train)
    return f"about {count(float(f'{tokens.train:.3g}'))}"
