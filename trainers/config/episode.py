"""Settings of an episode, for every command that plays episodes: ``ChatAgentEnv``'s options.

The renderer depends on the model. ``frozen_models.py`` has the frozen models.
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
        "model names by which the agent calls the policy: gpt-4o,gpt-5.2; a * matches "
        "any text; none: policy",
    )
    seats: tuple[str, ...] = setting((), "names of the agent's trained roles, if it has several")
    limits: Mapping[str, Any] = by_path(
        "budgets of an episode: max_turns, max_trajectory_tokens, "
        "max_sampled_tokens, max_tool_calls, max_turn_tokens, rollout_timeout_seconds, "
        "sampling_turn_timeout_seconds; unlimited by default"
    )
    context_length: int | None = size(
        None, "maximum tokens of a prompt and its reply; None: the model's context", 3
    )
    agent_timeout: float | None = size(
        600.0, "seconds an agent may take between calls; None: no limit", 0, or_more=False
    )
    model_timeout: float | None = size(
        600.0, "seconds a frozen model may take to reply; None: no limit", 0, or_more=False
    )
    on_agent_error: float | None = setting(
        None,
        "reward of an episode whose agent raises or is too slow; None: no reward, and "
        "training leaves the episode out",
    )
    on_truncation: Literal["deliver", "end"] = setting(
        "deliver", "what to do with a truncated reply: deliver it, or end the episode"
    )
    context_overflow_reward: float = setting(
        -0.1, "added to the reward if an episode ends because its prompt is too long"
    )
    format_retries: int = size(
        2, "how many times to resample a reply that lacks the requested format", 0
    )
    keep_completed_arguments: bool = setting(
        False,
        "whether to keep a reply as sampled if the agent sends its tool call back with added "
        "arguments",
    )
    parse_error_policy: Mapping[str, Any] = by_path(
        "what to do after a reply that does not parse: max_consecutive, penalty_per_error, "
        "terminal_reward, mask_error_turns, retry_message_template; none: the agent gets the text"
    )
    close_timeout: float = size(5.0, "seconds a cancelled agent may take to end", 0, or_more=False)


def env_options(settings: EpisodeSettings, models: Mapping[str, "FrozenModel"]) -> "EnvOptions":
    """Return the settings that differ from the defaults, as options of ``ChatAgentEnv``.

    For all others, the agent's own options (``env_options``) or the Env's defaults apply.
    """
    from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits

    values: Any = {"models": models} if models else {}
    plain = EpisodeSettings()
    for name in chz.chz_fields(EpisodeSettings).keys() - {"seats"}:  # an option of the group
        if getattr(settings, name) != getattr(plain, name):
            values[name] = getattr(settings, name)
    kinds: Mapping[str, Any] = {"limits": RolloutLimits, "parse_error_policy": ParseErrorPolicy}
    for name, kind in kinds.items():
        if name in values:
            values[name] = read_settings(kind, values[name], name_of=f"{name}.{{}}".format)
    options: EnvOptions = values
    return options
