"""What counts as an agent, and what it may return.

1. Functions, methods, partials and callable objects are agents, sync or async. The client goes to
   the parameter called ``client``, wherever it stands; the task to ``task``, or the first other.
2. Everything else is refused at once, with what we got, what was expected and what to do.
3. A reward is a finite real number, whatever its type; anything else is an error, never 0.0.
4. None is allowed only after ``client.reward``.
"""

import copy
import functools
import inspect
import math
import pickle
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import FrozenInstanceError
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from evert.bridge.episode.agent import (
    FORMS,
    NO_TASK,
    AgentForm,
    Outcome,
    agent_name,
    inspect_agent,
    outcome_of,
    reward_of,
)
from evert.bridge.errors import InvalidAgentError, RewardError

HERE = __name__


async def with_client(client: Any) -> float:
    return 1.0


async def with_task(client: Any, task: Any) -> float:
    return 1.0


def blocking_with_client(client: Any) -> float:
    return 1.0


def blocking_with_task(client: Any, task: Any) -> float:
    return 1.0


async def without_client() -> float:
    return 1.0


async def with_optional_task(client: Any, task: Any = None) -> float:
    return 1.0


async def with_options(client: Any, task: Any, *, tone: str = "dry") -> float:
    return 1.0


async def with_required_option(client: Any, task: Any, *, tone: str) -> float:
    return 1.0


async def with_anything(*arguments: Any, **options: Any) -> float:
    return 1.0


def generator(client: Any) -> Iterator[float]:
    yield 1.0


async def async_generator(client: Any) -> AsyncIterator[float]:
    yield 1.0


class Agents:
    async def method(self, client: Any, task: Any) -> float:
        return 1.0

    def blocking_method(self, client: Any) -> float:
        return 1.0

    @classmethod
    async def class_method(cls, client: Any) -> float:
        return 1.0

    @staticmethod
    def static_method(client: Any, task: Any) -> float:
        return 1.0


class AsyncCallable:
    async def __call__(self, client: Any) -> float:
        return 1.0


class BlockingCallable:
    def __call__(self, client: Any, task: Any) -> float:
        return 1.0


class GeneratorCallable:
    def __call__(self, client: Any) -> Iterator[float]:
        yield 1.0


# -- forms that are agents -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("agent", "task", "is_async"),
    [
        (with_client, NO_TASK, True),
        (with_task, 7, True),
        (blocking_with_client, NO_TASK, False),
        (blocking_with_task, 7, False),
        (with_optional_task, NO_TASK, True),
        (with_optional_task, 7, True),
        (with_options, 7, True),
        (with_anything, NO_TASK, True),
        (with_anything, 7, True),
        (Agents().method, 7, True),
        (Agents().blocking_method, NO_TASK, False),
        (Agents.class_method, NO_TASK, True),
        (Agents.static_method, 7, False),
        (AsyncCallable(), NO_TASK, True),
        (BlockingCallable(), 7, False),
        (functools.partial(with_options, tone="warm"), 7, True),
        (functools.partial(with_required_option, tone="warm"), 7, True),
        (functools.partial(blocking_with_task, task=7), NO_TASK, False),
        (functools.partial(functools.partial(with_options, tone="a"), tone="b"), 7, True),
        (functools.partial(AsyncCallable()), NO_TASK, True),
        (functools.partial(BlockingCallable(), task=1), NO_TASK, False),
        (functools.lru_cache(blocking_with_client), NO_TASK, False),
        (lambda client: 1.0, NO_TASK, False),
        (print, NO_TASK, False),
        (max, 7, False),
    ],
    ids=lambda value: agent_name(value) if callable(value) else str(value),
)
def test_every_form_of_agent_is_told_apart(agent: Any, task: object, is_async: bool) -> None:
    form = inspect_agent(agent, task)

    roles = ("client",) if task is NO_TASK else ("client", "task")
    assert form == AgentForm(agent_name(agent), is_async, roles)


def told(*arguments: object, **options: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """What an agent was called with."""
    return arguments, options


@pytest.mark.parametrize(
    ("agent", "task", "got"),
    [
        (lambda client: told(client), NO_TASK, (("C",), {})),
        (lambda client, question: told(client, question), 7, (("C", 7), {})),
        (lambda question, client: told(question, client), 7, ((7, "C"), {})),
        (lambda question, *, client: told(question, client), 7, ((7, "C"), {})),
        (lambda client, *, task: told(client, task), 7, (("C", 7), {})),
        (lambda *, client, task: told(client, task), 7, (("C", 7), {})),
        (lambda question, *, name="policy": told(question, name), 7, ((7, "policy"), {})),
        (lambda question, name="policy": told(question, name), 7, ((7, "policy"), {})),
        (lambda client, hint="none", task=0: told(client, hint, task), 7, (("C", "none", 7), {})),
        (lambda hint="none", client=None: told(hint, client), NO_TASK, (("none", "C"), {})),
        (lambda name="policy": told(name), NO_TASK, (("policy",), {})),
        (lambda: told(), NO_TASK, ((), {})),
        (told, 7, (("C", 7), {})),
        (lambda *rest, client: told(*rest, client), 7, ((7, "C"), {})),
        (functools.partial(lambda client, task, tone: told(client, task, tone), tone="dry"), 7,
         (("C", 7, "dry"), {})),
        (functools.partial(lambda client, task: told(client, task), client="mine"), 7,
         (("mine", 7), {})),
        (functools.partial(lambda task, *, client: told(task, client), client="mine"), 7,
         ((7, "mine"), {})),
        (functools.partial(lambda client, task: told(client, task), task=5), NO_TASK,
         (("C", 5), {})),
    ],
)  # fmt: skip
def test_the_client_goes_to_the_parameter_of_that_name_and_the_task_to_the_first_other(
    agent: Any, task: object, got: object
) -> None:
    form = inspect_agent(agent, task)
    assert form.bound(agent, "C", task)() == got


async def with_its_task_alone(question: str) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("agent", "task", "roles"),
    [
        (without_client, NO_TASK, ()),
        (with_its_task_alone, 7, ("task",)),
        (functools.partial(with_its_task_alone), 7, ("task",)),
        (functools.partial(with_client, None), NO_TASK, ()),
        (with_client, NO_TASK, ("client",)),
    ],
)
def test_an_agent_that_builds_its_own_client_takes_none(
    agent: Any, task: object, roles: tuple[str, ...]
) -> None:
    assert inspect_agent(agent, task).positional == roles


def test_none_is_a_task_like_any_other() -> None:
    assert inspect_agent(with_task, None).positional == ("client", "task")
    assert inspect_agent(with_client).positional == ("client",)


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (with_client, f"{HERE}.with_client"),
        (Agents().method, f"{HERE}.Agents.method"),
        (AsyncCallable(), "AsyncCallable"),
        (functools.partial(with_options, tone="x"), f"partial({HERE}.with_options)"),
        (functools.partial(AsyncCallable()), "partial(AsyncCallable)"),
        (print, "print"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_agents_name_says_where_to_find_it(agent: Any, name: str) -> None:
    assert agent_name(agent) == name


# -- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("thing", [None, 1.0, "agent", {"agent": 1}, [with_client]])
def test_what_is_no_callable_is_refused(thing: Any) -> None:
    with pytest.raises(InvalidAgentError) as caught:
        inspect_agent(thing)

    assert str(caught.value) == (
        f"An agent must be a callable; got {thing!r} of type {type(thing).__name__}. Pass the "
        f"function itself, not its result. {FORMS}"
    )


def test_a_coroutine_is_refused_as_the_result_of_an_agent() -> None:
    coroutine = with_client(None)
    with pytest.raises(InvalidAgentError, match="of type coroutine. Pass the function itself"):
        inspect_agent(coroutine)  # type: ignore[arg-type]
    coroutine.close()


@pytest.mark.parametrize("task", [NO_TASK, 7])
def test_a_class_is_refused_and_an_instance_asked_for(task: object) -> None:
    with pytest.raises(InvalidAgentError) as caught:
        inspect_agent(AsyncCallable, task)

    assert str(caught.value) == (
        f"An agent must be a function or an instance with __call__; got the class "
        f"{HERE}.AsyncCallable. Pass an instance: AsyncCallable(...)."
    )


def test_a_partial_of_a_class_is_refused_like_the_class() -> None:
    class Configured:
        def __init__(self, client: Any, size: int) -> None: ...

    with pytest.raises(InvalidAgentError, match="got the class"):
        inspect_agent(functools.partial(Configured, size=3))


@pytest.mark.parametrize(
    "agent",
    [
        generator,
        async_generator,
        GeneratorCallable(),
        functools.partial(generator),
        functools.partial(GeneratorCallable()),
    ],
    ids=agent_name,
)
def test_generators_are_refused_in_every_disguise(agent: Any) -> None:
    with pytest.raises(InvalidAgentError) as caught:
        inspect_agent(agent)

    assert str(caught.value) == (
        f"The agent {agent_name(agent)} is a generator function; an agent runs to its end and "
        "returns its reward. Replace `yield` by calls to the client and `return` the reward."
    )


@pytest.mark.parametrize(
    ("agent", "called"),
    [
        (with_task, "(client)"),
        (blocking_with_task, "(client)"),
        (with_options, "(client)"),
        (Agents().method, "(client)"),
        (BlockingCallable(), "(client)"),
        (with_its_task_alone, "()"),
        (divmod, "()"),
        (len, "()"),
    ],
    ids=lambda value: value if isinstance(value, str) else agent_name(value),
)
def test_without_a_task_an_agent_may_need_nothing_but_the_client(agent: Any, called: str) -> None:
    with pytest.raises(InvalidAgentError) as caught:
        inspect_agent(agent)

    message = str(caught.value)
    assert message.startswith(f"The agent {agent_name(agent)}(")
    assert f" cannot be called with {called}: missing a required argument" in message
    assert message.endswith(f"{FORMS} Pass task=... if it needs one.")


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        (without_client, "cannot be called with (): it has no parameter for the task"),
        (with_client, "cannot be called with (client): it has no parameter for the task"),
        (Agents().blocking_method, "it has no parameter for the task"),
        (AsyncCallable(), "it has no parameter for the task"),
        (functools.partial(with_task, task=7), "it has no parameter for the task"),
        (with_required_option, "missing a required argument: 'tone'"),
        (lambda chat, question: 1.0, "missing a required argument: 'question'"),
    ],
    ids=lambda value: value if isinstance(value, str) else agent_name(value),
)
def test_with_a_task_an_agent_needs_a_parameter_for_it(agent: Any, problem: str) -> None:
    with pytest.raises(InvalidAgentError) as caught:
        inspect_agent(agent, 7)

    message = str(caught.value)
    assert message.startswith(f"The agent {agent_name(agent)}(")
    assert problem in message
    assert message.endswith(FORMS)


def test_the_three_forms_stand_in_the_message() -> None:
    for form in ("agent(client)", "agent(client, task)", "agent() or agent(task)"):
        assert form in FORMS
    assert "called 'client'" in FORMS


def test_the_message_shows_the_arguments_that_the_agent_has() -> None:
    with pytest.raises(InvalidAgentError, match="missing a required argument: 'task'") as caught:
        inspect_agent(with_options)

    assert "with_options(client: Any, task: Any, *, tone: str = 'dry') -> float" in str(
        caught.value
    )


# -- rewards -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "reward"),
    [
        (True, 1.0),
        (False, 0.0),
        (3, 3.0),
        (-0.5, -0.5),
        (Fraction(1, 4), 0.25),
        (np.float32(0.5), 0.5),
        (np.float64(-2.0), -2.0),
        (np.int64(7), 7.0),
        (np.uint8(7), 7.0),
        (np.bool_(True), 1.0),
        (np.bool_(False), 0.0),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_kind_of_finite_number_is_a_reward(value: Any, reward: float) -> None:
    assert reward_of(value, "It") == reward
    assert type(reward_of(value, "It")) is float
    assert outcome_of(value, "agent", rewarded=False) == Outcome(reward)


@pytest.mark.parametrize(
    "value",
    [
        math.nan,
        math.inf,
        -math.inf,
        np.float32("nan"),
        10**400,
        Fraction(10**400),
        1j,
        "1.0",
        b"1",
        [1.0],
        {"reward": 1.0},
        np.array([1.0]),
        object,
    ],
    ids=lambda value: f"{type(value).__name__}-{value!r:.12}",
)
def test_what_is_no_finite_number_is_no_reward(value: Any) -> None:
    with pytest.raises(RewardError) as caught:
        outcome_of(value, "some.agent", rewarded=True)

    message = str(caught.value)
    assert message.startswith("The reward returned by the agent some.agent is ")
    assert f"({type(value).__name__}); expected a finite number (float, int or bool)." in message
    assert message.endswith("Return the reward, or evert.Outcome(reward, metrics, logs).")
    with pytest.raises(RewardError, match="^It is "):
        reward_of(value, "It")


def test_a_decimal_is_refused_because_it_is_no_python_real() -> None:
    with pytest.raises(RewardError, match=r"Decimal\('0.5'\) \(Decimal\)"):
        reward_of(Decimal("0.5"), "It")


def test_none_is_no_reward_unless_the_client_was_given_one() -> None:
    with pytest.raises(RewardError) as caught:
        outcome_of(None, "some.agent", rewarded=False)

    assert str(caught.value) == (
        "The agent some.agent ended without a reward: it returned None and never called "
        "client.reward(x). Return a number (0.0 if that is meant) or call client.reward."
    )
    assert outcome_of(None, "some.agent", rewarded=True) == Outcome(None)


def test_an_outcome_keeps_its_metrics_and_logs() -> None:
    outcome = outcome_of(Outcome(True, {"moves": 3}, {"end": "won"}), "some.agent", rewarded=False)

    assert outcome == Outcome(1.0, {"moves": 3}, {"end": "won"})
    assert type(outcome.reward) is float


def test_an_outcome_without_a_reward_needs_one_from_the_client() -> None:
    silent = Outcome(metrics={"moves": 3})

    assert outcome_of(silent, "some.agent", rewarded=True) == silent
    with pytest.raises(RewardError, match="ended without a reward: it returned Outcome"):
        outcome_of(silent, "some.agent", rewarded=False)


def test_an_outcomes_reward_must_be_a_finite_number_too() -> None:
    with pytest.raises(RewardError, match=r"agent some\.agent is nan \(float\)"):
        outcome_of(Outcome(math.nan), "some.agent", rewarded=True)


def test_outcomes_share_no_dicts_and_cannot_be_reassigned() -> None:
    first, second = Outcome(), Outcome()
    first.metrics["moves"] = 1

    assert second.metrics == {}
    with pytest.raises(FrozenInstanceError):
        first.reward = 1.0  # type: ignore[misc]


def test_a_returned_coroutine_is_closed_and_refused() -> None:
    async def inner() -> float:
        return 1.0

    coroutine = inner()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "never awaited" would be one
        with pytest.raises(RewardError) as caught:
            outcome_of(coroutine, "some.agent", rewarded=True)
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
        del coroutine

    assert str(caught.value) == (
        "The agent some.agent returned an awaitable, not a reward: it is a plain function around "
        "an async one. Declare it `async def` and `return await ...`."
    )


async def test_a_returned_future_is_refused() -> None:
    import asyncio

    future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    with pytest.raises(RewardError, match="returned an awaitable, not a reward"):
        outcome_of(future, "some.agent", rewarded=True)


# -- NO_TASK -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "copied",
    [lambda x: pickle.loads(pickle.dumps(x)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_no_task_stays_the_same_object_when_copied(copied: Callable[[object], object]) -> None:
    assert copied(NO_TASK) is NO_TASK
    assert repr(NO_TASK) == "NO_TASK"
