"""Which metrics to plot for a run, on the page and as PNG files."""

from collections.abc import Collection, Mapping
from typing import TypeAlias

from evert.envs.games import Metric, games
from evert.trainers.reporting.figures.metrics import HELD_OUT, TRAIN
from evert.trainers.reporting.run import EPISODE_TOKENS, HELD_OUT_SUCCESS, SUCCESS
from evert.trainers.rundir.metrics import FAILED, HELD_OUT_REWARD, MIXED_GROUPS, TRAIN_REWARD

BY_TIME = ", by time"
Panel: TypeAlias = tuple[str, str, str]
PANELS: Mapping[str, Mapping[str, Panel]] = {
    "reward": {
        "Reward in training": ("reward", "mean reward of an episode", TRAIN_REWARD),
        f"Reward in training{BY_TIME}": ("reward_clock", "mean reward of an episode", TRAIN_REWARD),
        "Held-out reward": ("held_out", "mean reward, temperature 1", HELD_OUT_REWARD),
        f"Held-out reward{BY_TIME}":
            ("held_out_clock", "mean reward, temperature 1", HELD_OUT_REWARD),
    },
    "outcomes": {
        "Success in training": ("success", "share of episodes", SUCCESS),
        "Held-out success": ("held_out_success", "share of episodes", HELD_OUT_SUCCESS),
        "Groups to learn from":
            ("mixed_groups", "share of groups whose rewards differ", MIXED_GROUPS),
        "Episodes that failed": ("failed", "share of episodes", FAILED),
    },
    "episodes": {
        "Turns": ("turns", "model calls per episode", f"{TRAIN}turns_per_episode"),
        "Tokens sampled per turn": ("tokens_a_turn", "tokens", f"{TRAIN}ac_tokens_per_turn"),
        "Tokens sampled per episode": ("tokens_an_episode", "tokens", EPISODE_TOKENS),
    },
    "policy": {
        "Entropy": ("entropy", "nats per token", "optim/entropy"),
        "KL, sampler to trainer": ("kl", "nats per token", "optim/kl_sample_train_v1"),
        "KL, policy to reference": ("kl_base", "nats per token", "kl_policy_base"),
    },
    "time": {"Time per step": ("seconds_a_step", "seconds", "time/total")},
    "conversations": {
        "Drift": ("drift", "breaks per trajectory", f"{TRAIN}drift"),
        "Lineages per trajectory": ("data", "datums", f"{TRAIN}lineages"),
    },
    "tools": {
        "Tool calls": ("tool_calls", "calls per episode", f"{TRAIN}tools/calls"),
        "Tool calls that could not be parsed":
            ("tool_calls_unparsed", "calls per episode", f"{TRAIN}tools/calls_unparsed"),
        "Tool markup left in text":
            ("tool_markup", "replies per episode", f"{TRAIN}tools/markup_in_text"),
    },
}  # fmt: skip
"""For each section and title, a panel: its file name without suffix, its unit and its metric."""
GAMES_OWN = "play"
"""Section for metrics defined by games (``Game.metrics``)."""


def own_metrics(keys: Collection[str]) -> dict[str, Metric]:
    """Return all metrics of the games for which ``keys`` contains at least one metric."""
    names = {key.removeprefix("test/").removeprefix(TRAIN) for key in keys}
    metrics = dict[str, Metric]()
    for game in games().values():
        if names & game.metrics.keys():
            metrics |= game.metrics
    return metrics


def panels_of(keys: Collection[str]) -> dict[str, Mapping[str, Panel]]:
    """Return panels by section and title. Games with a metric in ``keys`` add their own panels."""
    return {**PANELS, GAMES_OWN: own_panels(own_metrics(keys))}


def own_panels(metrics: Mapping[str, Metric]) -> dict[str, Panel]:
    """Return the panels for metrics defined by games."""
    panels = dict[str, Panel]()
    for name, metric in metrics.items():
        if "train" in metric.drawn:
            panels[metric.title] = name, metric.unit, f"{TRAIN}{name}"
        if "test" in metric.drawn:
            panels[f"{metric.title}, held out"] = f"held_out_{name}", metric.unit, HELD_OUT + name
    return panels
