"""Episode settings (``ChatAgentEnv`` options), shared by all commands that play episodes.

The renderer is not included, because it depends on the model. For frozen models, see
``frozen_models.py``.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import chz

from evert.trainers.config.arguments import read_settings
from evert.trainers.config.fields import by_path, setting, size

if TYPE_CHECKING:
    from evert.bridge.env.options import EnvOptions
    from evert.bridge.models.frozen import FrozenModel


@chz.chz
class EpisodeSettings:
    """Settings of an episode."""

    policy_names: tuple[str, ...] = setting(
        (),
        "model names that refer to the policy in the agent's calls, like gpt-4o,gpt-5.2; "
        "* matches any text (default: policy)",
    )
    seats: tuple[str, ...] = setting((), "names of the agent's trained roles, if it has several")
    limits: Mapping[str, Any] = by_path(
        "limits for an episode: max_turns, max_trajectory_tokens, "
        "max_sampled_tokens, max_tool_calls, max_turn_tokens, rollout_timeout_seconds, "
        "sampling_turn_timeout_seconds (default: unlimited)"
    )
    context_length: int | None = size(
        None, "maximum tokens in a prompt and its reply (default: the model's context length)", 3
    )
    agent_timeout: float | None = size(
        600.0, "maximum seconds between an agent's calls; None means no limit", 0, or_more=False
    )
    model_timeout: float | None = size(
        600.0, "maximum seconds to wait for a frozen model; None means no limit", 0, or_more=False
    )
    on_agent_error: float | None = setting(
        None,
        "reward for an episode if the agent raises an error or times out (default: no reward; "
        "the episode is not used for training)",
    )
    on_truncation: Literal["deliver", "end"] = setting(
        "deliver", "whether to deliver a truncated reply to the agent or to end the episode"
    )
    context_overflow_reward: float = setting(
        -0.1, "added to the reward if the episode ends because a prompt is too long"
    )
    format_retries: int = size(
        2, "how many times to resample a reply that doesn't match the requested format", 0
    )
    keep_completed_arguments: bool = setting(
        False,
        "whether to keep a tool call's sampled tokens if the agent adds arguments to the call when "
        "sending it back",
    )
    parse_error_policy: Mapping[str, Any] = by_path(
        "how to handle replies that can't be parsed: max_consecutive, penalty_per_error, "
        "terminal_reward, mask_error_turns, retry_message_template (default: deliver the text)"
    )
    close_timeout: float = size(
        5.0, "maximum seconds to wait for a cancelled agent to stop", 0, or_more=False
    )


def env_options(settings: EpisodeSettings, models: Mapping[str, "FrozenModel"]) -> "EnvOptions":
    """Return the settings that differ from the defaults, as ``ChatAgentEnv`` options.

    For the other settings, the agent's own ``env_options`` or the Env's defaults apply.
    """
    from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits

    values: Any = {"models": models} if models else {}
    plain = EpisodeSettings()
    for name in chz.chz_fields(EpisodeSettings).keys() - {"seats"}:  # a group option
        if getattr(settings, name) != getattr(plain, name):
            values[name] = getattr(settings, name)
    kinds: Mapping[str, Any] = {"limits": RolloutLimits, "parse_error_policy": ParseErrorPolicy}
    for name, kind in kinds.items():
        if name in values:
            values[name] = read_settings(kind, values[name], name_of=f"{name}.{{}}".format)
    options: EnvOptions = values
    return options
