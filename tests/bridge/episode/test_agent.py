"""Supported forms of agents, their return values, and the options of their Env."""

import asyncio
import copy
import dataclasses
import functools
import inspect
import math
import pickle
import warnings
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from tests.kit import asks, assert_says
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert import (
    AgentClient,
    ChatAgentEnv,
    InvalidAgentError,
    InvalidModelError,
    Outcome,
    RewardError,
)
from evert.bridge.env.options import EnvOptions, EnvSettings, options_with_own, settings_of
from evert.bridge.episode.agent import (
    FORMS,
    NO_TASK,
    AgentForm,
    agent_name,
    inspect_agent,
    outcome_of,
    reward_of,
)

HERE = __name__


async def with_client(client: Any) -> float:
    return 1.0


async def with_task(client: Any, task: Any) -> float:
    return 1.0


def blocking(client: Any) -> float:
    return 1.0


async def without_client() -> float:
    return 1.0


async def with_its_task_alone(question: str) -> float:
    return 1.0


async def with_options(client: Any, task: Any, *, tone: str = "dry") -> float:
    return 1.0


async def with_required_option(client: Any, task: Any, *, tone: str) -> float:
    return 1.0


def generator(client: Any) -> Iterator[float]:
    yield 1.0


async def async_generator(client: Any) -> AsyncIterator[float]:
    yield 1.0


class Agents:
    async def method(self, client: Any, task: Any) -> float:
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


partial = functools.partial

CLIENT, BOTH = ("client",), ("client", "task")
FORMS_THAT_ARE_AGENTS: list[tuple[Any, object, bool, tuple[str, ...]]] = [
    (with_client, NO_TASK, True, CLIENT),
    (with_task, 7, True, BOTH),
    (with_task, None, True, BOTH),  # None is a task like any other
    (blocking, NO_TASK, False, CLIENT),
    (with_options, 7, True, BOTH),
    (Agents().method, 7, True, BOTH),
    (Agents.class_method, NO_TASK, True, CLIENT),
    (Agents.static_method, 7, False, BOTH),
    (AsyncCallable(), NO_TASK, True, CLIENT),
    (BlockingCallable(), 7, False, BOTH),
    (partial(with_required_option, tone="warm"), 7, True, BOTH),
    (partial(with_task, task=7), NO_TASK, True, CLIENT),
    (partial(partial(with_options, tone="a"), tone="b"), 7, True, BOTH),
    (partial(AsyncCallable()), NO_TASK, True, CLIENT),
    (partial(BlockingCallable(), task=1), NO_TASK, False, CLIENT),
    (functools.lru_cache(blocking), NO_TASK, False, CLIENT),
    (max, 7, False, BOTH),
    (without_client, NO_TASK, True, ()),
    (with_its_task_alone, 7, True, ("task",)),
    (partial(with_client, None), NO_TASK, True, ()),
]


@pytest.mark.parametrize(("agent", "task", "is_async", "roles"), FORMS_THAT_ARE_AGENTS)
def test_every_form_of_agent_is_recognised(
    agent: Any, task: Any, is_async: Any, roles: Any
) -> None:
    assert inspect_agent(agent, task) == AgentForm(agent_name(agent), is_async, roles), agent


def echo(*arguments: object, **options: object) -> tuple[tuple[object, ...], dict[str, object]]:
    """Return the arguments it was called with."""
    return arguments, options


CALLED: list[tuple[Any, object, tuple[object, ...]]] = [
    (lambda client: echo(client), NO_TASK, ("C",)),
    (lambda client, question: echo(client, question), 7, ("C", 7)),
    (lambda question, client: echo(question, client), 7, (7, "C")),
    (lambda question, *, client: echo(question, client), 7, (7, "C")),
    (lambda client, *, task: echo(client, task), 7, ("C", 7)),
    (lambda *, client, task: echo(client, task), 7, ("C", 7)),
    (lambda question, *, name="policy": echo(question, name), 7, (7, "policy")),
    (lambda question, name="policy": echo(question, name), 7, (7, "policy")),
    (lambda client, hint="none", task=0: echo(client, hint, task), 7, ("C", "none", 7)),
    (lambda hint="none", client=None: echo(hint, client), NO_TASK, ("none", "C")),
    (lambda name="policy": echo(name), NO_TASK, ("policy",)),
    (lambda: echo(), NO_TASK, ()),
    (echo, 7, ("C", 7)),
    (lambda *rest, client: echo(*rest, client), 7, (7, "C")),
    (partial(lambda client, task, tone: echo(client, task, tone), tone="x"), 7, ("C", 7, "x")),
    (partial(lambda client, task: echo(client, task), client="mine"), 7, ("mine", 7)),
    (partial(lambda task, *, client: echo(task, client), client="mine"), 7, (7, "mine")),
    (partial(lambda client, task: echo(client, task), task=5), NO_TASK, ("C", 5)),
]


def test_the_client_is_passed_as_client_and_the_task_as_the_first_other_parameter() -> None:
    for row, (agent, task, expected) in enumerate(CALLED):
        assert inspect_agent(agent, task).bound(agent, "C", task)() == (expected, {}), row


def test_an_agents_name_shows_where_it_is_defined() -> None:
    for agent, name in (
        (with_client, f"{HERE}.with_client"),
        (Agents().method, f"{HERE}.Agents.method"),
        (AsyncCallable(), "AsyncCallable"),
        (partial(with_options, tone="x"), f"partial({HERE}.with_options)"),
        (partial(AsyncCallable()), "partial(AsyncCallable)"),
        (print, "print"),
    ):
        assert agent_name(agent) == name


NO_CALLABLE = "An agent must be callable; got {0!r} of type {1}. Pass the function itself, not"
A_CLASS = f"got the class {HERE}.AsyncCallable. Pass an instance: AsyncCallable(...)."
YIELDS = "is a generator function, but an agent must run to completion and return its reward. Repl"
NO_TASK_GIVEN = f"{FORMS} Pass task=... if it needs one."
NO_PARAMETER = "it has no parameter for the task"
REFUSED: list[tuple[Any, object, list[str]]] = [
    *[(thing, NO_TASK, [NO_CALLABLE.format(thing, type(thing).__name__), FORMS]) for thing in (None,
        1.0, "agent", {"agent": 1}, [with_client])],
    (AsyncCallable, NO_TASK, [A_CLASS]),
    (AsyncCallable, 7, [A_CLASS]),
    (partial(AsyncCallable), NO_TASK, ["got the class"]),
    *[(agent, NO_TASK, [f"The agent {agent_name(agent)} {YIELDS}"]) for agent in (generator,
        async_generator, GeneratorCallable(), partial(generator), partial(GeneratorCallable()))],
    *[(agent, NO_TASK, [f"{agent_name(agent)}(", f" cannot be called with {called}: ",
        problem]) for called, problem, agents in (("(client)", "missing a required argument",
        [with_task, Agents().method]), ("(client)", NO_TASK_GIVEN, [BlockingCallable(),
        with_options]), ("()", NO_TASK_GIVEN, [with_its_task_alone, divmod,
        len])) for agent in agents],
    (with_options, NO_TASK, ["(client: Any, task: Any, *, tone: str = 'dry') -> float", "'task'"]),
    (without_client, 7, [f"cannot be called with (): {NO_PARAMETER}", FORMS]),
    (with_client, 7, [f"cannot be called with (client): {NO_PARAMETER}", FORMS]),
    (AsyncCallable(), 7, [NO_PARAMETER]),
    (partial(with_task, task=7), 7, [NO_PARAMETER]),
    (with_required_option, 7, ["missing a required argument: 'tone'", FORMS]),
    (lambda chat, question: 1.0, 7, ["missing a required argument: 'question'"]),
]  # fmt: skip


@pytest.mark.parametrize(("agent", "task", "said"), REFUSED, ids=range(len(REFUSED)))
def test_the_error_for_an_invalid_agent_describes_it(
    agent: Any, task: object, said: list[str]
) -> None:
    with pytest.raises(InvalidAgentError) as caught:
        inspect_agent(agent, task)
    assert [text for text in said if text not in str(caught.value)] == []


def test_every_type_of_finite_number_is_a_valid_reward() -> None:
    numbers: list[Any] = [True, 0, 3, -0.5, Fraction(1, 4), np.float32(0.5), np.float64(-2)]
    for value in (*numbers, np.uint8(7), np.bool_(True), np.bool_(False)):
        assert reward_of(value, "It") == float(value)
        assert type(reward_of(value, "It")) is float
        assert outcome_of(value, "agent", rewarded=False) == Outcome(float(value))


def test_a_reward_that_is_not_a_finite_number_is_rejected() -> None:
    beyond = [math.nan, math.inf, -math.inf, np.float32("nan"), 10**400, Fraction(10**400)]
    values = [1j, "1.0", b"1", [1.0], {"reward": 1.0}, np.array([1.0]), object, Decimal("0.5")]
    for value in (*beyond, *values):
        kind = type(value).__name__
        with pytest.raises(RewardError) as caught:
            outcome_of(value, "some.agent", rewarded=True)
        message = str(caught.value)
        assert message.startswith("The reward returned by the agent some.agent is "), kind
        assert f"({kind}); expected a finite number (float, int or bool)." in message
        assert message.endswith("Return the reward, or evert.Outcome(reward, metrics, logs).")
        with pytest.raises(RewardError, match="^It is "):
            reward_of(value, "It")
    for outcome, what in (
        (Outcome(math.nan), "The reward returned by"),
        (Outcome(1.0, {"moves": math.nan}), "The metric 'moves' in the Outcome of"),
    ):
        with pytest.raises(RewardError, match=rf"{what} the agent some\.agent is nan \(float\)"):
            outcome_of(outcome, "some.agent", rewarded=True)


def test_returning_none_is_an_error_unless_client_reward_was_called() -> None:
    silent = Outcome(metrics={"moves": 3})
    for value in (None, silent):
        with pytest.raises(RewardError) as caught:
            outcome_of(value, "some.agent", rewarded=False)
        assert_says(caught.value, f"some.agent ended without a reward: it returned {value!r}")
        assert_says(caught.value, "never called client.reward(x)", "Return a number (0.0 for")
    assert outcome_of(None, "some.agent", rewarded=True) == Outcome(None)
    assert outcome_of(silent, "some.agent", rewarded=True) == silent


def test_the_keys_of_an_outcomes_metrics_and_logs_become_strings() -> None:
    metrics, logs = cast(Any, {1: 3}), cast(Any, {2: "won"})
    outcome = outcome_of(Outcome(True, metrics, logs), "some.agent", rewarded=False)
    assert outcome == Outcome(1.0, {"1": 3}, {"2": "won"})
    assert type(outcome.reward) is float


async def test_a_returned_awaitable_is_rejected_and_a_coroutine_is_closed() -> None:
    coroutine = with_client(None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # turn "never awaited" warnings into errors
        with pytest.raises(RewardError) as caught:
            outcome_of(coroutine, "some.agent", rewarded=True)
        assert inspect.getcoroutinestate(coroutine) == inspect.CORO_CLOSED
        del coroutine
    assert_says(caught.value, "some.agent returned an awaitable", "Declare it `async def`")
    future: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    with pytest.raises(RewardError, match="returned an awaitable, not a reward"):
        outcome_of(future, "some.agent", rewarded=True)


def test_no_task_remains_a_singleton_when_copied_or_pickled() -> None:
    assert pickle.loads(pickle.dumps(NO_TASK)) is NO_TASK
    assert copy.copy(NO_TASK) is copy.deepcopy(NO_TASK) is NO_TASK
    assert repr(NO_TASK) == "NO_TASK"


# -- options ---------------------------------------------------------------------------------------


def test_env_options_and_env_settings_have_the_same_names() -> None:
    names = [field.name for field in dataclasses.fields(EnvSettings)]

    assert names == list(EnvOptions.__annotations__)
    documented = EnvSettings.__doc__ or ""
    assert all(f"        {name}: " in documented for name in names)


def test_options_have_defaults_and_a_renewed_env_keeps_its_options() -> None:
    assert settings_of({}) == EnvSettings()
    assert settings_of({"limits": None}).limits == RolloutLimits()
    assert settings_of({"agent_timeout": None}).agent_timeout is None
    assert settings_of({"policy_names": ["a", "b"]}).names == ("a", "b")
    env = ChatAgentEnv(asks, policy_names="student", format_retries=0)
    assert env.renewed()._settings == env._settings


class Demanding:
    env_options: Any = {"policy_names": "gpt-5", "format_retries": 7}  # noqa: RUF012

    async def __call__(self, client: AgentClient) -> float:
        return float(client.model == "gpt-5")


class Mistyped(Demanding):
    env_options: Any = {"policy_name": "gpt-5"}  # noqa: RUF012


class Wrong(Demanding):
    env_options = "gpt-5"


async def test_options_passed_by_the_user_override_the_agents_own() -> None:
    brought: Any = await ChatAgentEnv(Demanding()).initial_observation()
    passed = ChatAgentEnv(Demanding(), policy_names="gpt-6").renewed()
    overridden: Any = await passed.initial_observation()

    assert (brought.reward, overridden.reward) == (1.0, 0.0)
    assert options_with_own(functools.partial(Demanding()), {}) == Demanding.env_options


@pytest.mark.parametrize(
    ("agent", "given", "error", "said"),
    [
        (asks, {"agent_timout": 5}, TypeError, "'agent_timout'. Did you mean 'agent_timeout'"),
        (asks, {"on_truncation": "drop"}, ValueError, "on_truncation is 'drop'; expected 'deliv"),
        (asks, {"policy_names": []}, InvalidModelError, "policy_names must be"),
        (Mistyped(), {}, TypeError, "'policy_name'. Did you mean 'policy_names'"),
        (Wrong(), {}, InvalidAgentError, "Wrong has env_options='gpt-5'; expected a dict"),
    ],
)
def test_the_error_for_an_unknown_option_or_value_suggests_the_known_ones(
    agent: Any, given: Any, error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        ChatAgentEnv(agent, **given)
