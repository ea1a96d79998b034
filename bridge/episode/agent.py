"""Agents: callables that talk to a chat model and return a reward.

``inspect_agent`` determines how to run a callable: as a coroutine or in a thread, and with which
arguments. A parameter named ``client`` receives the client. The task goes to the parameter named
``task`` or, if there is none, to the first other parameter:

    agent(client)  agent(client, task)   uses evert's client; parameters in any order
    agent()        agent(task)           builds its own client, which evert takes over
    agent(*args)                         receives the client, and the task if there is one

``outcome_of`` converts the return value to an ``Outcome``. A missing reward raises an error instead
of counting as 0.0.
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
"""Takes ``(client)`` or ``(client, task)``; returns a reward, an ``Outcome`` or None. May be async.

An agent that builds its own client takes no arguments, or only the task (``clients/takeover.py``).
"""

FORMS = (
    "Supported signatures: agent(client), agent(client, task), and agent() or agent(task) for "
    "agents that build their own client. The client parameter must be named 'client'."
)
"""Appended to every error message about an unsupported signature."""


class NoTask:
    """Type of ``NO_TASK``, which means "no task" (None is a valid task)."""

    def __repr__(self) -> str:
        return "NO_TASK"

    def __reduce__(self) -> str:
        return "NO_TASK"


NO_TASK: Final = NoTask()

CLIENT: Final = "client"
"""Name of the parameter that receives the client."""

TASK: Final = "task"
"""Name of the parameter that receives the task (optional: any other name works, too)."""


ENV_STOP: Final = "env_stop/"
"""Metric prefix for the stop reason of an environment that the agent played."""


@dataclass(frozen=True)
class Outcome:
    """The result of an episode, for agents that return more than a reward.

    Attributes:
        reward: Added to the last transition. May be None if the agent called ``client.reward``.
        metrics: Numbers to plot. They are added to the last transition's metrics.
        logs: Text or numbers for inspection. They are added to the last transition's logs.
        truncated: Whether the agent cut the episode short, for example because of a time limit.
            Sets ``stop/truncated`` and Gymnasium's ``truncated``.
    """

    reward: float | None = None
    metrics: dict[str, float | int] = field(default_factory=dict)
    logs: dict[str, str | int | float] = field(default_factory=dict)
    truncated: bool = False


@dataclass(frozen=True)
class AgentForm:
    """How to call an agent: async or not, and with which arguments."""

    name: str
    is_async: bool
    positional: tuple[str, ...] = ()
    by_name: tuple[tuple[str, str], ...] = ()

    def bound(self, agent: Agent, client: object, task: object) -> Callable[[], Any]:
        """Return the agent with its arguments bound."""
        values = {CLIENT: client, TASK: task}
        positional = [values[role] for role in self.positional]
        return functools.partial(
            agent, *positional, **{name: values[role] for name, role in self.by_name}
        )


def agent_name(agent: object) -> str:
    """Return an agent's qualified name, for messages."""
    if isinstance(agent, str):
        return agent
    if isinstance(agent, functools.partial):
        return f"partial({agent_name(agent.func)})"
    name = getattr(agent, "__qualname__", None)
    if name is None:
        return type(agent).__qualname__
    return f"{getattr(agent, '__module__', '')}.{name}".removeprefix("builtins.")


_forms: WeakKeyDictionary[FunctionType, dict[tuple[str, ...], AgentForm]] = WeakKeyDictionary()
"""Cached per function and roles, because inspecting signatures in every episode is slow."""


def inspect_agent(agent: Agent, task: object = NO_TASK) -> AgentForm:
    """Determine how to call ``agent`` with ``task``.

    Raises:
        InvalidAgentError: ``agent`` is a class, a generator function or not callable, or its
            signature is not supported.
    """
    roles = (CLIENT,) if task is NO_TASK else (CLIENT, TASK)
    if type(agent) is not FunctionType:
        return _inspect(agent, roles)
    forms = _forms.setdefault(agent, {})
    if roles not in forms:
        forms[roles] = _inspect(agent, roles)
    return forms[roles]


def _inspect(agent: Agent, roles: tuple[str, ...]) -> AgentForm:
    name = agent_name(agent)
    if not callable(agent):
        raise InvalidAgentError(
            f"An agent must be callable; got {agent!r} of type {type(agent).__name__}. Pass the "
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
            f"The agent {name} is a generator function, but an agent must run to completion and "
            "return its reward. Replace `yield` with calls to the client, and `return` the reward."
        )
    is_async = inspect.iscoroutinefunction(function)
    try:
        signature = inspect.signature(agent)
    except (TypeError, ValueError):  # a builtin without a signature; bad arguments fail when called
        return AgentForm(name, is_async, roles)
    form = AgentForm(name, is_async, *_arguments(agent, signature, roles))
    _check_arguments(form, signature, roles)
    return form


def unwrapped(agent: Any) -> Any:
    """Return the function wrapped by ``functools.partial``, or ``agent`` itself."""
    while isinstance(agent, functools.partial):
        agent = agent.func
    return agent


def _arguments(
    agent: Agent, signature: inspect.Signature, roles: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """Decide how to pass the client and the task, which are called roles here.

    Returns:
        The roles to pass by position, and (parameter, role) pairs to pass by keyword.
    """
    parameters = signature.parameters
    missing = [role for role in roles if role not in _bound_names(agent)]
    positional: list[str] = []
    by_name: list[tuple[str, str]] = []
    for parameter in parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL and not by_name:
            positional += [role for role in missing if role not in parameters]
        role = _role(parameter, missing, parameters)
        if role is None:
            continue
        missing.remove(role)
        in_turn = parameter.kind is not parameter.KEYWORD_ONLY
        if in_turn and len(positional) == list(parameters).index(parameter.name):
            positional.append(role)
        else:  # by keyword, so that earlier parameters keep their defaults
            by_name.append((parameter.name, role))
    return tuple(positional), tuple(by_name)


def _bound_names(agent: Agent) -> set[str]:
    if not isinstance(agent, functools.partial):
        return set()
    return {*agent.keywords, *_bound_names(agent.func)}


def _role(
    parameter: inspect.Parameter, missing: Sequence[str], parameters: Mapping[str, object]
) -> str | None:
    """Return what to pass to a parameter (client or task), or None to keep its default."""
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return None
    if parameter.name in (CLIENT, TASK):
        return parameter.name if parameter.name in missing else None
    is_first = (
        TASK in missing and TASK not in parameters and parameter.kind != parameter.KEYWORD_ONLY
    )
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
    arguments = ", ".join([*form.positional, *(f"{name}={role}" for name, role in form.by_name)])
    advice = "" if TASK in roles else " Pass task=... if it needs one."
    raise InvalidAgentError(
        f"The agent {form.name}{signature} cannot be called with ({arguments}): {problem}. {FORMS}"
        f"{advice}"
    )


def reward_of(value: object, where: str) -> float:
    """Return ``value`` as a finite float.

    Raises:
        RewardError: ``value`` is not a finite number. The message starts with ``where``.
    """
    # Accepts bool, int, float, Fraction and NumPy scalars (np.bool_ is not registered as Real).
    if isinstance(value, (numbers.Real, np.bool_)):
        try:
            reward = float(value)
        except Exception:  # an int too large for a float, or a bug in the agent's own class
            reward = math.inf
        if math.isfinite(reward):
            return reward
    raise RewardError(
        f"{where} is {repr_of(value)} ({type(value).__name__}); expected a finite number (float, "
        "int or bool). Return the reward, or evert.Outcome(reward, metrics, logs)."
    )


def outcome_of(value: object, name: str, *, rewarded: bool) -> Outcome:
    """Convert an agent's return value to an ``Outcome``.

    Args:
        value: The agent's return value.
        name: The agent's name, used in messages.
        rewarded: Whether the agent called ``client.reward`` in this episode. Only then may the
            return value be None.

    Raises:
        RewardError: The reward is missing, or the reward or a metric is not a finite number.
    """
    if inspect.isawaitable(value):
        if inspect.iscoroutine(value):
            value.close()
        raise RewardError(
            f"The agent {name} returned an awaitable, not a reward, because it is a regular "
            "function that calls an async one. Declare it `async def`, and `return await ...`."
        )
    outcome = value if isinstance(value, Outcome) else Outcome(reward=value)  # type: ignore[arg-type]
    outcome = with_checked_notes(outcome, f"in the Outcome of the agent {name}")
    if outcome.reward is None:
        if rewarded:
            return outcome
        raise RewardError(
            f"The agent {name} ended without a reward: it returned {repr_of(value)} and never "
            "called client.reward(x). Return a number (0.0 for no reward) or call client.reward."
        )
    reward = reward_of(outcome.reward, f"The reward returned by the agent {name}")
    return replace(outcome, reward=reward)


def with_checked_notes(outcome: Outcome, where: str) -> Outcome:
    """Validate metrics and logs, and convert metrics to floats and keys to strings.

    Raises:
        RewardError: Metrics or logs are not a mapping, or a metric is not a finite number.
    """
    for name in ("metrics", "logs"):
        if not isinstance(value := getattr(outcome, name), Mapping):
            raise RewardError(
                f"The {name} {where} are {repr_of(value)}; expected a dict. Omit the argument if "
                "you have none."
            )
    metrics = {
        str(key): reward_of(number, f"The metric {key!r} {where}")
        for key, number in outcome.metrics.items()
    }
    return replace(
        outcome, metrics=metrics, logs={str(key): log for key, log in outcome.logs.items()}
    )
