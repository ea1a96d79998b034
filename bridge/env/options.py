"""The options of an Env: their names, meanings and defaults, in one table.

``ChatAgentEnv``, ``SeatEnv``, group builders, datasets and Gymnasium environments accept
``EnvOptions`` as keywords; ``EnvSettings`` has the defaults, and ``settings_of`` checks the values.
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
    """Options of ``ChatAgentEnv``; ``EnvSettings`` has their meanings and defaults."""

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
    """The options of one Env, defaults included.

    Attributes:
        renderer: A Cookbook renderer. None: the shipped base's tokenizer and chat format.
        policy_names: The model name, or names, under which the agent calls the policy. ``*``
            matches any text: "*" matches all names except the frozen models', "gpt-*" all names
            with that prefix.
        limits: The Cookbook's budgets; None: no budgets. The Env enforces ``max_turns`` and
            ``max_trajectory_tokens``, so that the agent gets an error; the runner enforces the
            others.
        context_length: Tokens of the policy's context, prompt and reply together. A longer prompt
            gets a 400; a reply is cut where the context ends. None: unknown, left to the sampler.
        agent_timeout: Maximum seconds between two calls of the agent. None: no limit.
        on_agent_error: Reward of an episode whose agent raised or timed out. None: ``step`` raises
            ``AgentError`` from the agent's exception, or ``AgentTimeoutError``.
        on_truncation: What to do when a reply is cut at its token cap: "deliver" the reply with
            ``finish_reason="length"``, or "end" the episode as ``EnvFromMessageEnv`` does.
        parse_error_policy: The Cookbook's policy for replies that do not parse. None: the agent
            gets the unparsed text, and the transition has the metric ``parse_error``.
        context_overflow_reward: Added reward if an overlong prompt or a cut reply ends the episode.
        close_timeout: Seconds that ``close`` waits for the agent after each of two cancellations.
        models: Frozen models that the agent may call, by name (``frozen.py``).
        model_timeout: Seconds in which a frozen model must reply; otherwise the call gets a 400
            (code ``model_timeout``). A ``RemoteModel`` has its own timeout. None: no limit.
        format_retries: How often the policy is asked again for a reply that violates
            ``response_format`` or a forced ``tool_choice``. Each retry is a transition.
        keep_completed_arguments: Whether the prompt keeps a reply's sampled tokens if the agent
            sends its tool calls back with added arguments, or with different white space at line
            ends. ``drift/completed_arguments`` counts both cases. False: a new token sequence
            begins with the agent's version, since only its author knows if the change matters.
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
        """The policy's names; evert's clients use the first."""
        return read_policy_names(self.policy_names)


def options_with_own(agent: Agent, options: EnvOptions) -> EnvOptions:
    """Return ``options`` with the agent's attribute ``env_options`` as defaults.

    The lower of both context lengths applies, because a trainer passes its model's length.

    Raises:
        InvalidAgentError: The attribute is not a mapping.
    """
    defaults = getattr(unwrapped(agent), "env_options", {})
    if not isinstance(defaults, Mapping):
        raise InvalidAgentError(
            f"The agent {agent_name(agent)} has env_options={defaults!r:.200}; expected a dict of "
            "ChatAgentEnv's options."
        )
    merged = EnvOptions(**{**defaults, **options})
    contexts = defaults.get("context_length"), options.get("context_length")
    if None not in contexts:
        merged["context_length"] = tightest(*contexts)
    return merged


def settings_of(options: EnvOptions) -> EnvSettings:
    """Check the options, and add the missing defaults.

    Raises:
        TypeError: An option does not exist.
        ValueError: ``on_truncation`` is unknown, or ``context_length`` is too short for a prompt.
        InvalidModelError: ``policy_names`` are invalid.
    """
    names = [field.name for field in fields(EnvSettings)]
    for name in options:
        if name not in names:
            hint = did_you_mean(name, names)
            if name == "seats":
                hint = " A group has seats: ChatAgentGroupBuilder(agent, task, seats=(...))."
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
            "cut reply) or 'end' (the episode ends)."
        )
    context = settings.context_length
    if context is not None and (type(context) is not int or context < MIN_CONTEXT):
        raise ValueError(
            f"context_length is {context!r}; expected the number of tokens in the model's "
            f"context, at least {MIN_CONTEXT}, or None if it is unknown."
        )
    read_policy_names(settings.policy_names)
    return settings
