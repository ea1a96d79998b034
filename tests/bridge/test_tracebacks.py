"""The traceback of an agent's exception: the agent's own frames, and no others.

1. Frames of evert and of libraries are left out, as long as one of the agent's own is left.
2. An agent out of a library keeps its library's frames; a command has none.
3. A deep one is cut.
4. Of a group, each exception in it is shown, at any depth.
"""

import asyncio
import functools
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import InitialObservationOverflow

from evert.agents.process import ProcessAgent
from evert.bridge.env.env import ChatAgentEnv
from evert.bridge.errors import AgentError
from evert.bridge.tracebacks import MOST_FRAMES, agent_traceback, told

Agent = Callable[..., Any]


def read(text: str) -> Any:
    return json.loads(text)


async def reads(client: Any) -> float:
    return float(read("{"))


def blocks(client: Any) -> float:
    return float(read("{"))


def even(depth: int) -> float:
    return odd(depth - 1)


def odd(depth: int) -> float:
    if depth > 0:
        return even(depth - 1)
    raise RecursionError("too deep")


def deep(client: Any) -> float:
    return even(50)


async def cause_of(agent: Agent) -> BaseException:
    """What an agent raised, as it comes out of an Env."""
    with pytest.raises(AgentError) as raised:
        await ChatAgentEnv(agent).initial_observation()
    assert raised.value.__cause__ is not None
    return raised.value.__cause__


@pytest.mark.parametrize("agent", [reads, blocks])
async def test_an_agents_own_frames_are_left_whatever_ran_it_and_whatever_it_called(
    agent: Agent,
) -> None:
    first, *frames, last = agent_traceback(await cause_of(agent)).splitlines()

    assert first == "Traceback (most recent call last):"
    assert [line.split(", in ")[1] for line in frames if ", in " in line] == [
        agent.__name__,
        "read",
    ]
    assert last.startswith("json.decoder.JSONDecodeError: Expecting property name")


async def test_an_agent_of_a_library_shows_its_library() -> None:
    # httpx raises out of its own code, called by nobody else's: the Env starts it.
    nothing: Any = None
    agent = functools.partial(httpx.URL, nothing)
    with pytest.raises(TypeError, match="Invalid type for url") as raised:
        agent()
    error = raised.value
    without_this_test = error.__traceback__ and error.__traceback__.tb_next

    shown = agent_traceback(error.with_traceback(without_this_test))

    assert "httpx" in shown
    assert "in __init__" in shown


async def test_what_never_reached_an_agents_code_has_none() -> None:
    assert agent_traceback(await cause_of(ProcessAgent(["no-such-program-anywhere"]))) == ""
    assert agent_traceback(ValueError("made, never raised")) == ""


async def test_of_a_deep_traceback_the_end_is_shown() -> None:
    lines = agent_traceback(await cause_of(deep)).splitlines()

    assert ", in odd" in lines[-3]
    assert sum(", in " in line for line in lines) == MOST_FRAMES
    assert lines[-1] == "RecursionError: too deep"


async def gathers(client: Any) -> float:
    async with asyncio.TaskGroup(), asyncio.TaskGroup() as tasks:
        for text in texts:
            tasks.create_task(reads_later(text))
    return 1.0


texts = ["{"]


async def reads_later(text: str) -> None:
    await asyncio.sleep(0)
    read(text)


async def test_a_group_of_one_is_told_as_what_it_holds() -> None:
    env = ChatAgentEnv(gathers)
    with pytest.raises(AgentError, match="raised JSONDecodeError after 0 model calls: Expecting"):
        await env.initial_observation()

    lines = agent_traceback(await cause_of(gathers)).splitlines()

    assert [line.split(", in ")[1] for line in lines if ", in " in line] == ["reads_later", "read"]
    assert lines[-1].startswith("json.decoder.JSONDecodeError: Expecting property name")


async def test_a_group_of_several_tells_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "texts", ["{", "1 2"])

    with pytest.raises(AgentError) as raised:
        await ChatAgentEnv(gathers).initial_observation()

    assert "raised ExceptionGroup after 0 model calls: unhandled errors" in str(raised.value)
    assert "; JSONDecodeError: Expecting property name" in str(raised.value)
    assert str(raised.value).endswith("; JSONDecodeError: Extra data: line 1 column 3 (char 2)")
    assert agent_traceback(await cause_of(gathers)).count("in reads_later") == 2


def test_a_group_in_three_thousand_groups_is_told() -> None:
    error: Exception = ValueError("deep within")
    for _ in range(3000):
        error = ExceptionGroup("a group", [error])

    assert told(error) == ("ValueError", "deep within")
    assert agent_traceback(error) == ""


async def too_much(client: Any) -> float:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(
            client.chat.completions.create(messages=[{"role": "user", "content": "word " * 99}])
        )
    return 1.0


async def test_a_prompt_too_long_in_a_group_is_an_overflow_and_no_error_of_the_agent() -> None:
    env = ChatAgentEnv(too_much, limits=RolloutLimits(max_trajectory_tokens=50))

    ended = await env.initial_observation()

    assert isinstance(ended, InitialObservationOverflow)
    assert ended.metrics["stop/max_tokens"] == 1.0
