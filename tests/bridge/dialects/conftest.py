"""What Google's SDK sends."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from google import genai


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
