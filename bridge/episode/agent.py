"""What an agent is: a callable that talks to a chat model and ends with a reward.

``inspect_agent`` looks at the callable once and says how to run it: async or in a thread, and what
it is called with. Of its parameters, the one called ``client`` takes the client, the first other
one the task:

    agent(client)  agent(client, task)   with a client of evert's, in whatever order
    agent()        agent(task)           without one: it builds its own, which is taken over
    agent(*args)                         whatever there is: client, task

``Outcome`` is the long form of its return value; ``outcome_of`` turns whatever it returned into
one, strictly: a missing reward is an error, never 0.0.
"""

import functools
import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np

from evert.bridge.errors import InvalidAgentError, RewardError, repr_of

Agent = Callable[..., Any]
"""``(client)`` or ``(client, task)``, sync or async, returning a reward, an ``Outcome`` or None.

An agent that builds its own client takes nothing, or the task alone (``clients/takeover.py``).
"""

FORMS = (
    "An agent has one of three forms: agent(client); agent(client, task); or, if it builds its own "
    "client, agent() or agent(task). The parameter for the client is called 'client'."
)
"""What every message about a callable of another form ends with."""


class NoTask:
    """Type of ``NO_TASK``, which stands for "no task was given" (None is a task like any other)."""

    def __repr__(self) -> str:
        return "NO_TASK"

    def __reduce__(self) -> str:
        return "NO_TASK"


NO_TASK: Final = NoTask()

CLIENT: Final = "client"
"""Name of the parameter that takes the client."""

TASK: Final = "task"
"""What an agent is called with beside it."""


@dataclass(frozen=True)
class Outcome:
    """How an episode ended, when a bare number does not say enough.

    Attributes:
        reward: Added to the last transition. None when all reward came from ``client.reward``.
        metrics: Numbers for curves; they join the last transition's metrics.
        logs: Text or numbers for people; they join the last transition's logs.
        truncated: Whether the episode was cut short rather than finished (a time limit of the
            agent's own): ``stop/truncated``, and Gymnasium's ``truncated``.
    """

    reward: float | None = None
    metrics: dict[str, float | int] = field(default_factory=dict)
    logs: dict[str, str | int | float] = field(default_factory=dict)
    truncated: bool = False


@dataclass(frozen=True)
class AgentForm:
    """How to run an agent."""

    name: str
    is_async: bool
    positional: tuple[str, ...] = ()
    by_name: tuple[tuple[str, str], ...] = ()

    def bound(self, agent: Agent, client: object, task: object) -> Callable[[], Any]:
        """The agent with its arguments, to be called without any."""
        given = {CLIENT: client, TASK: task}
        positional = [given[role] for role in self.positional]
        return functools.partial(
            agent, *positional, **{name: given[role] for name, role in self.by_name}
        )


def agent_name(agent: object) -> str:
    """A name for messages: qualified, of a function, of a partial's function, or of a class."""
    if isinstance(agent, functools.partial):
        return f"partial({agent_name(agent.func)})"
    name = getattr(agent, "__qualname__", None)
    if name is None:
        return type(agent).__qualname__
    return f"{getattr(agent, '__module__', '')}.{name}".removeprefix("builtins.")


_forms: WeakKeyDictionary[FunctionType, dict[tuple[str, ...], AgentForm]] = WeakKeyDictionary()
"""Of each function, by the roles that it takes: every episode asks, and a signature takes long."""


def inspect_agent(agent: Agent, task: object = NO_TASK) -> AgentForm:
    """Say how ``agent`` is to be run with ``task``.

    Raises:
        InvalidAgentError: It is no callable, a class or a generator function, or has none of the
            forms above.
    """
    roles = (CLIENT,) if task is NO_TASK else (CLIENT, TASK)
    if type(agent) is not FunctionType:
        return _inspected(agent, roles)
    forms = _forms.setdefault(agent, {})
    if roles not in forms:
        forms[roles] = _inspected(agent, roles)
    return forms[roles]


def _inspected(agent: Agent, roles: tuple[str, ...]) -> AgentForm:
    name = agent_name(agent)
    if not callable(agent):
        raise InvalidAgentError(
            f"An agent must be a callable; got {agent!r} of type {type(agent).__name__}. Pass the "
            f"function itself, not its result. {FORMS}"
        )
    inner = unwrapped(agent)
    if inspect.isclass(inner):
        raise InvalidAgentError(
            f"An agent must be a function or an instance with __call__; got the class {name}. "
            f"Pass an instance: {inner.__qualname__}(...)."
        )
    function = inner if inspect.isroutine(inner) else type(inner).__call__
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidAgentError(
            f"The agent {name} is a generator function; an agent runs to its end and returns its "
            "reward. Replace `yield` by calls to the client and `return` the reward."
        )
    is_async = inspect.iscoroutinefunction(function)
    try:
        signature = inspect.signature(agent)
    except (TypeError, ValueError):  # a builtin without a signature: the call itself will tell
        return AgentForm(name, is_async, roles)
    form = AgentForm(name, is_async, *_arguments(agent, signature, roles))
    _check_arguments(form, signature, roles)
    return form


def unwrapped(agent: Any) -> Any:
    """The function that ``functools.partial`` binds arguments of; anything else as it is."""
    while isinstance(agent, functools.partial):
        agent = agent.func
    return agent


def _arguments(
    agent: Agent, signature: inspect.Signature, roles: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Roles that are passed by position, and (parameter, role) pairs that are passed by name."""
    named = signature.parameters
    missing = [role for role in roles if role not in _bound_names(agent)]
    positional: list[str] = []
    by_name: list[tuple[str, str]] = []
    for parameter in named.values():
        if parameter.kind is parameter.VAR_POSITIONAL and not by_name:
            positional += [role for role in missing if role not in named]
        role = _role(parameter, missing, named)
        if role is None:
            continue
        missing.remove(role)
        in_turn = parameter.kind is not parameter.KEYWORD_ONLY
        if in_turn and len(positional) == list(named).index(parameter.name):
            positional.append(role)
        else:  # what stands before it keeps its default
            by_name.append((parameter.name, role))
    return tuple(positional), tuple(by_name)


def _bound_names(agent: Agent) -> set[str]:
    names: set[str] = set()
    while isinstance(agent, functools.partial):
        names |= agent.keywords.keys()
        agent = agent.func
    return names


def _role(
    parameter: inspect.Parameter, missing: Sequence[str], named: Mapping[str, object]
) -> str | None:
    """What a parameter is to be given; None: its default, if it has one."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return None
    if parameter.name in (CLIENT, TASK):
        return parameter.name if parameter.name in missing else None
    is_first = TASK in missing and TASK not in named and parameter.kind != parameter.KEYWORD_ONLY
    return TASK if is_first else None


def _check_arguments(form: AgentForm, signature: inspect.Signature, roles: tuple[str, ...]) -> None:
    by_name = dict(form.by_name)
    if TASK in roles and TASK not in {*form.positional, *by_name.values()}:
        problem = "it has no parameter for the task"
    else:
        try:
            signature.bind(*form.positional, **by_name)
            return
        except TypeError as error:
            problem = str(error)
    given = ", ".join([*form.positional, *(f"{name}={role}" for name, role in form.by_name)])
    advice = "" if TASK in roles else " Pass task=... if it needs one."
    raise InvalidAgentError(
        f"The agent {form.name}{signature} cannot be called with ({given}): {problem}. {FORMS}"
        f"{advice}"
    )


def reward_of(value: object, where: str) -> float:
    """``value`` as a finite float.

    Raises:
        RewardError: It is no number, NaN or infinite; ``where`` says where it came from.
    """
    # bool, int, float, Fraction, numpy scalars (of which only bool_ is not registered as Real)
    if isinstance(value, (numbers.Real, np.bool_)):
        try:
            reward = float(value)
        except Exception:  # an int beyond every float; a class of the agent's may raise anything
            reward = math.inf
        if math.isfinite(reward):
            return reward
    raise RewardError(
        f"{where} is {repr_of(value)} ({type(value).__name__}); expected a finite number (float, "
        "int or bool). Return the reward, or evert.Outcome(reward, metrics, logs)."
    )


def outcome_of(value: object, name: str, *, rewarded: bool) -> Outcome:
    """The outcome that an agent's return value stands for.

    Args:
        value: What the agent returned.
        name: The agent's name, for messages.
        rewarded: Whether ``client.reward`` was called in this episode; only then may the return
            value be None.

    Raises:
        RewardError: No reward at all, or one that is no finite number; so is a metric.
    """
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise RewardError(
            f"The agent {name} returned an awaitable, not a reward: it is a plain function around "
            "an async one. Declare it `async def` and `return await ...`."
        )
    outcome = value if isinstance(value, Outcome) else Outcome(reward=value)  # type: ignore[arg-type]
    outcome = with_notes_read(outcome, f"in the Outcome of the agent {name}")
    if outcome.reward is None:
        if rewarded:
            return outcome
        raise RewardError(
            f"The agent {name} ended without a reward: it returned {repr_of(value)} and never "
            "called client.reward(x). Return a number (0.0 if that is meant) or call client.reward."
        )
    reward = reward_of(outcome.reward, f"The reward returned by the agent {name}")
    return replace(outcome, reward=reward)


def with_notes_read(outcome: Outcome, whose: str) -> Outcome:
    """The outcome, whose metrics are finite numbers; all notes have texts for names.

    Raises:
        RewardError: Its metrics or logs are something else; ``whose`` they are is in the message.
    """
    for what in ("metrics", "logs"):
        if not isinstance(found := getattr(outcome, what), Mapping):
            raise RewardError(
                f"The {what} {whose} are {repr_of(found)}; expected a dict. Leave them out where "
                "there are none."
            )
    metrics = {
        str(key): reward_of(number, f"The metric {key!r} {whose}")
        for key, number in outcome.metrics.items()
    }
    return replace(
        outcome, metrics=metrics, logs={str(key): log for key, log in outcome.logs.items()}
    )
