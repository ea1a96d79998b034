"""What an agent is told that asks by a wrong name, path or key, or too late, in every face.

1. A model that is not the policy, at a host that cannot be reached: a 400 of the SDK's own that
   names both, at once, and not a connection error after three attempts.
2. A network that is there and fails is the SDK's own connection error, which it may retry.
3. The address of the rollout takes any name, and any base URL that people make of it.
4. A key that is wrong, missing or over is told apart.
5. A model is looked up by its name as calls are.

The guard of the embedded engine is put to the same test in ``tests/trainers/engine``.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import lm15
import openai
import pytest
from lm15.router import RouterConfig
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentClient, AgentError, BlockingAgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.clients.http import server
from evert.bridge.ownership import left_alone

HELLO: Any = [{"role": "user", "content": "Hello?"}]
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


async def play(agent: Any, **options: Any) -> float:
    env = ChatAgentEnv(agent, **options)
    trajectory = await do_single_rollout(ScriptedPolicy(lambda prompt: "Fine."), env)
    return sum(transition.reward for transition in trajectory.transitions)


# -- 1. another model, and no way to it ------------------------------------------------------------


def openai_chat() -> None:
    openai.OpenAI(api_key="x").chat.completions.create(model="gpt-5.2", messages=HELLO)


def openai_stream() -> None:
    openai.OpenAI(api_key="x").chat.completions.create(model="gpt-5.2", messages=HELLO, stream=True)


def openai_responses() -> None:
    openai.OpenAI(api_key="x").responses.create(model="gpt-5.2", input="Hello?")


def anthropic_messages() -> None:
    anthropic.Anthropic(api_key="x").messages.create(model="gpt-5.2", messages=HELLO, max_tokens=9)


async def async_openai_chat() -> None:
    await openai.AsyncOpenAI(api_key="x").chat.completions.create(model="gpt-5.2", messages=HELLO)


async def async_anthropic_messages() -> None:
    await anthropic.AsyncAnthropic(api_key="x").messages.create(
        model="gpt-5.2", messages=HELLO, max_tokens=9
    )


def lm15_chat() -> None:
    request = lm15.Request(model="openai-chat:gpt-5.2", messages=(lm15.Message.user("Hello?"),))
    with lm15.LMRouter(RouterConfig(env={"OPENAI_API_KEY": "x"})) as router:
        router.complete(request)


async def async_lm15_chat() -> None:
    request = lm15.Request(model="openai-chat:gpt-5.2", messages=(lm15.Message.user("Hello?"),))
    async with lm15.AsyncLMRouter(RouterConfig(env={"OPENAI_API_KEY": "x"})) as router:
        await router.complete(request)


BLOCKING: dict[str, tuple[Callable[[], None], type[Exception]]] = {
    "openai chat": (openai_chat, openai.BadRequestError),
    "openai stream": (openai_stream, openai.BadRequestError),
    "openai responses": (openai_responses, openai.BadRequestError),
    "anthropic messages": (anthropic_messages, anthropic.BadRequestError),
    "lm15": (lm15_chat, lm15.InvalidRequestError),
}
ASYNC: dict[str, tuple[Callable[[], Any], type[Exception]]] = {
    "openai chat": (async_openai_chat, openai.BadRequestError),
    "anthropic messages": (async_anthropic_messages, anthropic.BadRequestError),
    "lm15": (async_lm15_chat, lm15.InvalidRequestError),
}


@pytest.mark.parametrize(("ask", "error"), BLOCKING.values(), ids=BLOCKING)
async def test_a_plain_agent_is_told_by_its_sdk(
    ask: Callable[[], None], error: type[Exception], no_network: Network
) -> None:
    def agent() -> float:
        with pytest.raises(error) as caught:
            ask()
        assert CAUSE in str(caught.value)
        assert "cannot be reached from here." in str(caught.value)
        return 1.0

    assert await play_without_a_call(agent) == 1.0
    assert len(no_network.asked) == 1  # nothing was tried again


@pytest.mark.parametrize(("ask", "error"), ASYNC.values(), ids=ASYNC)
async def test_an_async_agent_is_told_by_its_sdk(
    ask: Callable[[], Any], error: type[Exception], no_network: Network
) -> None:
    async def agent() -> float:
        with pytest.raises(error) as caught:
            await ask()
        assert CAUSE in str(caught.value)
        assert "cannot be reached from here." in str(caught.value)
        return 1.0

    assert await play_without_a_call(agent) == 1.0
    assert len(no_network.asked) == 1


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

    assert await play_without_a_call(agent) == 1.0


@pytest.mark.usefixtures("no_network")
async def test_an_agent_that_does_not_catch_it_fails_with_it_said_once() -> None:
    with pytest.raises(AgentError) as caught:
        await play_without_a_call(openai_chat)

    assert type(caught.value).__name__ == "AgentError.BadRequestError"
    assert str(caught.value).count("the policy is called 'policy'") == 1


@pytest.mark.usefixtures("no_network")
async def test_the_policy_by_the_name_it_is_told_to_have_answers() -> None:
    def agent() -> float:
        openai_chat()
        anthropic_messages()
        return 1.0

    assert await play(agent, policy_names="gpt-5.2") == 1.0


async def play_without_a_call(agent: Any) -> float:
    """An episode in which the policy is never asked."""
    result: Any = await ChatAgentEnv(agent).initial_observation()
    return float(result.reward)


# -- 2. a network that fails -----------------------------------------------------------------------


async def test_a_name_server_that_does_not_answer_is_a_connection_error_and_retried(
    bad_network: Network,
) -> None:
    def agent() -> float:
        with pytest.raises(openai.APIConnectionError):
            openai.OpenAI(api_key="x", max_retries=1).chat.completions.create(
                model="gpt-5.2", messages=HELLO
            )
        return 1.0

    assert await play_without_a_call(agent) == 1.0
    assert len(bad_network.asked) == 2


async def test_a_port_where_nobody_listens_is_a_connection_error_in_every_library() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1/chat/completions"
    root = url.removesuffix("/chat/completions")
    config = RouterConfig(env={"OPENAI_API_KEY": "x"}, base_urls={"openai-chat": root})
    request = lm15.Request(model="openai-chat:gpt-5.2", messages=(lm15.Message.user("Hello?"),))

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
            async with lm15.AsyncLMRouter(config) as router:
                await router.complete(request)
        with pytest.raises(lm15.TransportError):
            await asyncio.to_thread(lm15.LMRouter(config).complete, request)
        return 1.0

    assert await play_without_a_call(agent) == 1.0


async def test_the_failure_of_an_agent_names_the_model_all_the_same(bad_network: Network) -> None:
    def agent() -> None:
        openai.OpenAI(api_key="x", max_retries=0).chat.completions.create(
            model="gpt-5.2", messages=HELLO
        )

    with pytest.raises(AgentError) as caught:
        await play_without_a_call(agent)

    assert str(caught.value).endswith(f"Connection error. {CAUSE}")
    assert bad_network.asked == ["api.openai.com"]


# -- 3. the rollout's own address ------------------------------------------------------------------


async def test_any_name_will_do_at_the_rollouts_address_and_is_no_stranger() -> None:
    async def agent(client: AgentClient) -> float:
        async with openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as sdk:
            await sdk.chat.completions.create(model="gpt-5.2", messages=HELLO)
        raise KeyError("of another cause")

    with pytest.raises(AgentError) as caught:
        await play(agent)

    assert "gpt-5.2" not in str(caught.value)


@pytest.mark.parametrize("end", ["", "/", "/v1", "/v1/", "/v1/v1", "/v1/chat/completions", "/api"])
async def test_whatever_base_url_is_made_of_it_works(end: str) -> None:
    """Some SDKs want one with /v1, some without, and people mix them up."""

    async def agent(client: AgentClient) -> float:
        address = client.serve()
        with left_alone():  # as another process does
            url = f"{address.root_url}{end}"
            async with openai.AsyncOpenAI(base_url=url, api_key=address.api_key) as sdk:
                chat = await sdk.chat.completions.create(model="gpt-5.2", messages=HELLO)
                response = await sdk.responses.create(model="gpt-5.2", input="Hello?")
            async with anthropic.AsyncAnthropic(base_url=url, api_key=address.api_key) as other:
                message: Any = await other.messages.create(
                    model="gpt-5.2", messages=HELLO, max_tokens=9
                )
        said = [chat.choices[0].message.content, response.output_text, message.content[0].text]
        return float(said == ["Fine."] * 3)

    assert await play(agent) == 1.0


async def test_what_is_no_chat_api_is_a_404_that_says_what_there_is() -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.NotFoundError, match="There are POST /v1/chat/completions, "):
            await client.openai.completions.create(model=client.model, prompt="Hello?")
        return 1.0

    assert await play_without_a_call(agent) == 1.0


# -- 4. keys ---------------------------------------------------------------------------------------

ADVICE = "Send the rollout's own, which goes with client.base_url: client.api_key"


@pytest.mark.parametrize("key", ["sk-of-somebody", "evert-guess"])
async def test_a_key_of_nobodys(key: str) -> None:
    async def agent(client: AgentClient) -> float:
        address = client.serve()
        with left_alone():
            async with openai.AsyncOpenAI(base_url=address.base_url, api_key=key) as sdk:
                with pytest.raises(openai.AuthenticationError) as caught:
                    await sdk.chat.completions.create(model="policy", messages=HELLO)
            async with anthropic.AsyncAnthropic(base_url=address.root_url, api_key=key) as other:
                with pytest.raises(anthropic.AuthenticationError) as told:
                    await other.messages.create(model="policy", messages=HELLO, max_tokens=9)
        for error in (caught.value, told.value):
            assert f"No rollout has this API key. {ADVICE}" in str(error)
            assert key not in str(error)
        return 1.0

    assert await play_without_a_call(agent) == 1.0


async def test_no_key_at_all() -> None:
    async def agent(client: AgentClient) -> float:
        address = client.serve()
        with left_alone():
            async with httpx.AsyncClient() as http:
                answer = await http.post(f"{address.base_url}/chat/completions", json=BODY)
        assert answer.status_code == 401
        assert answer.json()["error"]["message"].startswith(
            f"The request brings no API key. {ADVICE}"
        )
        return 1.0

    assert await play_without_a_call(agent) == 1.0


async def ask_late(address: server.Address) -> list[Any]:
    """What the SDKs say to a key whose episode is over."""
    with left_alone():
        async with openai.AsyncOpenAI(base_url=address.base_url, api_key=address.api_key) as sdk:
            with pytest.raises(openai.BadRequestError) as caught:
                await sdk.chat.completions.create(model="policy", messages=HELLO)
        async with anthropic.AsyncAnthropic(
            base_url=address.root_url, api_key=address.api_key
        ) as other:
            with pytest.raises(anthropic.BadRequestError) as told:
                await other.messages.create(model="policy", messages=HELLO, max_tokens=9)
    return [caught.value, told.value]


async def test_a_key_whose_episode_is_over_is_told_so_as_in_process() -> None:
    late: list[server.Address] = []

    async def first(client: AgentClient) -> float:
        late.append(client.serve())
        return 1.0

    async def second(client: AgentClient) -> float:
        client.serve()  # keeps the server up while the other's key goes
        await play_without_a_call(first)
        errors = await ask_late(late[0])
        assert errors[0].code == "rollout_over"
        assert all("The episode of this key is over" in str(error) for error in errors)
        return 1.0

    assert await play_without_a_call(second) == 1.0


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
        await ask_late(late[-1])
        with left_alone():
            async with openai.AsyncOpenAI(
                base_url=late[0].base_url, api_key=late[0].api_key
            ) as sdk:
                with pytest.raises(openai.AuthenticationError):
                    await sdk.models.list()
        return 1.0

    assert await play_without_a_call(second) == 1.0


# -- 5. models -------------------------------------------------------------------------------------


async def test_a_model_is_there_if_a_call_to_it_would_be_answered() -> None:
    def agent(client: BlockingAgentClient) -> float:
        model = client.openai_sync.models.retrieve("gpt-5.2")
        return float(model.id == "gpt-5.2" and model.owned_by == "evert")

    assert await play_without_a_call(agent) == 1.0


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

    models: Any = {"judge": ScriptedPolicy(["Fine."])}
    result: Any = await ChatAgentEnv(agent, models=models).initial_observation()
    assert result.reward == 1.0
