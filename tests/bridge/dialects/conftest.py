"""Replies, what the SDKs' own signatures say, and what Google's SDK sends."""

import inspect
import json
from collections.abc import Callable
from typing import Any, get_overloads

import httpx2
import pytest
from google import genai
from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.chat.reply import FinishReason, Reply


def _reply(
    text: str = "Hello.",
    *,
    reasoning: str | None = None,
    calls: tuple[tuple[str, str], ...] = (),
    finish_reason: FinishReason = "stop",
    stop_string: str | None = None,
) -> Reply:
    tool_calls = tuple(
        ToolCall(
            id=f"call-{number}", function=ToolCall.FunctionBody(name=name, arguments=arguments)
        )
        for number, (name, arguments) in enumerate(calls)
    )
    parsed = Message(role="assistant", content=text)
    return Reply(parsed, text, reasoning, tool_calls, (), finish_reason, 11, 3, stop_string)


@pytest.fixture
def reply() -> Callable[..., Reply]:
    """Makes a reply of 11 prompt tokens and 3 sampled ones."""
    return _reply


@pytest.fixture
def parameters_of() -> Callable[..., set[str]]:
    """The names that a method of an SDK takes, in all of its overloads."""

    def parameters(*methods: Any) -> set[str]:
        functions = [one for method in methods for one in (method, *get_overloads(method))]
        names = {name for one in functions for name in inspect.signature(one).parameters}
        return names - {"self"}

    return parameters


def _sent(contents: Any = "Hi", **config: Any) -> dict[str, Any]:
    bodies: list[dict[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies.append(json.loads(request.content))
        return httpx2.Response(200, json={"candidates": []})

    arguments = {"transport": httpx2.MockTransport(answer)}
    client = genai.Client(api_key="x", http_options={"client_args": arguments})
    client.models.generate_content(model="policy", contents=contents, config=config)  # type: ignore[arg-type]
    return bodies[0]


@pytest.fixture
def sent() -> Callable[..., dict[str, Any]]:
    """The body that Google's SDK sends for contents and a config."""
    return _sent
