"""Errors for calls with a wrong model name, path or key, and for late calls, in every API.

``tests/trainers/engine`` has a similar test for the embedded engine's network guard.
"""

import asyncio
import socket
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import lm15
import openai
import pytest
from google import genai
from tests.bridge.clients.sdk_calls import (
    ASYNC,
    BLOCKING,
    LM15,
    MODEL,
    REFUSALS,
    blocking_anthropic,
    blocking_openai,
)
from tests.kit import Patch, as_agent, play, play_without_a_call, reward, user
from tinker_cookbook.renderers import Message

from evert import AgentClient, AgentError
from evert.bridge.clients.http import server
from evert.bridge.ownership import left_alone

HELLO: Any = [user("Hello?")]
OTHER = "gpt-5.2"
BODY = {"model": OTHER, "messages": HELLO}
URL = "https://api.openai.com/v1/chat/completions"
CAUSE = (
    "The agent requested 'gpt-5.2'; the policy is called 'policy'. To send these calls to the "
    "policy, set policy_names='gpt-5.2'. To send them to another model, declare it with "
    "models={'gpt-5.2': ...}."
)


def network(monkeypatch: Patch, errno: int) -> list[str]:
    """Make every DNS lookup fail with this error. Returns the list of names looked up so far."""
    looked_up: list[str] = []

    def getaddrinfo(host: Any, *_: Any, **__: Any) -> Any:
        looked_up.append(host if isinstance(host, str) else bytes(host).decode())
        raise socket.gaierror(errno, "no address")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return looked_up


@pytest.fixture
def no_network(monkeypatch: Patch) -> list[str]:
    return network(monkeypatch, socket.EAI_NONAME)


@pytest.fixture
def bad_network(monkeypatch: Patch) -> list[str]:
    """Simulate a machine whose DNS server is temporarily unavailable."""
    return network(monkeypatch, socket.EAI_AGAIN)


# -- unreachable models --------------------------------------------------------------------------


def takes_a_model(sdk: str) -> bool:
    has_model = sdk not in ("genai without aiohttp", "genai on Vertex")
    return has_model and not (sdk.startswith("lm15") and sdk.endswith("stream"))


async def test_an_unreachable_model_gets_a_400_without_a_retry(no_network: list[str]) -> None:
    def is_told(sdk: str, error: Exception) -> None:
        assert CAUSE in str(error), sdk
        assert "cannot be reached from here." in str(error), sdk
        assert len(no_network) == 1, f"{sdk} retried the request"
        no_network.clear()

    def agent() -> float:
        for sdk in filter(takes_a_model, BLOCKING):
            with pytest.raises(REFUSALS) as caught:
                BLOCKING[sdk]("Hello?", OTHER)
            is_told(sdk, caught.value)
        return 1.0

    async def asynchronous() -> float:
        for sdk in filter(takes_a_model, ASYNC):
            with pytest.raises(REFUSALS) as caught:
                await ASYNC[sdk]("Hello?", OTHER)
            is_told(sdk, caught.value)
        return 1.0

    await play_without_a_call(agent)
    await play_without_a_call(asynchronous)


@pytest.mark.usefixtures("no_network")
@as_agent()
async def test_requests_without_an_sdk_get_the_error_as_a_response() -> None:
    async with (
        httpx.AsyncClient() as old,
        httpx2.AsyncClient() as new,
        aiohttp.ClientSession() as session,
    ):
        clients: list[Any] = [old, new]
        answers = [(await client.post(URL, json=BODY)).json() for client in clients]
        answers.append(await (await session.post(URL, json=BODY)).json())
    for error in (answer["error"] for answer in answers):
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["message"] == f"{CAUSE} api.openai.com cannot be reached from here."


@pytest.mark.usefixtures("no_network")
async def test_an_agent_that_does_not_catch_the_error_fails_with_its_message() -> None:
    with pytest.raises(AgentError) as caught:
        await play_without_a_call(lambda: blocking_openai("Hello?", OTHER))

    assert type(caught.value).__name__ == "AgentError.BadRequestError"
    assert str(caught.value).count("the policy is called 'policy'") == 1


@pytest.mark.usefixtures("no_network")
async def test_the_policy_answers_under_its_configured_name() -> None:
    def agent() -> bool:
        return blocking_openai("Hi", OTHER) == blocking_anthropic("Hi", OTHER) == "Fine."

    assert reward(await play(agent, policy_names=OTHER)) == 1.0


async def test_the_error_for_a_failing_frozen_model_names_it_and_is_not_retried() -> None:
    calls: list[str] = []

    def judge(messages: list[Message]) -> str:
        calls.append("judge")
        raise ValueError("no such game")

    def agent() -> float:
        for call in (blocking_openai, blocking_anthropic):
            with pytest.raises(REFUSALS, match="'judge' failed: ValueError: no such game"):
                call("Who won?", "judge")
        return 1.0

    await play_without_a_call(agent, models={"judge": judge})
    assert calls == ["judge"] * 2


async def test_an_unavailable_dns_server_is_a_connection_error_that_sdks_retry(
    bad_network: list[str],
) -> None:
    def agent() -> None:
        with pytest.raises(openai.APIConnectionError):
            blocking_openai("Hello?", OTHER, max_retries=1)
        blocking_openai("Hello?", OTHER, max_retries=0)

    with pytest.raises(AgentError) as caught:
        await play_without_a_call(agent)

    assert str(caught.value).endswith(f"Connection error. {CAUSE}")
    assert bad_network == ["api.openai.com"] * 3


async def test_a_closed_port_is_a_connection_error_in_every_library() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        root = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    url, router = f"{root}/chat/completions", LM15["openai-chat"]

    async def agent() -> float:
        with pytest.raises(httpx.ConnectError):
            await asyncio.to_thread(httpx.post, url, json=BODY)
        async with httpx2.AsyncClient() as client, aiohttp.ClientSession() as session:
            with pytest.raises(httpx2.ConnectError):
                await client.post(url, json=BODY)
            with pytest.raises(aiohttp.ClientConnectorError):
                await session.post(url, json=BODY)
        with pytest.raises(lm15.TransportError):
            await router.ask("Hello?", OTHER, base_url=root)
        with pytest.raises(lm15.TransportError):
            await asyncio.to_thread(router.ask_blocking, "Hello?", OTHER, base_url=root)
        return 1.0

    await play_without_a_call(agent)


async def test_the_rollout_address_accepts_any_model_name() -> None:
    async def agent(client: AgentClient) -> float:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as sdk:
            await sdk.chat.completions.create(model=OTHER, messages=HELLO)
        raise KeyError("of another cause")

    with pytest.raises(AgentError) as caught:
        await play(agent)

    assert OTHER not in str(caught.value)


async def test_every_common_variant_of_the_base_url_works() -> None:
    """Some SDKs expect /v1 in the base URL and some do not, so users mix them up."""
    ends = ["", "/", "/v1", "/v1/", "/v1/v1", "/v1/chat/completions", "/api"]
    texts: list[Any] = []

    async def agent(client: AgentClient) -> float:
        address = client.serve()
        with left_alone():  # use real HTTP, as another process would
            for end in ends:
                at: Any = {"base_url": f"{address.root_url}{end}", "api_key": address.api_key}
                async with openai.AsyncOpenAI(**at) as sdk, anthropic.AsyncAnthropic(**at) as two:
                    chat = await sdk.chat.completions.create(model=OTHER, messages=HELLO)
                    response = await sdk.responses.create(model=OTHER, input="Hello?")
                    fields: Any = {"model": OTHER, "messages": HELLO, "max_tokens": 9}
                    message = await two.messages.create(**fields)
                texts.append(chat.choices[0].message.content)
                texts.extend([response.output_text, message.content[0].text])
        return 1.0

    await play(agent)
    assert texts == ["Fine."] * 3 * len(ends)


# -- keys ----------------------------------------------------------------------------------------

ADVICE = "Send client.api_key, the key for client.base_url."


async def refusals(address: server.Address, key: str, status: int) -> list[Any]:
    """Call with this key through each SDK and return the errors, which must have this status."""
    options: Any = {"base_url": address.root_url}
    with left_alone():
        async with openai.AsyncOpenAI(base_url=address.base_url, api_key=key) as sdk:
            with pytest.raises(openai.APIStatusError) as caught:
                await sdk.chat.completions.create(model=MODEL, messages=HELLO)
        async with anthropic.AsyncAnthropic(base_url=address.root_url, api_key=key) as claude:
            with pytest.raises(anthropic.APIStatusError) as told:
                await claude.messages.create(model=MODEL, messages=HELLO, max_tokens=9)
        async with genai.Client(api_key=key, http_options=options).aio as third:
            with pytest.raises(genai.errors.ClientError) as said:
                await third.models.generate_content(model=MODEL, contents="Hi")
    assert caught.value.status_code == told.value.status_code == said.value.code == status
    return [caught.value, told.value, said.value]


@as_agent()
async def test_an_unknown_or_missing_key_gets_a_401(client: AgentClient) -> None:
    address = client.serve()
    for key in ("sk-of-somebody", "evert-guess"):
        for error in await refusals(address, key, 401):
            assert f"No rollout has this API key. {ADVICE}" in str(error)
            assert key not in str(error)
    with left_alone():
        async with httpx.AsyncClient() as http:
            answer = await http.post(f"{address.base_url}/chat/completions", json=BODY)
    assert answer.status_code == 401
    message = answer.json()["error"]["message"]
    assert message.startswith(f"The request has no API key. {ADVICE}")


@as_agent()
async def test_the_error_for_the_key_of_a_recently_finished_episode_explains_that(
    client: AgentClient, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(server, "KEYS_REMEMBERED", 2)
    late: list[server.Address] = []

    async def first(client: AgentClient) -> float:
        late.append(client.serve())
        return 1.0

    client.serve()  # keeps the server running while older keys are forgotten
    for _ in range(3):
        await play_without_a_call(first)
    for address in late[1:]:
        errors = await refusals(address, address.api_key, 400)
        assert errors[0].code == "rollout_over"
        assert all("The episode for this key is over" in str(error) for error in errors)
    await refusals(late[0], late[0].api_key, 401)
