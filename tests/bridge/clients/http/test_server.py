"""The loopback server, which lets agents in other processes make calls. Uses real HTTP and SDKs.

A fixture checks that no test leaves a task, socket or server behind. ``test_wrong_ways.py`` tests
API keys.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import anthropic
import openai
import psutil
import pytest
from google import genai
from tests.kit import (
    Logs,
    Patch,
    as_agent,
    assistant,
    play,
    play_without_a_call,
    reward,
    start,
    tokens_of,
    user,
)
from tinker_cookbook.completers import MessageCompleter
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.clients.http import calls_and_retries, connections, server
from evert.bridge.env.seats import seat_envs
from evert.bridge.ownership import left_alone
from evert.bridge.tokens.renderer import prompt_renderer

SERVED = "any-name"
"""Differs from the policy's name, because take-over would intercept a call to the policy before
the call reaches a socket."""

QUESTION: list[Any] = [user("Hi")]
ASKED: Any = {"model": SERVED, "messages": QUESTION}


@pytest.fixture(autouse=True)
async def nothing_is_left() -> AsyncIterator[None]:
    process = psutil.Process()
    before = process.num_fds()
    yield
    for _ in range(50):  # closing a connection takes one or two loop iterations
        if process.num_fds() <= before and len(asyncio.all_tasks()) == 1:
            break
        await asyncio.sleep(0.02)
    assert process.num_fds() <= before
    assert len(asyncio.all_tasks()) == 1
    assert not server._servers


@pytest.fixture
def often_pinged(monkeypatch: Patch) -> None:
    monkeypatch.setattr(calls_and_retries, "PING_EVERY", 0.05)


def openai_of(client: AgentClient, **options: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, **options)


def anthropic_of(client: AgentClient) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=client.serve().root_url, api_key=client.api_key)


def google(client: AgentClient) -> genai.client.AsyncClient:
    options: Any = {"base_url": client.serve().root_url}
    return genai.Client(api_key=client.api_key, http_options=options).aio


def session_of(client: AgentClient) -> aiohttp.ClientSession:
    headers = {"authorization": f"Bearer {client.api_key}"}
    return aiohttp.ClientSession(f"{client.base_url}/", headers=headers)


async def post(session: aiohttp.ClientSession, mark: Any = None, **fields: Any) -> str:
    """Request a completion and return its text."""
    call = session.post("chat/completions", json={**ASKED, **fields}, headers=mark)
    async with call as response:
        return str((await response.json())["choices"][0]["message"]["content"])


async def step(env: ChatAgentEnv, text: str) -> Any:
    return await env.step(tokens_of(text))


async def test_many_rollouts_share_one_server_and_get_their_own_replies() -> None:
    addresses: set[str] = set()

    async def agent(client: AgentClient, task: str) -> float:
        addresses.add(client.base_url)
        messages = [user(task)]
        async with session_of(client) as session:
            for _ in range(3):
                content = await post(session, messages=messages)
                assert content == f"echo of {task}"
                messages += [assistant(content), user("more")]
        return 1.0

    def echo(prompt: str) -> str:
        return f"echo of task {prompt.partition('task ')[2].partition('<')[0]}"

    episodes = [play(agent, echo, task=f"task {number}") for number in range(50)]
    trajectories = await asyncio.gather(*episodes)

    assert len(addresses) == 1
    assert [len(trajectory.transitions) for trajectory in trajectories] == [3] * 50
    assert all(trajectory.transitions[-1].metrics["lineages"] == 1 for trajectory in trajectories)


async def test_the_server_listens_on_loopback_and_recommends_tls_on_other_interfaces(
    caplog: Logs,
) -> None:
    async def agent(client: AgentClient) -> float:
        port = int(client.base_url.rpartition(":")[2].partition("/")[0])
        listening = [c for c in psutil.Process().net_connections() if c.status == "LISTEN"]
        assert [c.laddr.ip for c in listening if c.laddr.port == port] == ["127.0.0.1"]
        with pytest.raises(OSError, match="assign requested address"):
            client.serve("203.0.113.7")
        with caplog.at_level(logging.WARNING):
            assert client.serve("0.0.0.0").base_url.startswith("http://0.0.0.0:")
        return 1.0

    await play_without_a_call(agent)
    assert "Use a TLS proxy or an SSH tunnel to protect them" in caplog.text


# -- retries and disconnecting clients -----------------------------------------------------------


async def test_a_marked_retry_gets_the_same_reply_but_an_identical_new_call_does_not() -> None:
    contents: list[str] = []

    async def agent(client: AgentClient) -> float:
        async with session_of(client) as session:
            for mark in ({}, {"x-stainless-retry-count": "1"}, {}):
                contents.append(await post(session, mark))
        return 1.0

    trajectory = await play(agent, "first", "second")

    assert contents == ["first", "first", "second"]
    assert len(trajectory.transitions) == 2


async def test_an_sdk_that_times_out_gets_the_reply_when_it_retries() -> None:
    contents: list[str | None] = []

    async def agent(client: AgentClient) -> float:
        async with openai_of(client, timeout=0.3, max_retries=5) as sdk:
            completion = await sdk.chat.completions.create(**ASKED)
            contents.append(completion.choices[0].message.content)
        return 1.0

    env = await start(agent)
    await asyncio.sleep(1.0)  # the SDK times out and retries in the meantime
    result = await step(env, "late")

    assert result.episode_done
    assert contents == ["late"]
    assert env.turns == 1


async def test_a_call_whose_client_disconnected_is_given_up(monkeypatch: Patch) -> None:
    monkeypatch.setattr(calls_and_retries, "RETRY_PATIENCE", 0.05)

    async def agent(client: AgentClient) -> float:
        async with openai_of(client, timeout=0.2, max_retries=0) as sdk:
            with pytest.raises(openai.APITimeoutError):
                await sdk.chat.completions.create(**ASKED)
            await asyncio.sleep(0.2)
            fields: Any = {"model": SERVED, "messages": [user("Again")], "timeout": 30}
            completion = await sdk.chat.completions.create(**fields)
        return float(completion.choices[0].message.content == "second")

    env = await start(agent)
    await asyncio.sleep(0.6)
    between = await step(env, "first")  # no client is waiting for this reply any longer
    assert not between.episode_done
    assert "Again" in prompt_renderer(None).decode(between.next_observation.to_ints())
    assert (await step(env, "second")).reward == 1.0


class Slow(MessageCompleter):
    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    async def __call__(self, messages: Any) -> Any:
        await asyncio.sleep(self._seconds)
        raise ValueError("no such game")


async def test_abandoned_calls_do_not_use_up_the_limit_of_open_calls(monkeypatch: Patch) -> None:
    monkeypatch.setattr(calls_and_retries, "RETRY_PATIENCE", 0.05)
    monkeypatch.setattr(calls_and_retries, "REMEMBERED", 1)
    monkeypatch.setattr(connections, "AT_ONCE", 1)

    async def agent(client: AgentClient) -> float:
        with left_alone():
            async with openai_of(client, timeout=0.2, max_retries=0) as sdk:
                for text in ("one", "two"):
                    fields: Any = {"model": "slow", "messages": [user(text)]}
                    with pytest.raises(openai.APITimeoutError):
                        await sdk.chat.completions.create(**fields)
                await asyncio.sleep(0.2)
                fields = {"model": "policy", "messages": QUESTION, "timeout": 30}
                await sdk.chat.completions.create(**fields)
        return 1.0

    assert reward(await play(agent, models={"slow": Slow(60)})) == 1.0


@pytest.mark.usefixtures("often_pinged")
async def test_the_error_for_a_failing_frozen_model_names_it_streamed_or_not() -> None:
    message = "The model 'judge' failed: ValueError: no such game"
    answers: list[str] = []

    async def agent(client: AgentClient) -> float:
        fields = {"model": "judge", "messages": QUESTION}
        async with session_of(client) as session:
            for stream in (False, True):
                body = {**fields, "stream": stream}
                with left_alone():
                    answer = await session.post("chat/completions", json=body)
                    answers.append(f"{answer.status} {await answer.text()}")
        return 1.0

    for seconds in (0.0, 0.2):
        await play_without_a_call(agent, models={"judge": Slow(seconds)})

    assert [line[:3] for line in answers] == ["400", "400", "400", "200"]
    assert all(message in line and '"model_failed"' in line for line in answers)


# -- streams -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("often_pinged")
async def test_a_waiting_stream_is_kept_alive_with_comments() -> None:
    raw: list[bytes] = []

    async def agent(client: AgentClient) -> float:
        fields = {**ASKED, "stream": True}
        async with session_of(client) as http, http.post("chat/completions", json=fields) as answer:
            assert answer.content_type == "text/event-stream"
            raw.append(await answer.read())
        return 1.0

    env = await start(agent)
    await asyncio.sleep(0.3)
    await step(env, "patience")

    assert raw[0].count(b": waiting\n\n") >= 2
    assert raw[0].endswith(b"data: [DONE]\n\n")


@pytest.mark.usefixtures("often_pinged")
@pytest.mark.parametrize("pause", [0, 0.2], ids=["at once", "after comments"])
async def test_the_sdks_can_read_a_stream_with_keep_alive_comments(pause: float) -> None:
    texts: list[str] = []

    async def agent(client: AgentClient) -> float:
        async with openai_of(client) as sdk, anthropic_of(client) as other, google(client) as third:
            async with sdk.responses.stream(model=SERVED, input="Hi") as events:
                texts.append((await events.get_final_response()).output_text)
            async with other.messages.stream(**ASKED, max_tokens=99) as blocks:
                texts.append(await blocks.get_final_text())
            chunks = await third.models.generate_content_stream(model=SERVED, contents="Hi")
            texts.append("".join([chunk.text or "" async for chunk in chunks]))
        return 1.0

    env = await start(agent)
    replies = ["a reply in several pieces", "and another one of those", "and one of Google's"]
    for reply in replies:
        await asyncio.sleep(pause)
        await step(env, reply)

    assert texts == replies


class Late(MessageCompleter):
    """A model that fails long after the stream has started."""

    async def __call__(self, messages: Any) -> Any:
        await asyncio.sleep(0.3)
        raise bad_request("It is late.")


@pytest.mark.usefixtures("often_pinged")
@as_agent(models={"late": Late()})
async def test_an_error_in_a_waiting_google_stream_raises_the_sdks_own_error(
    client: AgentClient,
) -> None:
    with left_alone():
        async with google(client) as sdk:
            chunks = await sdk.models.generate_content_stream(model="late", contents="Hi")
            with pytest.raises(genai.errors.ClientError, match="It is late") as caught:
                [chunk async for chunk in chunks]
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")


@pytest.mark.usefixtures("often_pinged")
async def test_closing_a_rollout_ends_its_waiting_stream() -> None:
    async def agent(client: AgentClient) -> float:
        async with openai_of(client, max_retries=0) as sdk:
            stream: Any = await sdk.chat.completions.create(**ASKED, stream=True)
            async for _ in stream:
                pass
        return 1.0

    env = await start(agent)
    await asyncio.sleep(0.2)
    await asyncio.wait_for(env.close(), 5)

    assert not env.is_running


# -- addresses and seats -------------------------------------------------------------------------


@as_agent("hello")
def test_a_blocking_agent_can_request_an_address_from_its_thread(client: Any) -> None:
    assert client.serve() == client.serve()
    with openai.OpenAI(base_url=client.base_url, api_key=client.api_key) as sdk:
        completion = sdk.chat.completions.create(**ASKED)
    assert completion.choices[0].message.content == "hello"


async def test_an_address_requested_while_the_server_is_stopping_works() -> None:
    """A stopping server accepts no new rollouts, so the next rollout starts a new server."""

    async def first(client: AgentClient) -> float:
        assert client.base_url
        await client.chat.completions.create(messages=QUESTION)
        return 1.0

    for delay in range(8):

        async def second(client: AgentClient, delay: int = delay) -> float:
            await client.chat.completions.create(messages=QUESTION)
            for _ in range(delay):
                await asyncio.sleep(0)
            async with session_of(client) as http, http.get("models") as response:
                return float(response.status == 200)

        envs = [ChatAgentEnv(first), ChatAgentEnv(second)]
        for env in envs:
            await env.initial_observation()
        await asyncio.sleep(0)
        results = await asyncio.gather(*(step(env, "x") for env in envs))
        assert [result.reward for result in results] == [1.0, 1.0]


async def test_both_clients_of_a_seat_can_continue_the_same_response() -> None:
    async def agent(client: AgentClient) -> float:
        fields: Any = {"model": "evert/p", "input": "Hi"}
        first = await client.seat("p").openai.responses.create(**fields)
        fields["previous_response_id"] = first.id
        second = await client.seat("p").openai.responses.create(**fields)
        ids = {first.id, second.id}
        for name in ("p", "q", "p"):
            ids.add((await client.seat(name).chat.completions.create(messages=QUESTION)).id)
        assert len(ids) == 5
        return 1.0

    envs = seat_envs(agent, ("p", "q"))
    policy = ScriptedPolicy(lambda prompt: "x")
    first, _ = await asyncio.gather(*(do_single_rollout(policy, env) for env in envs))
    assert first.transitions[-1].reward == 1.0
