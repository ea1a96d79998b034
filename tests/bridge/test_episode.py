"""What ``Episode`` and ``Inbox`` promise.

Calls are served exactly once, in order, wherever they come from, and a call that waits always
learns what became of its peer. Closing leaves nothing behind.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from tests.kit import ask, ask_blocking
from tinker_cookbook.renderers import Message

from evert.bridge.chat.reply import Reply
from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.episode.agent import inspect_agent
from evert.bridge.episode.episode import Episode
from evert.bridge.episode.inbox import AgentEnd, ParkedCall
from evert.bridge.errors import (
    AgentAborted,
    EnvClosedError,
    EpisodeEndedError,
)
from evert.bridge.off_loop import give_threads
from evert.bridge.tokens.renderer import prompt_renderer


def reply(text: str) -> Reply:
    parsed = Message(role="assistant", content=text)
    return Reply(parsed, text, None, (), (), "stop", 1, 1)


def begin(agent: Callable[..., Any]) -> Episode:
    episode = Episode(inspect_agent(agent), asyncio.get_running_loop(), [["policy"]])
    endpoint = Endpoint(episode, episode.inboxes[0], "policy", prompt_renderer(None))
    client_type = AgentClient if episode.form.is_async else BlockingAgentClient
    episode.start(partial(agent, client_type(endpoint)))
    return episode


async def expect_call(episode: Episode) -> ParkedCall:
    event = await episode.inboxes[0].take(5)
    assert isinstance(event, ParkedCall), event
    return event


async def expect_end(episode: Episode) -> AgentEnd:
    event = await episode.inboxes[0].take(5)
    assert isinstance(event, AgentEnd), event
    return event


def text_of(call: ParkedCall) -> str:
    return str(call.request.messages[-1]["content"])


async def answered(episode: Episode) -> Any:
    """What an agent of one call returns whose reply is "yes"."""
    (await expect_call(episode)).answer(reply("yes"))
    return (await expect_end(episode)).value


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("evert agent")}


# -- order -----------------------------------------------------------------------------------------


async def test_a_plain_function_runs_in_a_thread_of_its_own() -> None:
    def agent(client: BlockingAgentClient) -> tuple[str, bool]:
        text = ask_blocking(client)
        return text, threading.current_thread() is threading.main_thread()

    assert await answered(begin(agent)) == ("yes", False)
    assert not threads()


async def test_calls_made_at_the_same_time_queue_in_order_of_arrival() -> None:
    async def agent(client: AgentClient) -> list[str]:
        return list(await asyncio.gather(*(ask(client, str(i)) for i in range(20))))

    episode = begin(agent)
    order = []
    for _ in range(20):
        call = await expect_call(episode)
        order.append(text_of(call))
        call.answer(reply(f"to {text_of(call)}"))
    assert order == [str(i) for i in range(20)]
    assert (await expect_end(episode)).value == [f"to {i}" for i in range(20)]


async def test_two_hundred_blocking_agents_at_once_do_not_deadlock() -> None:
    episodes = [begin(ask_blocking) for _ in range(200)]
    calls = [await expect_call(episode) for episode in episodes]  # all wait at the same time
    for number, call in enumerate(calls):
        call.answer(reply(str(number)))
    ends = [await expect_end(episode) for episode in episodes]
    assert [end.value for end in ends] == [str(number) for number in range(200)]


async def test_calls_from_a_thread_and_from_another_event_loop_are_served() -> None:
    async def from_a_thread(client: AgentClient) -> str:
        return await asyncio.to_thread(ask_blocking, client.blocking)

    def from_another_loop(client: BlockingAgentClient) -> str:
        return asyncio.run(ask(AgentClient(client._endpoint)))

    assert await answered(begin(from_a_thread)) == "yes"
    assert await answered(begin(from_another_loop)) == "yes"


async def test_a_blocking_call_on_the_envs_own_loop_is_refused_instead_of_hanging() -> None:
    async def agent(client: AgentClient) -> str:
        return ask_blocking(client.blocking, "this would wait for ever")

    error = (await expect_end(begin(agent))).error
    assert isinstance(error, RuntimeError)
    assert "await client.chat.completions.create" in str(error)


async def test_an_agent_may_time_out_its_own_call() -> None:
    async def agent(client: AgentClient) -> str:
        try:
            await asyncio.wait_for(ask(client, "slow"), 0.01)
        except TimeoutError:
            return "gave up"
        return "answered"

    episode = begin(agent)
    call = await expect_call(episode)
    await asyncio.sleep(0.05)
    assert not call.is_waiting
    call.answer(reply("too late"))
    assert (await expect_end(episode)).value == "gave up"


# -- callers ---------------------------------------------------------------------------------------


async def test_each_call_knows_its_task_or_thread() -> None:
    async def agent(client: AgentClient) -> None:
        searcher = asyncio.create_task(ask(client, "searcher"), name="searcher")
        writer = asyncio.create_task(ask(client, "writer"), name="writer")
        await asyncio.gather(searcher, writer)

    def blocking(client: BlockingAgentClient) -> None:
        tools = [
            threading.Thread(target=ask_blocking, args=(client, name), name=name)
            for name in ("left", "right")
        ]
        for tool in tools:
            tool.start()
        for tool in tools:
            tool.join()

    for each in (agent, blocking):
        episode = begin(each)
        for _ in range(2):
            call = await expect_call(episode)
            assert call.caller == text_of(call)
            call.answer(reply("yes"))
        await expect_end(episode)


# -- every waiter learns ---------------------------------------------------------------------------


async def test_calls_still_queued_when_the_agent_ends_are_told_so() -> None:
    told: list[BaseException] = []

    async def straggle(client: AgentClient, text: str) -> None:
        try:
            await ask(client, text)
        except EpisodeEndedError as error:
            told.append(error)

    stragglers: list[asyncio.Task[None]] = []

    async def agent(client: AgentClient) -> float:
        stragglers.extend(asyncio.create_task(straggle(client, str(i))) for i in range(3))
        await asyncio.sleep(0)
        return 1.0

    episode = begin(agent)
    first = await expect_call(episode)  # one is outstanding, two are queued
    await asyncio.sleep(0.01)  # meanwhile the agent returns
    assert (await expect_end(episode)).value == 1.0
    await asyncio.gather(*stragglers[1:])
    assert len(told) == 2
    assert "outlived its agent" in str(told[0])
    first.answer(reply("late"))
    await asyncio.gather(*stragglers)


async def test_a_call_after_the_end_is_refused() -> None:
    clients: list[AgentClient] = []

    async def agent(client: AgentClient) -> float:
        clients.append(client)
        return 1.0

    await expect_end(begin(agent))
    with pytest.raises(EpisodeEndedError, match="after the agent .* had ended"):
        await ask(clients[0], "late")
    with pytest.raises(EpisodeEndedError):
        await asyncio.to_thread(ask_blocking, clients[0].blocking, "late")


def test_a_call_after_the_envs_loop_is_gone_is_refused() -> None:
    clients: list[BlockingAgentClient] = []

    def agent(client: BlockingAgentClient) -> None:
        clients.append(client)

    async def episode() -> None:
        await expect_end(begin(agent))

    asyncio.run(episode())
    with pytest.raises(EpisodeEndedError):
        ask_blocking(clients[0], "late")


# -- closing ---------------------------------------------------------------------------------------


async def test_closing_cancels_a_task_and_runs_its_finally() -> None:
    steps: list[str] = []

    async def agent(client: AgentClient) -> None:
        try:
            await ask(client, "one")
        except asyncio.CancelledError:
            steps.append("cancelled")
            raise
        finally:
            await asyncio.sleep(0)
            steps.append("finally")

    episode = begin(agent)
    await expect_call(episode)
    assert await episode.close(1)
    assert steps == ["cancelled", "finally"]
    assert await episode.close(1)


async def test_closing_releases_a_thread_and_joins_it() -> None:
    steps: list[str] = []

    def agent(client: BlockingAgentClient) -> None:
        try:
            ask_blocking(client, "one")
        except EnvClosedError:
            steps.append("closed")
            raise
        finally:
            steps.append("finally")

    episode = begin(agent)
    await expect_call(episode)
    assert await episode.close(1)
    assert steps == ["closed", "finally"]
    assert not threads()


async def test_a_step_cancelled_just_as_a_call_arrives_loses_nothing() -> None:
    ended = threading.Event()

    def agent(client: BlockingAgentClient) -> None:
        try:
            ask_blocking(client, "one")
        finally:
            ended.set()

    episode = begin(agent)
    waiting = asyncio.create_task(episode.inboxes[0].take(5))
    await asyncio.sleep(0.05)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert await episode.close(1)
    assert ended.is_set()


# -- agents that do not listen ---------------------------------------------------------------------


async def test_an_agent_that_swallows_its_cancellation_and_calls_again_is_aborted() -> None:
    refusals: list[str] = []

    async def agent(client: AgentClient) -> None:
        while True:
            try:
                await ask(client, "again")
            except (Exception, asyncio.CancelledError) as error:
                refusals.append(type(error).__name__)

    episode = begin(agent)
    await expect_call(episode)
    assert await episode.close(1)
    assert isinstance((await expect_end(episode)).error, AgentAborted)
    assert refusals[0] == "CancelledError"
    assert set(refusals[1:]) == {"EnvClosedError"}
    assert len(refusals) < 10


async def test_a_thread_that_swallows_every_exception_is_aborted() -> None:
    def agent(client: BlockingAgentClient) -> None:
        while True:
            try:
                ask_blocking(client, "again")
            except Exception:
                continue

    episode = begin(agent)
    await expect_call(episode)
    assert await episode.close(1)
    assert isinstance((await expect_end(episode)).error, AgentAborted)
    assert not threads()


async def test_an_agent_that_cannot_be_stopped_is_reported() -> None:
    release = threading.Event()

    def agent(client: BlockingAgentClient) -> None:
        try:
            ask_blocking(client, "one")
        except EnvClosedError:
            release.wait(10)

    episode = begin(agent)
    await expect_call(episode)
    assert not await episode.close(0.01)
    release.set()
    assert await episode.close(1)
    assert not threads()


class Hiding(asyncio.SelectorEventLoop):
    """Does not show its executor, as uvloop's loop does not."""

    __slots__ = ("kept",)

    def set_default_executor(self, executor: Any) -> None:
        self.kept = executor

    def __getattribute__(self, name: str) -> Any:
        if name == "_default_executor" and not self.is_closed():
            raise AttributeError(name)
        return super().__getattribute__(name)


@pytest.mark.parametrize("size", [None, 3])
def test_a_loop_that_hides_its_executor_keeps_what_it_has(size: int | None) -> None:
    loop = Hiding()
    chosen = None if size is None else ThreadPoolExecutor(size)
    if chosen is not None:
        loop.set_default_executor(chosen)
    give_threads(loop)
    first = loop.kept
    give_threads(loop)
    assert loop.kept is first
    assert chosen in (None, first)
    first.shutdown()
    loop.close()
