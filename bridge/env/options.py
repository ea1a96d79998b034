"""Env options: their names, descriptions and defaults.

``ChatAgentEnv``, ``SeatEnv``, group builders, datasets and Gymnasium environments accept
``EnvOptions`` as keyword arguments. ``EnvSettings`` documents them and defines the defaults, and
``settings_of`` validates the values.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict

from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits

from evert.bridge.env.limits import MIN_CONTEXT, tightest
from evert.bridge.episode.agent import Agent, agent_name, unwrapped
from evert.bridge.episode.routes import DEFAULT_POLICY_NAME, read_policy_names
from evert.bridge.errors import InvalidAgentError, did_you_mean
from evert.bridge.models.frozen import MODEL_TIMEOUT, FrozenModel


class EnvOptions(TypedDict, total=False):
    """Keyword options of ``ChatAgentEnv``. See ``EnvSettings`` for descriptions and defaults."""

    renderer: Renderer | None
    policy_names: str | Sequence[str]
    limits: RolloutLimits | None
    context_length: int | None
    agent_timeout: float | None
    on_agent_error: float | None
    on_truncation: Literal["deliver", "end"]
    parse_error_policy: ParseErrorPolicy | None
    context_overflow_reward: float
    close_timeout: float
    models: Mapping[str, FrozenModel] | None
    model_timeout: float | None
    format_retries: int
    keep_completed_arguments: bool


@dataclass(frozen=True, slots=True)
class EnvSettings:
    """The options of an Env, with defaults.

    Attributes:
        renderer: A Cookbook renderer (default: the one for the bundled model ``evert-tiny``).
        policy_names: One or more model names that the agent can use to call the policy. ``*``
            matches any text, so "gpt-*" matches all names with that prefix, and "*" matches all
            names except those of frozen models.
        limits: The Cookbook's rollout limits (default: no limits). The Env enforces ``max_turns``
            and ``max_trajectory_tokens``, so that the agent gets an error. The runner enforces the
            rest.
        context_length: Context length of the policy in tokens, including the reply. Longer prompts
            get a 400 error, and replies are truncated at the end of the context. None means that
            the length is unknown, so the sampler has to enforce it.
        agent_timeout: Maximum number of seconds between two of the agent's calls, or None for no
            limit.
        on_agent_error: Reward for an episode in which the agent raised or timed out. If None,
            ``step`` raises ``AgentError`` (from the agent's exception) or ``AgentTimeoutError``.
        on_truncation: What to do with a truncated reply: "deliver" passes it to the agent with
            ``finish_reason="length"``; "end" ends the episode, as ``EnvFromMessageEnv`` does.
        parse_error_policy: The Cookbook's policy for replies that cannot be parsed. If None, the
            agent gets the unparsed text, and the transition gets the metric ``parse_error``.
        context_overflow_reward: Reward to add if a prompt that is too long or a truncated reply
            ends the episode.
        close_timeout: Seconds that ``close`` waits for the agent to end. If the agent has not ended
            by then, ``close`` cancels it once more and waits again.
        models: Frozen models that the agent may call, by name (``frozen.py``).
        model_timeout: Seconds to wait for a frozen model before the call fails with a 400 error
            (code ``model_timeout``), or None for no limit. A ``RemoteModel`` has its own timeout.
        format_retries: How often to retry if a reply violates ``response_format`` or a forced
            ``tool_choice``. Each retry is a transition.
        keep_completed_arguments: Whether to keep a reply's sampled tokens in the prompt if the
            agent sends its tool calls back with added arguments or different trailing whitespace.
            Both cases are counted in ``drift/completed_arguments``. By default, a new token
            sequence starts with the agent's version, because only the agent's author knows whether
            the change matters.
    """

    renderer: Renderer | None = None
    policy_names: str | Sequence[str] = DEFAULT_POLICY_NAME
    limits: RolloutLimits = field(default_factory=RolloutLimits)
    context_length: int | None = None
    agent_timeout: float | None = 600.0
    on_agent_error: float | None = None
    on_truncation: Literal["deliver", "end"] = "deliver"
    parse_error_policy: ParseErrorPolicy | None = None
    context_overflow_reward: float = -0.1
    close_timeout: float = 5.0
    models: Mapping[str, FrozenModel] | None = None
    model_timeout: float | None = MODEL_TIMEOUT
    format_retries: int = 2
    keep_completed_arguments: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """The policy's model names. evert's own clients use the first name."""
        return read_policy_names(self.policy_names)


def options_with_own(agent: Agent, options: EnvOptions) -> EnvOptions:
    """Return ``options`` with the agent's ``env_options`` attribute as defaults.

    If both set ``context_length``, the smaller value applies, because trainers pass the context
    length of their model.

    Raises:
        InvalidAgentError: The attribute is not a mapping.
    """
    defaults = getattr(unwrapped(agent), "env_options", {})
    if not isinstance(defaults, Mapping):
        raise InvalidAgentError(
            f"The agent {agent_name(agent)} has env_options={defaults!r:.200}; expected a dict of "
            "ChatAgentEnv options."
        )
    merged = EnvOptions(**{**defaults, **options})
    contexts = defaults.get("context_length"), options.get("context_length")
    if None not in contexts:
        merged["context_length"] = tightest(*contexts)
    return merged


def settings_of(options: EnvOptions) -> EnvSettings:
    """Validate the options and fill in the defaults.

    Raises:
        TypeError: An option does not exist.
        ValueError: ``on_truncation`` is unknown, or ``context_length`` is too short for a prompt.
        InvalidModelError: ``policy_names`` is invalid.
    """
    names = [field.name for field in fields(EnvSettings)]
    for name in options:
        if name not in names:
            hint = did_you_mean(name, names)
            if name == "seats":
                hint = " Pass seats to the group: ChatAgentGroupBuilder(agent, task, seats=(...))."
            raise TypeError(
                f"ChatAgentEnv has no option {name!r}.{hint} Options: {', '.join(names)}."
            )
    values: dict[str, Any] = dict(options)
    if values.get("limits") is None:
        values.pop("limits", None)
    settings = EnvSettings(**values)
    if settings.on_truncation not in ("deliver", "end"):
        raise ValueError(
            f"on_truncation is {settings.on_truncation!r}; expected 'deliver' (the agent gets the "
            "truncated reply) or 'end' (the episode ends)."
        )
    context = settings.context_length
    if context is not None and (type(context) is not int or context < MIN_CONTEXT):
        raise ValueError(
            f"context_length is {context!r}; expected the number of tokens in the model's "
            f"context (at least {MIN_CONTEXT}), or None if it is unknown."
        )
    read_policy_names(settings.policy_names)
    return settings
