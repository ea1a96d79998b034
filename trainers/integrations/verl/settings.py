"""Parse and validate the YAML config of an agent loop.

- name: evert                              # matches agent_name in a row, or default_agent_loop
  _target_: evert.verl.EvertAgentLoop
  agent: my.module:agent
  renderer_name: qwen3                     # default: the Cookbook renderer that matches the model
  branches: all                            # or last
  task: extra_info.question                # default: the path used by write_dataset
  policy_names: [gpt-4o]                   # or any other episode setting of `evert train`
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
    """Lengths of verl's tensors, in tokens."""

    prompt: int
    response: int
    context: int
    """Maximum length of a prompt plus its reply. Cannot exceed ``prompt`` + ``response``."""

    @staticmethod
    def of(rollout: Any) -> "Room":
        """Read the lengths from verl's rollout config."""
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
    """ALL to create an output per lineage, or LAST to only use the last lineage."""
    task: str | None
    """Path of the task in a row; None for the path that ``write_dataset`` uses."""
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
    """Parse the settings of an agent loop.

    Raises:
        UsageError: A setting is unknown, or not supported with verl.
        InvalidAgentError: The agent does not exist.
    """
    gathered: dict[str, Any] = {}
    for name, value in gather(raw_settings, _MAPPINGS).items():
        gathered[name] = tuple(value) if isinstance(value, list) else value
    models = frozen_models(gathered.pop("models", {}))
    settings = read_settings(EpisodeSettings, gathered)
    if settings.seats:
        raise UsageError(
            f"seats: {list(settings.seats)} is not supported with verl, which trains one policy "
            "with one reward per episode, so seats cannot have separate rewards and baselines. Use "
            "the Cookbook's loop for agents with several roles (evert train seats=...), or make "
            "one role the policy and the others frozen models (models: ...)."
        )
    for name, model in models.items():
        if isinstance(model, TinkerModel):
            raise UsageError(
                f"models.{name} is set to weights, but verl's workers have no engine to load them. "
                f"Serve the weights (evert serve, vLLM) and pass the URL: models: {{{name}: "
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
        raise UsageError(f"branches is {branches!r}; expected 'all' or 'last', or leave it out.")
    if branches == ALL and not takes_lists:
        raise UsageError(
            "branches: all is not supported by this verl trainer, which accepts one output per "
            "episode. Only verl's V1 trainers accept several (trainer.use_v1=True, the default in "
            "main_ppo). Use branches: last, which trains on the last lineage and counts the others "
            "in lineages_left_out."
        )
    return branches or (ALL if takes_lists else LAST)
