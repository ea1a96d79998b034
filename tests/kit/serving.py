"""Loopback servers and free ports."""

import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web


@asynccontextmanager
async def served(path: str, answer: Any, method: str = "*") -> AsyncIterator[str]:
    """Serve a path (all paths: ``/{path:.*}``) and yield the server's address."""
    app = web.Application()
    app.router.add_route(method, path, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Elsewhere:
    """A server with the Chat Completions API that records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []  # Method, path and body
        self.keys: list[str | None] = []
        self.choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
        self.choice["message"] = {"role": "assistant", "content": "From elsewhere."}
        self.status = 200
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        """Return a completion (or an error if ``status`` is set), an empty model list, or a 404."""
        body = await request.read()
        fields = json.loads(body) if body.startswith(b"{") else None
        self.asked.append((request.method, request.path, fields))
        self.keys.append(request.headers.get("authorization"))
        if request.path != "/v1/chat/completions":
            is_known = request.path == "/v1/models"
            return web.json_response(
                {"data": [], "object": "list"}, status=200 if is_known else 404
            )
        if self.status != 200:
            error = {"message": "No such key.", "type": "t", "param": None, "code": "bad_key"}
            return web.json_response({"error": error}, status=self.status)
        usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11}
        head = {"id": "1", "object": "chat.completion", "created": 1, "model": "m"}
        choices = [self.choice] if self.choice else []
        return web.json_response({**head, "choices": choices, "usage": usage})


def free_port() -> int:
    """Return an unused port of this machine."""
    with socket.create_server(("", 0)) as its:
        return int(its.getsockname()[1])
