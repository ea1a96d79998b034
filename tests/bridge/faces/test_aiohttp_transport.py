"""The rollout's API for aiohttp, without a socket: what comes back is aiohttp's own response, which
needs no session and leaves nothing open."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from evert.bridge.clients.aiohttp_transport import response_for
from evert.bridge.clients.dialects.endpoint import EVENTS, Answer

LARGE = b"data: {}\n\n" * 300_000


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    async def refuse(*_: Any, **__: Any) -> None:
        raise OSError("a socket was asked for")

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", refuse)
    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", refuse)
    return iter(())


async def test_it_is_aiohttps_own_response() -> None:
    content = b'{"x": "\xc3\xbc"}'
    response = await response_for(Answer(200, content))

    assert type(response) is aiohttp.ClientResponse
    assert (response.status, response.ok, response.reason) == (200, True, "OK")
    assert response.content_type == "application/json"
    assert await response.json() == json.loads(content)
    assert await response.read() == content


async def test_every_byte_comes_back_whole_or_piece_by_piece() -> None:
    for content in (b"", b"x", LARGE):
        assert await (await response_for(Answer(200, content, EVENTS))).read() == content
        response = await response_for(Answer(200, content, EVENTS))
        assert response.content_type == EVENTS
        assert b"".join([piece async for piece in response.content.iter_any()]) == content


async def test_the_lines_of_a_stream_are_read_one_by_one() -> None:
    response = await response_for(Answer(200, b"data: 1\n\ndata: 2\n\n", EVENTS))

    assert [line async for line in response.content if line.strip()] == [b"data: 1\n", b"data: 2\n"]


async def test_an_error_has_its_status_and_raises_where_that_is_asked_for() -> None:
    for status, reason in [(400, "Bad Request"), (429, "Too Many Requests")]:
        answer = Answer(status, b'{"error": {}}')
        response = await response_for(answer)
        assert (response.status, response.reason) == (status, reason)
        assert await response.json() == {"error": {}}
        with pytest.raises(aiohttp.ClientResponseError) as caught:
            await response_for(answer, raise_for_status=True)
        assert caught.value.status == status


async def test_nothing_is_left_open_whether_it_is_read_or_not() -> None:
    tasks = asyncio.all_tasks()
    responses = [await response_for(Answer(200, LARGE)) for _ in range(3)]

    assert asyncio.all_tasks() == tasks
    assert all(response.connection is None for response in responses)
    assert len(await responses[0].read()) == len(LARGE)
    responses[1].close()
    del responses


async def test_many_at_once_are_never_mixed_up() -> None:
    answers = [Answer(200, f"[{number}]".encode()) for number in range(50)]
    responses = await asyncio.gather(*map(response_for, answers))

    assert [await response.json() for response in responses] == [[n] for n in range(50)]
