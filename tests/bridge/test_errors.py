"""The error hierarchy, the pickling of errors, and the traceback shown for an agent's exception. If
any frames of the traceback are the agent's own, only those frames are shown."""

import asyncio
import copy
import functools
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.kit import ask
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert import AgentError, ChatAgentEnv, ProcessAgent
from evert.bridge import errors
from evert.bridge.errors import AgentAborted, EvertError
from evert.bridge.tracebacks import MOST_FRAMES, agent_traceback, name_and_message

ALL: list[Any] = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and value.__module__ == errors.__name__
]


def test_every_error_is_an_evert_error_and_a_standard_exception() -> None:
    for error in set(ALL) - {EvertError, AgentAborted}:
        root, parent = error.__bases__
        assert root is EvertError, error
        assert parent.__module__ == "builtins", error
        assert issubclass(parent, Exception), error
    assert EvertError.__bases__ == (Exception,)
    assert AgentAborted.__bases__ == (BaseException,), "`except Exception` must not catch it"
    assert issubclass(errors.AgentTimeoutError, TimeoutError)


def test_every_error_pickles_and_copies_with_its_type_and_message() -> None:
    protocols = range(pickle.HIGHEST_PROTOCOL + 1)
    for error in ALL:
        error_sent = error("The agent some.agent did this; expected that. Do so.")
        pickled = [pickle.loads(pickle.dumps(error_sent, protocol)) for protocol in protocols]
        for received in (*pickled, copy.copy(error_sent), copy.deepcopy(error_sent)):
            assert type(received) is error
            assert (str(received), received.args) == (str(error_sent), error_sent.args), error


async def reads(client: Any) -> float:
    return float(json.loads("{"))


def even(client: Any, depth: int = 50) -> float:
    return odd(client, depth - 1)


def odd(client: Any, depth: int) -> float:
    return even(client, depth - 1) if depth > 0 else float(json.loads("{"))


class Gathers:
    """An agent that parses texts in nested task groups."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts

    async def __call__(self, client: Any) -> float:
        async with asyncio.TaskGroup(), asyncio.TaskGroup() as tasks:
            for text in self.texts:
                tasks.create_task(reads_later(text))
        return 1.0


async def reads_later(text: str) -> None:
    await asyncio.sleep(0)
    json.loads(text)


async def raised_by(agent: Any) -> tuple[str, str]:
    """Return the Env's error message and the traceback of the agent's exception."""
    with pytest.raises(AgentError) as raised:
        await ChatAgentEnv(agent).initial_observation()
    assert raised.value.__cause__ is not None
    return str(raised.value), agent_traceback(raised.value.__cause__)


def functions(text: str) -> list[str]:
    return [line.split(", in ")[1] for line in text.splitlines() if ", in " in line]


@pytest.mark.parametrize(
    ("agent", "frames"),
    [
        (reads, ["reads"]),
        (even, ["even", "odd"] * (MOST_FRAMES // 2)),  # only the last frames are kept
        (Gathers("{"), ["reads_later"]),  # a group with one exception is unwrapped
    ],
)
async def test_a_traceback_keeps_only_the_agents_own_frames(agent: Any, frames: list[str]) -> None:
    message, trace = await raised_by(agent)

    assert "raised JSONDecodeError after 0 model calls: Expecting" in message
    assert trace.startswith("Traceback (most recent call last):\n")
    assert functions(trace) == frames
    last = trace.splitlines()[-1]
    assert last.startswith("json.decoder.JSONDecodeError: Expecting property name")
    assert (await raised_by(ProcessAgent(["no-such-program-anywhere"])))[1] == ""
    assert agent_traceback(ValueError("made, never raised")) == ""


async def test_the_traceback_of_an_agent_from_a_library_shows_the_library() -> None:
    # Apart from the Env's own code, only httpx code is on the stack.
    nothing: Any = None
    agent = functools.partial(httpx.URL, nothing)
    with pytest.raises(TypeError, match="Invalid type for url") as raised:
        agent()
    error = raised.value
    without_this_test = error.__traceback__ and error.__traceback__.tb_next

    trace = agent_traceback(error.with_traceback(without_this_test))

    assert "httpx" in trace
    assert "in __init__" in trace


RAISES_IN_A_LIBRARY = """
import httpx
from evert.bridge.tracebacks import own_frames
try:
    httpx.URL(None)
except TypeError as error:
    print([frame.filename for frame in own_frames(error)])
"""


def test_a_library_is_recognised_behind_a_symbolic_link(tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(sys.prefix)
    python = tmp_path / "linked" / "bin" / Path(sys.executable).name

    printed = subprocess.check_output([python, "-c", RAISES_IN_A_LIBRARY], text=True)

    assert printed == "['<string>']\n"


async def test_each_exception_in_a_nested_group_is_shown() -> None:
    message, trace = await raised_by(Gathers("{", "1 2"))
    assert "raised ExceptionGroup after 0 model calls: unhandled errors" in message
    assert "; JSONDecodeError: Expecting property name" in message
    assert message.endswith("; JSONDecodeError: Extra data: line 1 column 3 (char 2)")
    assert trace.count("in reads_later") == 2

    error: Exception = ValueError("deep within")
    for _ in range(3000):
        error = ExceptionGroup("a group", [error])
    assert (name_and_message(error), agent_traceback(error)) == (("ValueError", "deep within"), "")


async def test_a_context_overflow_in_an_exception_group_is_not_an_agent_error() -> None:
    async def too_much(client: Any) -> float:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ask(client, "word " * 99))
        return 1.0

    env = ChatAgentEnv(too_much, limits=RolloutLimits(max_trajectory_tokens=50))
    ended: Any = await env.initial_observation()

    assert ended.metrics["stop/max_tokens"] == 1.0
