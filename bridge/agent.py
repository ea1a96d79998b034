"""What an agent is: a callable that talks to a chat model and ends with a reward.

``inspect_agent`` looks at the callable once and says how to run it (async or in a thread, with or
without a task); ``Outcome`` is the long form of its return value; ``outcome_of`` turns whatever it
returned into one, strictly: a missing reward is an error, never 0.0.
"""

import functools
import inspect
import math
import numbers
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from evert.bridge.errors import InvalidAgentError, RewardError

Agent = Callable[..., Any]
"""``(client)`` or ``(client, task)``, sync or async, returning a reward, an ``Outcome`` or None.

An agent that builds its own client takes nothing, or the task alone (``faces/takeover.py``).
"""


class NoTask:
    """Type of ``NO_TASK``, which stands for "no task was given" (None is a task like any other)."""

    def __repr__(self) -> str:
        return "NO_TASK"

    def __reduce__(self) -> str:
        return "NO_TASK"


NO_TASK: Final = NoTask()


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
    """How to run an agent: ``name`` for messages, ``is_async``, and what it is called with."""

    name: str
    is_async: bool
    takes_client: bool
    takes_task: bool


def agent_name(agent: object) -> str:
    """A name for messages: qualified, of a function, of a partial's function, or of a class."""
    if isinstance(agent, functools.partial):
        return f"partial({agent_name(agent.func)})"
    name = getattr(agent, "__qualname__", None)
    if name is None:
        return type(agent).__qualname__
    return f"{getattr(agent, '__module__', '')}.{name}".removeprefix("builtins.")


def inspect_agent(agent: Agent, task: object = NO_TASK) -> AgentForm:
    """Say how ``agent`` is to be run with ``task``.

    Raises:
        InvalidAgentError: It is no callable, a class, a generator function, or it does not take
            ``(client)`` or ``()`` (without a task), or ``(client, task)`` or ``(task)`` (with one).
    """
    name = agent_name(agent)
    if not callable(agent):
        raise InvalidAgentError(
            f"An agent must be a callable taking (client) or (client, task); got {agent!r} of type "
            f"{type(agent).__name__}. Pass the function itself, not its result."
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
    has_task = task is not NO_TASK
    takes_client = True
    if (signature := _signature(agent)) is not None:
        takes_client = _takes_client(signature, has_task=has_task)
        _check_arguments(signature, name, takes_client + has_task)
    return AgentForm(name, inspect.iscoroutinefunction(function), takes_client, has_task)


def unwrapped(agent: Any) -> Any:
    """The function that ``functools.partial`` binds arguments of; anything else as it is."""
    while isinstance(agent, functools.partial):
        agent = agent.func
    return agent


def _signature(agent: Agent) -> inspect.Signature | None:
    try:
        return inspect.signature(agent)
    except (TypeError, ValueError):
        return None  # a builtin without a signature: the call itself will tell


def _takes_client(signature: inspect.Signature, *, has_task: bool) -> bool:
    """Whether an agent wants the client; one without it builds its own.

    That is one parameter less: none at all, or with a task a single one that is not named client.
    """
    parameters = list(signature.parameters.values())
    if any(p.kind in (p.VAR_POSITIONAL, p.KEYWORD_ONLY) for p in parameters):
        return True
    named_client = bool(parameters) and parameters[0].name == "client"
    return len(parameters) != int(has_task) or named_client


def _check_arguments(signature: inspect.Signature, name: str, count: int) -> None:
    try:
        signature.bind(*[None] * count)
    except TypeError as error:
        given = "(client, task)" if count == 2 else "(client)"
        hint = (
            "Give the agent a second parameter for the task, or leave the task out. (An agent that "
            "builds its own client may take the task alone.)"
            if count == 2
            else "An agent takes the client as its only required parameter when no task is given; "
            "pass task=... if it needs one."
        )
        raise InvalidAgentError(
            f"The agent {name}{signature} cannot be called with {given}: {error}. {hint}"
        ) from None


def reward_of(value: object, where: str) -> float:
    """``value`` as a finite float.

    Raises:
        RewardError: It is no number, NaN or infinite; ``where`` says where it came from.
    """
    # bool, int, float, Fraction, numpy scalars (of which only bool_ is not registered as Real)
    if isinstance(value, (numbers.Real, np.bool_)):
        try:
            reward = float(value)
        except OverflowError:  # an int or a Fraction beyond every float
            reward = math.inf
        if math.isfinite(reward):
            return reward
    raise RewardError(
        f"{where} is {value!r} ({type(value).__name__}); expected a finite number (float, int or "
        "bool). Return the reward, or evert.Outcome(reward, metrics, logs)."
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
    metrics = {
        str(key): reward_of(number, f"The metric {key!r} in the Outcome of the agent {name}")
        for key, number in outcome.metrics.items()
    }
    if outcome.reward is None:
        if rewarded:
            return replace(outcome, metrics=metrics)
        raise RewardError(
            f"The agent {name} ended without a reward: it returned {value!r} and never called "
            "client.reward(x). Return a number (0.0 if that is meant) or call client.reward."
        )
    reward = reward_of(outcome.reward, f"The reward returned by the agent {name}")
    return replace(outcome, reward=reward, metrics=metrics)
