"""What a policy may say, and an agent played against it, for the tests of every SDK."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import tinker_cookbook.renderers as cookbook
from tinker_cookbook.renderers.qwen3 import Qwen3Renderer
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv, ScriptedPolicy
from evert.bridge.tokens.bases import base_tokenizer


def calling(name: str, **arguments: Any) -> str:
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


LONG = "The quick brown fox jumps over the lazy dog, twice — and the dog says: “gut!” 🐕"
THOUGHT = "<think>\nHm, let me think about all of this.\n</think>\n\n"
ONE_CALL = calling("add", x=1, why="because it has to be long enough for two deltas")
SAID = {
    "text": LONG,
    "nothing": "",
    "reasoning": f"{THOUGHT}So be it.",
    "one call": ONE_CALL,
    "text and call": f"Let me see.\n{ONE_CALL}",
    "parallel calls": f"{calling('add', x=1)}\n{calling('look', x=2)}\n{calling('add')}",
    "reasoning and calls": f"{THOUGHT}{calling('add', x=1)}\n{calling('look', x=2)}",
}
every_reply = pytest.mark.parametrize("said", SAID.values(), ids=SAID)


@pytest.fixture(params=["instruct", "thinking"])
def renderer(request: pytest.FixtureRequest) -> cookbook.Renderer | None:
    """The default, and one that shows in the history what was thought."""
    if request.param == "instruct":
        return None
    return Qwen3Renderer(base_tokenizer(), strip_thinking_from_history=False)


Play = Callable[..., Awaitable[Trajectory]]


@pytest.fixture
def play(renderer: cookbook.Renderer | None) -> Play:
    """Plays an agent against given replies."""

    async def playing(agent: Any, *replies: str, **options: Any) -> Trajectory:
        script = ScriptedPolicy(replies, renderer)
        return await do_single_rollout(script, ChatAgentEnv(agent, renderer=renderer, **options))

    return playing
