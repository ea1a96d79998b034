"""The in-process transport, which never opens a socket. Each HTTP library gets responses of its own
type, and closing a rollout answers its pending calls."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai
from tests.bridge.clients.sdk_calls import REFUSALS
from tests.kit import Patch, play, reward, start, user

from evert import AgentClient, BlockingAgentClient
from evert.bridge.clients.aiohttp_transport import response_for
from evert.bridge.clients.dialects.api import EVENTS, ApiResponse
from evert.bridge.clients.httpx_transport import Transport
from evert.bridge.errors import AgentAborted

HELLO: Any = [user("Hello?")]
LIBRARIES: list[Any] = [httpx, httpx2]


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: Patch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"the network was used: {arguments}")

    for name in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)


def body(client: Any, **fields: Any) -> dict[str, Any]:
    return {"model": client.model, "messages": HELLO, **fields}


def url_of(transport: Transport) -> str:
    return f"{transport.base_url}/chat/completions"


def text(response: Any) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


@pytest.mark.parametrize("library", LIBRARIES)
async def test_each_http_library_gets_its_own_response_type(library: Any) -> None:
    async def agent(client: AgentClient) -> bool:
        async def pieces() -> AsyncIterator[bytes]:
            content = json.dumps(body(client)).encode()
            yield content[:10]
            yield content[10:]

        url = url_of(client.transport)
        async with library.AsyncClient(transport=client.transport) as http:
            response = await http.post(url, json=body(client))
            assert type(response) is library.Response
            assert response.request.url.host == "rollout.invalid"
            async with http.stream("POST", url, json=body(client, stream=True)) as stream:
                lines = [line async for line in stream.aiter_lines()]
            in_pieces = await http.post(f"{url}/", content=pieces())
        assert "data: [DONE]" in lines
        return text(response) == text(in_pieces) == "Fine."

    def blocking(client: BlockingAgentClient) -> bool:
        url = url_of(client.transport)
        with library.Client(transport=client.transport) as http:
            response = http.post(url, json=body(client))
            assert type(response) is library.Response
            with http.stream("POST", url, json=body(client, stream=True)) as stream:
                lines = [*stream.iter_lines()]
        assert "data: [DONE]" in lines
        return text(response) == "Fine."

    agents: list[Any] = [agent, blocking]
    for form in agents:
        assert reward(await play(form)) == 1.0


async def test_the_transport_is_a_sync_and_async_context_manager() -> None:
    async def agent(client: AgentClient) -> bool:
        assert isinstance(client.transport, Transport)
        transport: Any = client.transport
        with transport as same:
            assert same is transport
        async with transport as same:
            assert same is transport
        transport.close()
        await transport.aclose()
        async with httpx.AsyncClient(transport=transport) as http:
            return text(await http.post(url_of(transport), json=body(client))) == "Fine."

    assert reward(await play(agent)) == 1.0


async def test_the_transport_is_bound_to_its_rollout() -> None:
    """Some frameworks do not propagate context variables."""
    transports: dict[str, Any] = {}
    texts: dict[str, str] = {}
    barrier = asyncio.Barrier(2)

    async def agent(client: AgentClient, task: str) -> float:
        transports[task] = client.transport
        await barrier.wait()
        transport = transports[{"one": "two", "two": "one"}[task]]
        async with httpx.AsyncClient(transport=transport) as http:
            texts[task] = text(await http.post(url_of(transport), json={"messages": HELLO}))
        await barrier.wait()
        return 1.0

    await asyncio.gather(play(agent, "From one.", task="one"), play(agent, "From two.", task="two"))
    assert texts == {"one": "From two.", "two": "From one."}


async def close_while_it_waits(agent: Any) -> None:
    """Play an episode up to its first call, then close its Env."""
    env = await start(agent)
    await env.close()
    assert not env.is_running


async def test_closing_the_env_answers_a_pending_call_with_the_sdks_400() -> None:
    errors: list[Any] = []

    def agent(client: BlockingAgentClient) -> float:
        fields = body(client)
        calls: list[Callable[[], Any]] = [
            lambda: client.openai_sync.chat.completions.create(**fields),
            lambda: client.anthropic_sync.messages.create(**fields, max_tokens=9),
            lambda: client.genai.models.generate_content(model=client.model, contents="Hi"),
        ]
        for call in calls:
            try:
                call()
            except REFUSALS as error:
                errors.append(error)
        return 0.0

    await close_while_it_waits(agent)

    kinds = [openai.BadRequestError, anthropic.BadRequestError, genai.errors.ClientError]
    assert [type(error) for error in errors] == kinds
    assert errors[0].code == "rollout_over"
    assert all("was closed: this rollout is over" in str(error) for error in errors)


async def test_an_agent_that_keeps_making_calls_after_the_rollout_is_stopped() -> None:
    refusals: list[str | None] = []
    ended_by: list[BaseException] = []
    threads: list[threading.Thread] = []

    def agent(client: BlockingAgentClient) -> float:
        threads.append(threading.current_thread())
        try:
            while True:
                try:
                    client.openai_sync.chat.completions.create(**body(client))
                except openai.BadRequestError as error:
                    refusals.append(error.code)
        except BaseException as error:
            ended_by.append(error)
            raise

    await close_while_it_waits(agent)

    assert refusals == ["rollout_over"] * 4  # the pending call and three late ones
    assert [type(error) for error in ended_by] == [AgentAborted]
    assert not threads[0].is_alive()


LARGE = b"data: {}\n\n" * 300_000


async def test_aiohttp_gets_its_own_response_with_status_and_raise_for_status() -> None:
    for status, reason in [
        (200, "OK"),
        (400, "Bad Request"),
        (429, "Too Many Requests"),
        (529, ""),
    ]:
        answer = ApiResponse(status, b'{"x": "\xc3\xbc"}')
        response = await response_for(answer)
        assert type(response) is aiohttp.ClientResponse
        assert (response.status, response.ok, response.reason) == (status, status == 200, reason)
        assert response.content_type == "application/json"
        assert await response.json() == {"x": "ü"}
        if status != 200:
            with pytest.raises(aiohttp.ClientResponseError) as caught:
                await response_for(answer, raise_for_status=True)
            assert caught.value.status == status


async def test_aiohttp_can_read_a_response_at_once_in_chunks_or_by_line() -> None:
    for content in (b"", b"x", b"data: 1\n\ndata: 2\n\n", LARGE):
        responses = [await response_for(ApiResponse(200, content, EVENTS)) for _ in range(3)]
        assert responses[0].content_type == EVENTS
        assert await responses[0].read() == content
        assert b"".join([piece async for piece in responses[1].content.iter_any()]) == content
        assert [line async for line in responses[2].content] == content.splitlines(keepends=True)


async def test_aiohttp_responses_leave_nothing_open_even_if_they_are_not_read() -> None:
    tasks = asyncio.all_tasks()
    responses = [await response_for(ApiResponse(200, LARGE)) for _ in range(3)]

    assert asyncio.all_tasks() == tasks
    assert all(response.connection is None for response in responses)
    assert len(await responses[0].read()) == len(LARGE)
    responses[1].close()
    del responses
