"""What a policy may say, and a server that stands for the network, for the tests of every SDK."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import tinker_cookbook.renderers as cookbook
from aiohttp import web
from tinker_cookbook.renderers.qwen3 import Qwen3Renderer
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv
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


@pytest.fixture(params=["instruct", "thinking"])
def renderer(request: pytest.FixtureRequest) -> cookbook.Renderer | None:
    """The default, and one that shows in the history what was thought."""
    if request.param == "instruct":
        return None
    return Qwen3Renderer(base_tokenizer(), strip_thinking_from_history=False)


async def play_without_a_call(agent: Any, **options: Any) -> None:
    """An episode in which the policy is never asked, of an agent that asserts for itself."""
    end: Any = await ChatAgentEnv(agent, **options).initial_observation()
    assert end.reward == 1.0


ODD = calling("look", q="ü\n\"'\\ 🐕", x=[1, {"y": None}], z=1.50)
CONVERSATION = [LONG, ONE_CALL, ONE_CALL, "Well.", ODD, "", calling("look"), "  Bye.\n"]
"""What a policy says, turn by turn, that a conversation has to keep to the token."""


def assert_one_lineage(trajectory: Trajectory, *, drift: str | None = None) -> None:
    """Each prompt begins with the last one and the very tokens that were sampled."""
    assert {t.logs["drift"] for t in trajectory.transitions if "drift" in t.logs} <= {drift}
    assert trajectory.transitions[-1].metrics["lineages"] == 1
    for before, after in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
        known = before.ob.to_ints() + before.ac.tokens
        assert after.ob.to_ints()[: len(known)] == known
    [datum] = trajectory_to_data(trajectory, 1.0)
    last = trajectory.transitions[-1]
    assert datum.model_input.length == last.ob.length + len(last.ac.tokens) - 1


class Elsewhere:
    """A loopback server that stands for the network."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        """A completion, a list of no models, or a 404."""
        body = await request.read()
        sent = json.loads(body) if body.startswith(b"{") else None
        self.asked.append((request.method, request.path, sent))
        if request.path != "/v1/chat/completions":
            known = request.path == "/v1/models"
            return web.json_response({"data": [], "object": "list"}, status=200 if known else 404)
        message = {"role": "assistant", "content": "From elsewhere."}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        return web.json_response({**head, "choices": [choice]})


@pytest_asyncio.fixture
async def elsewhere() -> AsyncIterator[Elsewhere]:
    """The server, for the time of a test."""
    server = Elsewhere()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield server
    await runner.cleanup()
