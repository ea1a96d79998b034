"""The options of an Env: one table of names, meanings and defaults.

``ChatAgentEnv``, ``SeatEnv``, group builders, datasets and Gymnasium all take ``EnvOptions`` as
keywords and pass them on; ``EnvSettings`` is the same with the defaults filled in and everything
checked.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypedDict

from tinker_cookbook.renderers import Renderer
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy, RolloutLimits

from evert.bridge.env.limits import MIN_CONTEXT, tightest
from evert.bridge.episode.agent import Agent, agent_name, unwrapped
from evert.bridge.episode.routes import DEFAULT_POLICY_NAME, read_policy_names
from evert.bridge.errors import InvalidAgentError
from evert.bridge.models.frozen import MODEL_TIMEOUT, FrozenModel


class EnvOptions(TypedDict, total=False):
    """Options of ``ChatAgentEnv``; see ``EnvSettings`` for what they mean and their defaults."""

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
        policy_names: The model name by which the agent calls the policy, or several. A ``*`` in one
            stands for anything: "*" is every name that no frozen model has, "gpt-*" some of them.
        limits: The Cookbook's budgets. ``max_turns`` and ``max_trajectory_tokens`` are kept by the
            Env, so that the agent learns of them; a runner keeps the others. None: no budgets.
        context_length: Tokens that the policy's context holds, prompt and reply together. A longer
            prompt is the agent's 400, and a reply ends where the context does. None: not known, so
            whoever samples has to refuse.
        agent_timeout: Seconds the agent may take between two calls. None: for ever.
        on_agent_error: Reward of an episode whose agent raised, or took longer than that. None:
            ``step`` raises ``AgentError`` from the agent's exception, or ``AgentTimeoutError``.
        on_truncation: What to do with a reply cut at its token cap: "deliver" it to the agent
            with ``finish_reason="length"``, or "end" the episode as ``EnvFromMessageEnv`` does.
        parse_error_policy: The Cookbook's policy for replies that do not parse. None: the agent
            gets the text as it is, and the transition is marked with ``parse_error``.
        context_overflow_reward: Added when an episode ends because its prompt grew too long.
        close_timeout: Seconds that ``close`` waits for the agent, twice.
        models: Models that the agent may call beside the policy, by name (``frozen.py``).
        model_timeout: Seconds in which one of these has to reply; else the call is a 400 (code
            ``model_timeout``). A ``RemoteModel`` has a timeout of its own. None: for ever.
        format_retries: How often a reply is asked for again that is not as ``response_format`` or
            a forced ``tool_choice`` has it; each time is a transition.
        keep_completed_arguments: Whether a reply stays as it was sampled though a tool call of it
            comes back with arguments added, or with other white space at the ends of lines. It is
            counted either way (``drift/completed_arguments``). False: the policy is shown what the
            agent sent, in a new token sequence, since only the agent's author knows that what was
            added changes nothing.
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
        """The policy's names; the first is what a client uses itself."""
        return read_policy_names(self.policy_names)


def options_with_own(agent: Agent, options: EnvOptions) -> EnvOptions:
    """Add the agent's own options, its attribute ``env_options``, where others leave them out.

    Of two context lengths the lesser holds: a trainer passes what its model can take.

    Raises:
        InvalidAgentError: The attribute is no mapping.
    """
    found = getattr(unwrapped(agent), "env_options", {})
    if not isinstance(found, Mapping):
        raise InvalidAgentError(
            f"The agent {agent_name(agent)} has env_options={found!r:.200}; expected a dict of "
            "ChatAgentEnv's options."
        )
    both = EnvOptions(**{**found, **options})
    contexts = found.get("context_length"), options.get("context_length")
    if None not in contexts:
        both["context_length"] = tightest(*contexts)
    return both


def settings_of(options: EnvOptions) -> EnvSettings:
    """The options with their defaults.

    Raises:
        TypeError: There is no such option.
        ValueError: ``on_truncation`` is neither "deliver" nor "end", or no prompt has room in
            ``context_length``.
        InvalidModelError: ``policy_names`` are none.
    """
    known = [field.name for field in fields(EnvSettings)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise TypeError(
                f"ChatAgentEnv has no option {name!r}.{hint} Options: {', '.join(known)}."
            )
    given: dict[str, Any] = dict(options)
    if given.get("limits") is None:
        given.pop("limits", None)
    settings = EnvSettings(**given)
    if settings.on_truncation not in ("deliver", "end"):
        raise ValueError(
            f"on_truncation is {settings.on_truncation!r}; expected 'deliver' (the agent gets the "
            "cut reply) or 'end' (the episode ends)."
        )
    context = settings.context_length
    if context is not None and (type(context) is not int or context < MIN_CONTEXT):
        raise ValueError(
            f"context_length is {context!r}; expected the number of tokens that the model's "
            f"context holds, at least {MIN_CONTEXT}, or None where it is not known."
        )
    read_policy_names(settings.policy_names)
    return settings
