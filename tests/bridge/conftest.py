"""Renderers of every family, on the shipped tokenizer with the control tokens they expect; and a
server that stands for the network."""

import copy
import inspect
import json
import re
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import tinker_cookbook.renderers as cookbook
from aiohttp import web

from evert.bridge.tokens.bases import base_tokenizer

CONTROL_TOKEN = re.compile(r"<[|｜][^\s<>\"'{}]{1,40}[|｜]>|\[gMASK\]|<sop>")

FAMILIES = [
    "qwen3_instruct",
    "qwen3",
    "qwen3_disable_thinking",
    "qwen3_5",
    "qwen3_5_preserve_thinking",
    "qwen3_8_disable_thinking",
    "llama3",
    "role_colon",
    "deepseekv3",
    "deepseekv3_thinking",
    "deepseekv4_1_disable_thinking",
    "glm5_3_low_reasoning",
    "kimi_k2",
    "kimi_k26_preserve_thinking",
    "nemotron3",
    "nemotron3_preserve_thinking",
    "gpt_oss_no_sysprompt",
]


@cache
def tokenizer_for_all_families() -> Any:
    """The shipped tokenizer, told of every control token that the Cookbook's sources mention."""
    folder = Path(inspect.getfile(cookbook)).parent
    found = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"}
    for source in folder.glob("*.py"):
        found.update(CONTROL_TOKEN.findall(source.read_text()))
    tokenizer = copy.deepcopy(base_tokenizer())
    tokenizer.add_special_tokens({"additional_special_tokens": sorted(found)})
    return tokenizer


def renderer_named(name: str) -> cookbook.Renderer:
    """A renderer by its Cookbook name."""
    return cookbook.get_renderer(name, tokenizer_for_all_families(), model_name="test")


@pytest.fixture
def make_renderer() -> Callable[[str], cookbook.Renderer]:
    """``renderer_named``."""
    return renderer_named


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> cookbook.Renderer:
    """One renderer of each family in turn."""
    return renderer_named(request.param)


class Elsewhere:
    """A loopback server that speaks OpenAI's chat completions."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []  # Method, path and body
        self.keys: list[str | None] = []
        self.choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        self.choice["message"] = {"role": "assistant", "content": "From elsewhere."}
        self.status = 200
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        """A completion, or a refusal of that status; a list of no models; or a 404."""
        body = await request.read()
        sent = json.loads(body) if body.startswith(b"{") else None
        self.asked.append((request.method, request.path, sent))
        self.keys.append(request.headers.get("authorization"))
        if request.path != "/v1/chat/completions":
            known = request.path == "/v1/models"
            return web.json_response({"data": [], "object": "list"}, status=200 if known else 404)
        if self.status != 200:
            error = {"message": "No such key.", "type": "t", "param": None, "code": "bad_key"}
            return web.json_response({"error": error}, status=self.status)
        usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        choices = [self.choice] if self.choice else []
        return web.json_response({**head, "choices": choices, "usage": usage})


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
