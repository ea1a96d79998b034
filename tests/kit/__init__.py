"""One kit for all tests.

``messages``
    Messages and tools of the Chat Completions API, and replies of the default renderer's policy.
``agents``
    Model calls, and small agents.
``playing``
    ``play`` an agent's episode, ``play_group``, ``start`` an Env; what a trajectory earned.
``renderers``
    Renderers of every family, and tokenizers of chat templates, on the shipped vocabulary.
``serving``
    Loopback servers, and free ports.
``fixtures``
    Short names for pytest's fixtures, words of messages, conditions to wait for or skip without.
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
