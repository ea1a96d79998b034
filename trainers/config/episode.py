"""What an episode is, for every command that plays some: ``ChatAgentEnv``'s options as settings.

The renderer follows from the model; for the frozen models see ``frozen_models.py``.
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
    """What an agent meets in an episode."""

    policy_names: tuple[str, ...] = setting(
        (),
        "model names by which the agent calls the policy: gpt-4o,gpt-5.2; a * stands for "
        "anything; none: policy",
    )
    seats: tuple[str, ...] = setting((), "names of the agent's trained roles, where it has several")
    limits: Mapping[str, Any] = by_path(
        "budgets of an episode: max_turns, max_trajectory_tokens, "
        "max_sampled_tokens, max_tool_calls, max_turn_tokens, rollout_timeout_seconds, "
        "sampling_turn_timeout_seconds; none that is not given"
    )
    context_length: int | None = size(
        None, "tokens of a prompt and its reply; None: what the model's context holds", 3
    )
    agent_timeout: float | None = size(
        600.0, "seconds an agent may take between calls; None: for ever", 0, or_more=False
    )
    model_timeout: float | None = size(
        600.0, "seconds a frozen model has to reply; None: for ever", 0, or_more=False
    )
    on_agent_error: float | None = setting(
        None,
        "reward of an episode whose agent raises or is too slow; None: it gets none, and is "
        "left out of the training",
    )
    on_truncation: Literal["deliver", "end"] = setting(
        "deliver", "what becomes of a reply that is cut at its most tokens"
    )
    context_overflow_reward: float = setting(
        -0.1, "added where an episode ends because its prompt grew too long"
    )
    format_retries: int = size(
        2, "times that a reply is asked for again which has not the asked-for format", 0
    )
    keep_completed_arguments: bool = setting(
        False,
        "whether a reply stays as sampled though a tool call of it comes back with arguments added",
    )
    parse_error_policy: Mapping[str, Any] = by_path(
        "what follows a reply that does not parse: max_consecutive, penalty_per_error, "
        "terminal_reward, mask_error_turns, retry_message_template; none: the agent gets the text"
    )
    close_timeout: float = size(
        5.0, "seconds that an agent has to end when it is given up", 0, or_more=False
    )


def env_options(settings: EpisodeSettings, models: Mapping[str, "FrozenModel"]) -> "EnvOptions":
    """The settings as ``ChatAgentEnv`` takes them; none that is as by default.

    What is left out is the Env's own default, or what the agent brings itself (``env_options``).
    """
    from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits

    given: Any = {"models": models} if models else {}
    plain = EpisodeSettings()
    for name in chz.chz_fields(EpisodeSettings).keys() - {"seats"}:  # no option, but a group's
        if getattr(settings, name) != getattr(plain, name):
            given[name] = getattr(settings, name)
    kinds: Mapping[str, Any] = {"limits": RolloutLimits, "parse_error_policy": ParseErrorPolicy}
    for name, kind in kinds.items():
        if name in given:
            given[name] = read_settings(kind, given[name], called=f"{name}.{{}}".format)
    options: EnvOptions = given
    return options
