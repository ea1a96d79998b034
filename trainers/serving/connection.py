"""Sends requests to a token-id server. Each event loop keeps its own HTTP sessions.

Sessions live as long as their event loop: each one is held by an asynchronous generator, which
``asyncio.run`` closes. This way, rollouts that each run on a new loop don't leave sessions open.
"""

import asyncio
import io
from collections.abc import AsyncGenerator, Mapping
from typing import Any

import aiohttp
import orjson

from evert.bridge.ownership import left_alone
from evert.trainers.engine.common.errors import EngineClosedError, SamplingRequestError
from evert.trainers.serving.errors import NotServedError, ServerGoneError, ServingError

KEEP_ALIVE, KEEP_ALIVE_EVERT = 4.0, 25.0
"""How long to keep idle connections, in seconds. This must be shorter than the server's own timeout
(5 s in uvicorn, 30 s in evert). It should be long, because reconnecting takes as long as four
requests and workers are idle during training steps."""

LONG_BODY = 2**20
"""Bodies of at least this many bytes are passed to aiohttp as a stream."""

CONNECT_TIME = 30.0
"""Connection timeout in seconds."""

_Place = tuple[asyncio.AbstractEventLoop, float]
_open: dict[_Place, tuple[aiohttp.ClientSession, AsyncGenerator[aiohttp.ClientSession]]] = {}
"""Maps (event loop, keep-alive seconds) to a session and the generator that closes it."""


async def ask(
    url: str,
    key: str | None,
    body: bytes | None,
    timeout: float,  # noqa: ASYNC109
    keep_alive: float = KEEP_ALIVE,
) -> bytes:
    """POST JSON, or GET if ``body`` is None. Return the response within ``timeout`` seconds."""
    headers = {"Content-Type": "application/json"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    limit = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT_TIME)
    session = await _session(keep_alive)
    method = "GET" if body is None else "POST"
    data = io.BytesIO(body) if body is not None and len(body) >= LONG_BODY else body
    try:
        with left_alone():  # so that evert doesn't intercept this request inside an agent
            async with session.request(
                method, url, data=data, headers=headers, timeout=limit
            ) as answer:
                content = await answer.read()
    except TimeoutError as error:
        raise ServerGoneError(
            f"{url} did not respond within {timeout:g} s. Check that the server "
            "is running and not overloaded, or raise timeout=."
        ) from error
    except (aiohttp.ClientError, OSError) as error:
        raise ServerGoneError(
            f"{url} could not be reached or closed the connection ({type(error).__name__}: "
            f"{error}). Check that the server, or the trainer that runs it, is still running."
        ) from error
    if answer.status != 200:
        raise _failure(url, answer.status, content)
    return content


def _failure(url: str, status: int, content: bytes) -> Exception:
    kind, message = _read_error(content)
    if kind == "EngineClosedError":
        return EngineClosedError(message)
    if status in (400, 413, 422):
        return SamplingRequestError(message)
    if status == 404:
        return NotServedError(f"{url}: {message}")
    advice = " Pass the server's API key with api_key=." if status in (401, 403) else ""
    return ServingError(f"{url} returned {status} ({kind or 'error'}): {message}{advice}")


def _read_error(content: bytes) -> tuple[str, str]:
    try:
        body: Any = orjson.loads(content)
        error = body.get("error", body) if isinstance(body, Mapping) else body
        if isinstance(error, Mapping):
            return str(error.get("type", "")), str(error.get("message") or error)
        return "", str(error)
    except ValueError:
        return "", content[:500].decode("utf-8", "replace") or "(nothing)"


async def _session(keep_alive: float) -> aiohttp.ClientSession:
    place = asyncio.get_running_loop(), keep_alive
    if place not in _open:
        holder = _open_session(place)
        _open[place] = await anext(holder), holder
    return _open[place][0]


async def _open_session(place: _Place) -> AsyncGenerator[aiohttp.ClientSession]:
    """Yield a session that stays open until the event loop closes its generators."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=place[1])
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            yield session
    finally:
        del _open[place]
