"""What an agent is told that asks by a wrong name, path or key, or too late, in every face.

The guard of the embedded engine is put to the same test in ``tests/trainers/engine``.
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
from tests.bridge.faces.conftest import play_without_a_call
from tests.bridge.faces.sdk_calls import (
    ASYNC,
    BLOCKING,
    LM15,
    MODEL,
    REFUSALS,
    blocking_anthropic,
    blocking_openai,
)
from tests.kit import play, reward, user

from evert import AgentClient, AgentError, BlockingAgentClient, ScriptedPolicy
from evert.bridge.clients.http import server
from evert.bridge.ownership import left_alone

HELLO: Any = [user("Hello?")]
BODY = {"model": "gpt-5.2", "messages": HELLO}
URL = "https://api.openai.com/v1/chat/completions"

CAUSE = (
    "The agent asked for 'gpt-5.2'; the policy is called 'policy'. If it is to answer such calls, "
    "give it that name: policy_names='gpt-5.2'. If another model is meant, put it beside the "
    "policy: models={'gpt-5.2': ...}."
)


class Network:
    """Names that are looked up, none of which there is, or for now."""

    def __init__(self, errno: int) -> None:
        self.errno = errno
        self.asked: list[str] = []

    def getaddrinfo(self, host: Any, *_: Any, **__: Any) -> Any:
        self.asked.append(host if isinstance(host, str) else bytes(host).decode())
        raise socket.gaierror(self.errno, "no address")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> Network:
    """A machine where no name is known."""
    network = Network(socket.EAI_NONAME)
    monkeypatch.setattr(socket, "getaddrinfo", network.getaddrinfo)
    return network


@pytest.fixture
def bad_network(monkeypatch: pytest.MonkeyPatch) -> Network:
    """A machine whose name server does not answer for the moment."""
    network = Network(socket.EAI_AGAIN)
    monkeypatch.setattr(socket, "getaddrinfo", network.getaddrinfo)
    return network


# -- another model, and no way to it -------------------------------------------------------------

OTHER = "gpt-5.2"
GOOGLES = ("genai without aiohttp", "genai on Vertex")
"""Ways that take no other model's name."""


def is_told(error: Exception) -> bool:
    return CAUSE in str(error) and "cannot be reached from here." in str(error)


async def test_an_agent_is_told_by_its_sdk_at_once(no_network: Network) -> None:
    def agent() -> float:
        for sdk, ask in BLOCKING.items():
            if not sdk.startswith("lm15") or not sdk.endswith("stream"):
                with pytest.raises(REFUSALS) as caught:
                    ask("Hello?", OTHER)
                assert is_told(caught.value), sdk
                assert len(no_network.asked) == 1, f"{sdk} tried again"
                no_network.asked.clear()
        return 1.0

    async def asynchronous() -> float:
        for sdk, ask in ASYNC.items():
            if sdk not in GOOGLES and (not sdk.startswith("lm15") or not sdk.endswith("stream")):
                with pytest.raises(REFUSALS) as caught:
                    await ask("Hello?", OTHER)
                assert is_told(caught.value), sdk
                assert len(no_network.asked) == 1, f"{sdk} tried again"
                no_network.asked.clear()
        return 1.0

    await play_without_a_call(agent)
    await play_without_a_call(asynchronous)


@pytest.mark.usefixtures("no_network")
async def test_requests_without_any_sdk_get_it_as_a_response() -> None:
    async def agent() -> float:
        async with (
            httpx.AsyncClient() as old,
            httpx2.AsyncClient() as new,
            aiohttp.ClientSession() as session,
        ):
            clients: list[Any] = [old, new]
            answers = [(await client.post(URL, json=BODY)).json() for client in clients]
            answers.append(await (await session.post(URL, json=BODY)).json())
        for answer in answers:
            assert answer["error"]["code"] == "model_not_found"
            assert answer["error"]["param"] == "model"
            message = answer["error"]["message"]
            assert message == f"{CAUSE} api.openai.com cannot be reached from here."
        return 1.0

    await play_without_a_call(agent)


@pytest.mark.usefixtures("no_network")
async def test_an_agent_that_does_not_catch_it_fails_with_it_said_once() -> None:
    with pytest.raises(AgentError) as caught:
        await play_without_a_call(lambda: blocking_openai("Hello?", OTHER))

    assert type(caught.value).__name__ == "AgentError.BadRequestError"
    assert str(caught.value).count("the policy is called 'policy'") == 1


@pytest.mark.usefixtures("no_network")
async def test_the_policy_by_the_name_it_is_told_to_have_answers() -> None:
    def agent() -> bool:
        return blocking_openai("Hi", OTHER) == blocking_anthropic("Hi", OTHER) == "Fine."

    assert reward(await play(agent, policy_names=OTHER)) == 1.0


# -- a network that fails ------------------------------------------------------------------------


async def test_a_name_server_that_does_not_answer_is_a_connection_error_and_retried(
    bad_network: Network,
) -> None:
    def agent() -> float:
        with pytest.raises(openai.APIConnectionError):
            blocking_openai("Hello?", OTHER, max_retries=1)
        return 1.0

    await play_without_a_call(agent)
    assert len(bad_network.asked) == 2


async def test_a_port_where_nobody_listens_is_a_connection_error_in_every_library() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1/chat/completions"
    root, router = url.removesuffix("/chat/completions"), LM15["openai-chat"]

    async def agent() -> float:
        with pytest.raises(httpx.ConnectError):
            await asyncio.to_thread(httpx.post, url, json=BODY)
        with pytest.raises(httpx2.ConnectError):
            async with httpx2.AsyncClient() as client:
                await client.post(url, json=BODY)
        with pytest.raises(aiohttp.ClientConnectorError):
            async with aiohttp.ClientSession() as session:
                await session.post(url, json=BODY)
        with pytest.raises(lm15.TransportError):
            await router.ask("Hello?", OTHER, base_url=root)
        with pytest.raises(lm15.TransportError):
            await asyncio.to_thread(router.ask_blocking, "Hello?", OTHER, base_url=root)
        return 1.0

    await play_without_a_call(agent)


async def test_the_failure_of_an_agent_names_the_model_all_the_same(bad_network: Network) -> None:
    def agent() -> None:
        blocking_openai("Hello?", OTHER, max_retries=0)

    with pytest.raises(AgentError) as caught:
        await play_without_a_call(agent)

    assert str(caught.value).endswith(f"Connection error. {CAUSE}")
    assert bad_network.asked == ["api.openai.com"]


# -- the rollout's own address -------------------------------------------------------------------


async def test_any_name_will_do_at_the_rollouts_address_and_is_no_stranger() -> None:
    async def agent(client: AgentClient) -> float:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as sdk:
            await sdk.chat.completions.create(model="gpt-5.2", messages=HELLO)
        raise KeyError("of another cause")

    with pytest.raises(AgentError) as caught:
        await play(agent)

    assert "gpt-5.2" not in str(caught.value)


async def test_whatever_base_url_is_made_of_it_works() -> None:
    """Some SDKs want one with /v1, some without, and people mix them up."""
    ends = ["", "/", "/v1", "/v1/", "/v1/v1", "/v1/chat/completions", "/api"]
    said: list[Any] = []

    async def agent(client: AgentClient) -> float:
        address = client.serve()
        with left_alone():  # as another process does
            for end in ends:
                own: Any = {"base_url": f"{address.root_url}{end}", "api_key": address.api_key}
                async with openai.AsyncOpenAI(**own) as sdk:
                    chat = await sdk.chat.completions.create(model=OTHER, messages=HELLO)
                    response = await sdk.responses.create(model=OTHER, input="Hello?")
                async with anthropic.AsyncAnthropic(**own) as other:
                    message: Any = await other.messages.create(
                        model=OTHER, messages=HELLO, max_tokens=9
                    )
                said.append(chat.choices[0].message.content)
                said.extend([response.output_text, message.content[0].text])
        return 1.0

    await play(agent)
    assert said == ["Fine."] * 3 * len(ends)


# -- keys ----------------------------------------------------------------------------------------

ADVICE = "Send the rollout's own, which goes with client.base_url: client.api_key"


async def test_a_key_of_nobodys_and_no_key_at_all() -> None:
    async def agent(client: AgentClient) -> float:
        address = client.serve()
        with left_alone():
            for key in ("sk-of-somebody", "evert-guess"):
                errors = await ask_late(address, key, 401)
                for error in errors:
                    assert f"No rollout has this API key. {ADVICE}" in str(error)
                    assert key not in str(error)
            async with httpx.AsyncClient() as http:
                answer = await http.post(f"{address.base_url}/chat/completions", json=BODY)
        assert answer.status_code == 401
        message = answer.json()["error"]["message"]
        assert message.startswith(f"The request brings no API key. {ADVICE}")
        return 1.0

    await play_without_a_call(agent)


async def ask_late(address: server.Address, key: str, status: int) -> list[Any]:
    """What the SDKs say to a key that is refused with that status."""
    with left_alone():
        async with openai.AsyncOpenAI(base_url=address.base_url, api_key=key) as sdk:
            with pytest.raises(openai.APIStatusError) as caught:
                await sdk.chat.completions.create(model=MODEL, messages=HELLO)
        async with anthropic.AsyncAnthropic(base_url=address.root_url, api_key=key) as other:
            with pytest.raises(anthropic.APIStatusError) as told:
                await other.messages.create(model=MODEL, messages=HELLO, max_tokens=9)
        options: Any = {"base_url": address.root_url}
        async with genai.Client(api_key=key, http_options=options).aio as third:
            with pytest.raises(genai.errors.ClientError) as said:
                await third.models.generate_content(model=MODEL, contents="Hi")
    assert caught.value.status_code == told.value.status_code == said.value.code == status
    return [caught.value, told.value, said.value]


async def test_a_key_whose_episode_is_over_is_told_so_as_in_process() -> None:
    late: list[server.Address] = []

    async def first(client: AgentClient) -> float:
        late.append(client.serve())
        return 1.0

    async def second(client: AgentClient) -> float:
        client.serve()  # keeps the server up while the other's key goes
        await play_without_a_call(first)
        errors = await ask_late(late[0], late[0].api_key, 400)
        assert errors[0].code == "rollout_over"
        assert all("The episode of this key is over" in str(error) for error in errors)
        return 1.0

    await play_without_a_call(second)


async def test_only_the_latest_keys_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "KEYS_REMEMBERED", 2)
    late: list[server.Address] = []

    async def first(client: AgentClient) -> float:
        late.append(client.serve())
        return 1.0

    async def second(client: AgentClient) -> float:
        client.serve()
        for _ in range(3):
            await play_without_a_call(first)
        await ask_late(late[-1], late[-1].api_key, 400)
        await ask_late(late[0], late[0].api_key, 401)
        return 1.0

    await play_without_a_call(second)


# -- models --------------------------------------------------------------------------------------


async def test_a_model_that_is_not_there_is_a_404_that_names_those_that_are() -> None:
    def agent(client: BlockingAgentClient) -> float:
        with pytest.raises(openai.NotFoundError) as caught:
            client.openai_sync.models.retrieve("gpt-5.2")
        assert caught.value.code == "model_not_found"
        assert "There is no model 'gpt-5.2' in this episode. Models: policy, judge." in str(
            caught.value
        )
        assert client.openai_sync.models.retrieve("judge").id == "judge"
        return 1.0

    await play_without_a_call(agent, models={"judge": ScriptedPolicy(["Fine."])})
