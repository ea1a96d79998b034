"""The settings of an agent loop's YAML, checked.

- name: evert                              # a row's agent_name, or verl's default_agent_loop
  _target_: evert.verl.EvertAgentLoop
  agent: my.module:agent
  renderer_name: qwen3                     # a Cookbook renderer; default: by the model's name
  branches: all                            # or last
  task: extra_info.question                # default: the path of write_dataset
  policy_names: [gpt-4o]                   # and any other episode setting of `evert train`
  limits: {max_turns: 10, max_turn_tokens: 512}
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import chz
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert.bridge.env.limits import SequenceLimits, tightest
from evert.bridge.env.options import EnvOptions, options_with_own
from evert.bridge.episode.agent import Agent
from evert.bridge.groups.group import load_agent
from evert.bridge.models.tinker_model import TinkerModel
from evert.trainers.config.arguments import UsageError, gather, read_settings
from evert.trainers.config.episode import EpisodeSettings, env_options
from evert.trainers.config.frozen_models import frozen_models

ALL, LAST = "all", "last"

_MAPPINGS = {
    "limits": "limits: {max_turns: 10}",
    "parse_error_policy": "parse_error_policy: {max_consecutive: 2}",
    "models": "models: {judge: 'https://host/v1#model'}",
}


@dataclass(frozen=True)
class Room:
    """The lengths of verl's tensors, in tokens."""

    prompt: int
    response: int
    context: int
    """Maximum tokens of a prompt and its reply together, at most ``prompt`` + ``response``."""

    @staticmethod
    def of(rollout: Any) -> "Room":
        """Return the lengths that a rollout's configuration sets."""
        total = rollout.prompt_length + rollout.response_length
        return Room(
            rollout.prompt_length,
            rollout.response_length,
            min(total, rollout.max_model_len or total),
        )


@dataclass(frozen=True)
class LoopSettings:
    """An agent loop's settings."""

    agent: Agent
    branches: str
    """ALL: each lineage is an output; LAST: only the last lineage is."""
    task: str | None
    """Path of the task in a row; None: the path of ``write_dataset``."""
    options: EnvOptions


def read_loop_settings(
    raw_settings: Mapping[str, Any],
    *,
    agent: str,
    branches: str | None,
    task: str | None,
    room: Room,
    takes_lists: bool,
) -> LoopSettings:
    """Return the settings of one agent loop.

    Raises:
        UsageError: A setting is unknown, or verl does not support it.
        InvalidAgentError: There is no such agent.
    """
    gathered: dict[str, Any] = {}
    for name, value in gather(raw_settings, _MAPPINGS).items():
        gathered[name] = tuple(value) if isinstance(value, list) else value
    models = frozen_models(gathered.pop("models", {}))
    settings = read_settings(EpisodeSettings, gathered)
    if settings.seats:
        raise UsageError(
            f"seats: {list(settings.seats)} in a verl agent loop: verl trains one policy, with one "
            "reward per episode, so seats cannot have separate rewards and baselines. Train agents "
            "with several roles with the Cookbook's loop (evert train seats=...), or make one role "
            "the policy and the others frozen (models: ...)."
        )
    for name, model in models.items():
        if isinstance(model, TinkerModel):
            raise UsageError(
                f"models.{name} names weights, but verl's workers have no engine for them. Serve "
                f"the weights (evert serve, vLLM), and give the URL: models: {{{name}: "
                "'http://host/v1#model'}."
            )
    loaded_agent = load_agent(agent)
    options = options_with_own(loaded_agent, env_options(settings, models))
    budgets = chz.asdict(options.get("limits") or RolloutLimits())
    options["limits"] = SequenceLimits(**budgets, max_response_tokens=room.response)
    options["context_length"] = tightest(options.get("context_length"), room.context)
    return LoopSettings(loaded_agent, _branches(branches, takes_lists), task, options)


def _branches(branches: str | None, takes_lists: bool) -> str:
    if branches not in (None, ALL, LAST):
        raise UsageError(f"branches is {branches!r}; expected 'all', 'last', or nothing.")
    if branches == ALL and not takes_lists:
        raise UsageError(
            "branches: all, but this verl trainer takes one output per episode; only verl's V1 "
            "trainers take several (trainer.use_v1=True, the default of main_ppo). Use branches: "
            "last, which trains on the last lineage and counts the others as lineages_left_out."
        )
    return branches or (ALL if takes_lists else LAST)
