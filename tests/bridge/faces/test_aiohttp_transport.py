"""The rollout's API for aiohttp, without a socket: what comes back is aiohttp's own response, which
needs no session and leaves nothing open."""

import asyncio

import aiohttp
import pytest

from evert.bridge.clients.aiohttp_transport import response_for
from evert.bridge.clients.dialects.endpoint import EVENTS, Answer

LARGE = b"data: {}\n\n" * 300_000


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError("a socket was asked for")

    monkeypatch.setattr(asyncio.BaseEventLoop, "create_connection", refuse)
    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", refuse)


async def test_it_is_aiohttps_own_response_with_its_status_and_raises_where_that_is_asked_for() -> (
    None
):
    for status, reason in [(200, "OK"), (400, "Bad Request"), (429, "Too Many Requests")]:
        answer = Answer(status, b'{"x": "\xc3\xbc"}')
        response = await response_for(answer)
        assert type(response) is aiohttp.ClientResponse
        assert (response.status, response.ok, response.reason) == (status, status == 200, reason)
        assert response.content_type == "application/json"
        assert await response.json() == {"x": "ü"}
        if status != 200:
            with pytest.raises(aiohttp.ClientResponseError) as caught:
                await response_for(answer, raise_for_status=True)
            assert caught.value.status == status


async def test_every_byte_comes_back_whole_piece_by_piece_or_line_by_line() -> None:
    for content in (b"", b"x", b"data: 1\n\ndata: 2\n\n", LARGE):
        responses = [await response_for(Answer(200, content, EVENTS)) for _ in range(3)]
        assert responses[0].content_type == EVENTS
        assert await responses[0].read() == content
        assert b"".join([piece async for piece in responses[1].content.iter_any()]) == content
        assert [line async for line in responses[2].content] == content.splitlines(keepends=True)


async def test_nothing_is_left_open_whether_it_is_read_or_not() -> None:
    tasks = asyncio.all_tasks()
    responses = [await response_for(Answer(200, LARGE)) for _ in range(3)]

    assert asyncio.all_tasks() == tasks
    assert all(response.connection is None for response in responses)
    assert len(await responses[0].read()) == len(LARGE)
    responses[1].close()
    del responses
