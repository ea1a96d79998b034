"""The traceback of an agent's exception: the agent's own frames, and no others.

1. Frames of evert and of libraries are left out, as long as one of the agent's own is left.
2. An agent out of a library keeps its library's frames; a command has none.
3. A deep one is cut.
"""

import functools
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from evert.bridge.env import ChatAgentEnv
from evert.bridge.errors import AgentError
from evert.bridge.faces.process import ProcessAgent
from evert.bridge.tracebacks import MOST_FRAMES, agent_traceback

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
