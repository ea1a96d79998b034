"""The rollout's API in process, without a socket: both HTTP libraries, and what is answered when a
rollout is given up."""

import asyncio
import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from google import genai
from tests.bridge.faces.conftest import play_without_a_call
from tests.bridge.faces.sdk_calls import REFUSALS
from tests.kit import play, reward, user

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv
from evert.bridge.clients.httpx_transport import Transport
from evert.bridge.errors import AgentAborted

HELLO: Any = [user("Hello?")]
LIBRARIES: list[Any] = [httpx, httpx2]
every_library = pytest.mark.parametrize("library", LIBRARIES)


@pytest.fixture(autouse=True)
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"the network was used: {arguments}")

    for name in ("connect", "connect_ex", "sendto", "bind"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection", "gethostbyname"):
        monkeypatch.setattr(socket, name, refuse)


def body(client: Any, **fields: Any) -> dict[str, Any]:
    return {"model": client.model, "messages": HELLO, **fields}


def text(response: Any) -> str:
    return str(response.json()["choices"][0]["message"]["content"])


# -- both libraries ------------------------------------------------------------------------------


@every_library
async def test_an_async_client_gets_its_own_librarys_response(library: Any) -> None:
    async def agent(client: AgentClient) -> bool:
        async with library.AsyncClient(
            transport=client.transport, base_url=client.transport.base_url
        ) as http:
            response = await http.post("/chat/completions", json=body(client))
            assert type(response) is library.Response
            assert response.request.url.host == "rollout.invalid"
            lines = []
            async with http.stream(
                "POST", "/chat/completions", json=body(client, stream=True)
            ) as stream:
                async for line in stream.aiter_lines():
                    lines.append(line)
        assert "data: [DONE]" in lines
        return text(response) == "Fine."

    assert reward(await play(agent)) == 1.0


@every_library
async def test_a_blocking_client_gets_its_own_librarys_response(library: Any) -> None:
    def agent(client: BlockingAgentClient) -> bool:
        with library.Client(transport=client.transport, base_url=client.transport.base_url) as http:
            response = http.post("/chat/completions", json=body(client))
            assert type(response) is library.Response
            with http.stream("POST", "/chat/completions", json=body(client, stream=True)) as stream:
                lines = [*stream.iter_lines()]
        assert "data: [DONE]" in lines
        return text(response) == "Fine."

    assert reward(await play(agent)) == 1.0


@every_library
async def test_bodies_that_are_streams_are_read(library: Any) -> None:
    async def agent(client: AgentClient) -> bool:
        async def pieces() -> Any:
            content = json.dumps(body(client)).encode()
            yield content[:10]
            yield content[10:]

        async with library.AsyncClient(transport=client.transport) as http:
            url = f"{client.transport.base_url}/chat/completions"
            return text(await http.post(url, content=pieces())) == "Fine."

    assert reward(await play(agent)) == 1.0


async def test_the_transport_is_a_context_manager_of_both_kinds_that_holds_nothing() -> None:
    async def agent(client: AgentClient) -> bool:
        assert isinstance(client.transport, Transport)
        with client.transport as same:
            assert same is client.transport
        async with client.transport as same:
            assert same is client.transport
        client.transport.close()
        await client.transport.aclose()
        async with httpx.AsyncClient(transport=client.transport) as http:  # type: ignore[arg-type]
            url = f"{client.transport.base_url}/chat/completions"
            return text(await http.post(url, json=body(client))) == "Fine."

    assert reward(await play(agent)) == 1.0


async def test_it_is_bound_to_its_rollout_wherever_it_is_used() -> None:
    """Some frameworks lose context variables on the way."""
    found: dict[str, Transport] = {}
    said: dict[str, str] = {}
    met = asyncio.Barrier(2)

    async def agent(client: AgentClient, task: str) -> float:
        found[task] = client.transport
        await met.wait()
        other = found[{"one": "two", "two": "one"}[task]]
        async with httpx.AsyncClient(transport=other) as http:  # type: ignore[arg-type]
            url = f"{other.base_url}/chat/completions"
            said[task] = text(await http.post(url, json={"messages": HELLO}))
        await met.wait()
        return 1.0

    await asyncio.gather(play(agent, "From one.", task="one"), play(agent, "From two.", task="two"))
    assert said == {"one": "From two.", "two": "From one."}


# -- other paths ---------------------------------------------------------------------------------


async def test_another_path_is_a_404_that_says_what_there_is() -> None:
    others = [
        ("GET", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/v1/embeddings"),
        ("DELETE", "/v1/responses/resp_1"),
        ("GET", "/"),
        ("POST", "/v1/models"),
    ]

    async def agent(client: AgentClient) -> float:
        async with httpx.AsyncClient(transport=client.transport) as http:  # type: ignore[arg-type]
            for method, path in others:
                response = await http.request(method, f"{client.transport.root_url}{path}")
                error = response.json()["error"]
                assert (response.status_code, error["type"]) == (404, "not_found_error"), path
                said = f"Nothing answers {method} {path.rstrip('/')} here. "
                assert error["message"].startswith(said)
        return 1.0

    await play_without_a_call(agent)


async def test_a_slash_at_the_end_makes_no_difference() -> None:
    async def agent(client: AgentClient) -> bool:
        async with httpx.AsyncClient(transport=client.transport) as http:  # type: ignore[arg-type]
            url = f"{client.transport.base_url}/chat/completions/"
            return text(await http.post(url, json=body(client))) == "Fine."

    assert reward(await play(agent)) == 1.0


# -- the end -------------------------------------------------------------------------------------


async def test_closing_answers_a_call_that_waits_with_a_400_of_the_sdk() -> None:
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

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await env.close()

    kinds = [openai.BadRequestError, anthropic.BadRequestError, genai.errors.ClientError]
    assert [type(error) for error in errors] == kinds
    assert errors[0].code == "rollout_over"
    assert all("was closed: this rollout is over" in str(error) for error in errors)
    assert not env.is_running


async def test_an_agent_that_goes_on_calling_is_ended_and_its_thread_is_freed() -> None:
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

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await env.close()

    assert refusals == ["rollout_over"] * 4  # the call that waited, and three that came too late
    assert [type(error) for error in ended_by] == [AgentAborted]
    assert not threads[0].is_alive()


async def test_an_async_agent_that_swallows_everything_is_ended_too() -> None:
    refusals: list[str | None] = []

    async def agent(client: AgentClient) -> float:
        while True:
            try:
                await client.openai.chat.completions.create(**body(client))
            except openai.BadRequestError as error:
                refusals.append(error.code)
            except asyncio.CancelledError:
                refusals.append("cancelled")

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await env.close()

    assert not env.is_running
    assert 1 <= len(refusals) <= 8


async def test_threads_of_many_agents_that_wait_are_freed() -> None:
    def agent(client: BlockingAgentClient) -> float:
        client.openai_sync.chat.completions.create(**body(client))
        return 0.0

    envs = [ChatAgentEnv(agent) for _ in range(50)]
    await asyncio.gather(*(env.initial_observation() for env in envs))
    waiting = [t for t in threading.enumerate() if t.name.startswith("evert agent ")]
    assert len(waiting) >= 50
    await asyncio.gather(*(env.close() for env in envs))

    assert not any(thread.is_alive() for thread in waiting)


async def test_a_call_after_the_end_is_a_400() -> None:
    kept: list[AgentClient] = []

    async def agent(client: AgentClient) -> float:
        kept.append(client)
        await client.openai.chat.completions.create(**body(client))
        return 1.0

    assert reward(await play(agent)) == 1.0
    with pytest.raises(openai.BadRequestError, match="had ended") as caught:
        await kept[0].openai.chat.completions.create(**body(kept[0]))
    assert caught.value.code == "rollout_over"
