"""Helpers shared by all tests.

``messages``
    Chat Completions messages and tools, and replies in the default renderer's format.
``agents``
    Model calls and small agents.
``playing``
    Functions that play an episode or a group, start an Env, or return the rewards of a trajectory.
``renderers``
    Renderers of all families with the bundled vocabulary.
``serving``
    Loopback servers and free ports.
``fixtures``
    Short names for pytest fixtures, ``assert_says``, ``until`` and ``needs_sandbox``.
"""

from tests.kit.agents import ask, ask_blocking, asks, asks_blocking, call, talker
from tests.kit.fixtures import Logs, Patch, Shown, assert_says, needs_sandbox, until
from tests.kit.messages import assistant, calling, system, tokens_of, tool, user
from tests.kit.playing import (
    Numbered,
    as_agent,
    assert_extends,
    play,
    play_group,
    play_recorded,
    play_without_a_call,
    policy_of,
    reward,
    rewards,
    start,
)
from tests.kit.serving import free_port

__all__ = [
    "Logs", "Numbered", "Patch", "Shown", "as_agent", "ask", "ask_blocking", "asks",
    "asks_blocking", "assert_extends", "assert_says", "assistant", "call", "calling", "free_port",
    "needs_sandbox", "play", "play_group", "play_recorded", "play_without_a_call", "policy_of",
    "reward", "rewards", "start", "system", "talker", "tokens_of", "tool", "until", "user",
]  # fmt: skip
