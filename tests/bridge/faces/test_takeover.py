"""Agents that build their own client, deep inside, and know nothing of evert: with every SDK, and
wherever their code may run. All else goes where it would have gone; ``remove`` leaves no trace."""

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import inspect
import json
import os
import pickle
import queue
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from multiprocessing.pool import ThreadPool
from typing import Any

import aiohttp
import anyio.to_thread
import httpx
import httpx2
import openai
import pytest
from google import genai
from tests import kit
from tests.bridge.faces.conftest import Elsewhere, play_without_a_call
from tests.bridge.faces.sdk_calls import (
    ASYNC,
    BLOCKING,
    LM15,
    MODEL,
    REFUSALS,
    async_anthropic,
    async_genai,
    async_openai,
    blocking_anthropic,
    blocking_openai,
)
from tests.kit import reward, user
from tinker_cookbook.rl.types import Trajectory

from evert import EpisodeEndedError, RemoteModel
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients import takeover


def messages(text: str) -> Any:
    return [user(text)]


def echo(prompt: str) -> str:
    """Says what the last user said: every reply tells whose it is."""
    return prompt.rpartition("user\n")[2].partition("<|im_end|>")[0]


async def play(agent: Any, *task: Any) -> Trajectory:
    return await kit.play(agent, echo, **({"task": task[0]} if task else {}))


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# -- wherever an agent's code runs ---------------------------------------------------------------


@pytest.mark.parametrize("sdk", ASYNC)
async def test_an_async_agent_that_builds_its_own_client(sdk: str) -> None:
    async def agent() -> bool:
        return await ASYNC[sdk]("Hello?") == "Hello?"

    assert kit.rewards(await play(agent)) == [1.0]


@pytest.mark.parametrize("sdk", BLOCKING)
async def test_a_plain_agent_that_builds_its_own_client(sdk: str) -> None:
    def agent() -> bool:
        return BLOCKING[sdk]("Hello?") == "Hello?"

    assert kit.rewards(await play(agent)) == [1.0]


async def test_an_agent_may_use_the_client_it_is_given_and_its_own() -> None:
    async def agent(client: Any, task: str) -> bool:
        given = await client.chat.completions.create(messages=messages(task))
        return bool(await async_openai(task) == given.choices[0].message.content == task)

    trajectory = await play(agent, "both")
    assert reward(trajectory) == 1.0
    assert len(trajectory.transitions) == 2


def in_to_thread(ask: Callable[[str], str], text: str) -> Any:
    return asyncio.to_thread(ask, text)


def in_executor(ask: Callable[[str], str], text: str) -> Any:
    return asyncio.get_running_loop().run_in_executor(None, ask, text)


async def in_thread(ask: Callable[[str], str], text: str) -> str:
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(ask(text)))
    thread.start()
    await asyncio.to_thread(thread.join)
    return said[0]


async def in_thread_subclass(ask: Callable[[str], str], text: str) -> str:
    class Asking(threading.Thread):
        said = ""

        def run(self) -> None:
            self.said = ask(text)

    thread = Asking()
    thread.start()
    await asyncio.to_thread(thread.join)
    return thread.said


async def in_thread_of_a_thread(ask: Callable[[str], str], text: str) -> str:
    def outer() -> str:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(ask, text).result()

    return await in_thread(lambda _: outer(), text)


async def in_pool(ask: Callable[[str], str], text: str) -> str:
    with ThreadPoolExecutor(2) as pool:
        [said] = await asyncio.to_thread(lambda: [*pool.map(ask, [text])])
    return str(said)


async def in_timer(ask: Callable[[str], str], text: str) -> str:
    said: concurrent.futures.Future[str] = concurrent.futures.Future()
    threading.Timer(0, lambda: said.set_result(ask(text))).start()
    return await asyncio.wrap_future(said)


PLACES = [
    in_to_thread,
    in_executor,
    in_thread,
    in_thread_subclass,
    in_thread_of_a_thread,
    in_pool,
    in_timer,
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: place.__name__)
async def test_blocking_calls_in_an_async_agents_threads(place: Callable[..., Any]) -> None:
    said: dict[str, str] = {}

    async def agent() -> float:
        for sdk, ask in BLOCKING.items():
            said[sdk] = await place(ask, "In here.")
        return 1.0

    await play(agent)
    assert said == dict.fromkeys(BLOCKING, "In here.")


async def test_another_event_loop_in_a_thread() -> None:
    async def agent() -> bool:
        return await in_thread(lambda text: asyncio.run(async_openai(text)), "Loop.") == "Loop."

    def plain() -> bool:
        return asyncio.run(async_anthropic("Loop.")) == "Loop."

    assert reward(await play(agent)) == 1.0
    assert reward(await play(plain)) == 1.0


async def test_tasks_of_an_agent() -> None:
    async def agent() -> bool:
        said = await asyncio.gather(*(async_openai(f"Number {n}") for n in range(5)))
        return said == [f"Number {n}" for n in range(5)]

    trajectory = await play(agent)
    assert reward(trajectory) == 1.0
    assert len(trajectory.transitions) == 5


async def test_a_client_made_before_any_env_is_taken_over_too() -> None:
    client = openai.AsyncOpenAI(api_key="x")

    async def agent() -> bool:
        said = await client.chat.completions.create(model=MODEL, messages=messages("Old."))
        return said.choices[0].message.content == "Old."

    assert reward(await play(agent)) == 1.0
    await client.close()


URL = "https://api.openai.com/v1/chat/completions"


async def test_requests_without_any_sdk() -> None:
    body = {"model": MODEL, "messages": messages("Bare.")}
    libraries: list[Any] = [httpx, httpx2]
    forms: list[Any] = [{"json": body}, {"data": json.dumps(body)}]
    forms.append({"data": json.dumps(body).encode()})
    said: list[Any] = []

    async def agent() -> float:
        for library in libraries:
            async with library.AsyncClient() as client:
                responses = [await client.post(URL, json=body)]
            responses.append(await asyncio.to_thread(library.post, URL, json=body))
            assert [type(response) for response in responses] == [library.Response] * 2
            said.extend([response.json() for response in responses])
        async with aiohttp.ClientSession("https://api.openai.com/v1/") as session:
            for form in forms:
                async with session.post("chat/completions", **form) as response:
                    assert type(response) is aiohttp.ClientResponse
                    said.append(await response.json())
        return 1.0

    await play(agent)
    assert [one["choices"][0]["message"]["content"] for one in said] == ["Bare."] * 7


async def test_aiohttp_raises_for_a_refusal_where_it_is_told_to() -> None:
    body = {"model": MODEL, "messages": messages("Hi"), "n": 2}

    async def agent() -> float:
        async with aiohttp.ClientSession() as session:
            assert (await session.post(URL, json=body)).status == 400
            with pytest.raises(aiohttp.ClientResponseError, match="400"):
                await session.post(URL, json=body, raise_for_status=True)
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            assert (await session.post(URL, json=body, raise_for_status=False)).status == 400
            with pytest.raises(aiohttp.ClientResponseError, match="400"):
                await session.post(URL, json=body)
        return 1.0

    await play_without_a_call(agent)


# -- many at once --------------------------------------------------------------------------------


async def test_many_episodes_at_once_are_never_mixed_up() -> None:
    async def agent(task: str) -> float:
        async with openai.AsyncOpenAI(api_key="x") as client:
            history: list[Any] = []
            for turn in range(4):
                history += messages(f"{task}, turn {turn}")
                said = await client.chat.completions.create(model=MODEL, messages=history)
                history.append(said.choices[0].message)
                if said.choices[0].message.content != f"{task}, turn {turn}":
                    return 0.0
                blocking = await asyncio.to_thread(blocking_anthropic, f"{task} aside")
                if blocking != f"{task} aside":
                    return 0.0
        return 1.0

    def plain(task: str) -> float:
        with ThreadPoolExecutor(2) as pool:
            said = [*pool.map(blocking_openai, [f"{task}.{number}" for number in range(6)])]
        return float(said == [f"{task}.{number}" for number in range(6)])

    games = [play(agent, f"Task {n}") for n in range(20)]
    games += [play(plain, f"Plain task {n}") for n in range(20)]
    trajectories = await asyncio.gather(*games)

    assert [reward(trajectory) for trajectory in trajectories] == [1.0] * 40
    assert {len(trajectory.transitions) for trajectory in trajectories[:20]} == {8}
    assert {len(trajectory.transitions) for trajectory in trajectories[20:]} == {6}


async def test_an_agent_may_play_an_episode_of_another() -> None:
    async def inner() -> bool:
        return await async_openai("Inner.") == "Inner."

    def plain_inner() -> bool:
        return blocking_openai("Inner.") == "Inner."

    async def outer() -> float:
        won = reward(await play(inner)) + reward(await play(plain_inner))
        return won + (await async_openai("Outer.") == "Outer.")

    trajectory = await play(outer)
    assert reward(trajectory) == 3.0
    assert len(trajectory.transitions) == 1


# -- everything else goes where it would have gone -----------------------------------------------


async def test_other_models_are_asked_where_they_are(elsewhere: Elsewhere) -> None:
    async def agent() -> float:
        for model in ("gpt-4o", "policy-2", ""):
            said = await async_openai("Hi", model, base_url=elsewhere.url)
            assert said == "From elsewhere."
        router = LM15["openai-chat"]
        for ask in (blocking_openai, router.ask_blocking):
            said = await asyncio.to_thread(ask, "Hi", "gpt-4o", base_url=elsewhere.url)
            assert said == "From elsewhere."
        assert await router.ask("Hi", "gpt-5.2", base_url=elsewhere.url) == "From elsewhere."
        assert await router.ask("Here?", base_url=elsewhere.url) == "Here?"
        return float(await async_openai("Here?", base_url=elsewhere.url) == "Here?")

    assert kit.rewards(await play(agent)) == [0.0, 1.0]
    models = [body["model"] for _, _, body in elsewhere.asked]
    assert models == ["gpt-4o", "policy-2", "", "gpt-4o", "gpt-4o", "gpt-5.2"]
    assert elsewhere.asked[0][2]["messages"] == messages("Hi")


async def test_other_models_are_asked_where_they_are_by_aiohttp_too(elsewhere: Elsewhere) -> None:
    root = elsewhere.url.removesuffix("/v1")

    async def agent() -> float:
        with pytest.raises(genai.errors.ClientError, match="404"):
            await async_genai("Hi", "gemini-2.5-flash", http_options={"base_url": root})
        async with aiohttp.ClientSession() as session:
            url = f"{elsewhere.url}/chat/completions"
            await session.post(url, json={"model": "gpt-4o"})
            await session.post(url, data={"model": MODEL})  # a form is no model call
            await session.get(f"{elsewhere.url}/models")
        return float(await async_genai("Here?", http_options={"base_url": root}) == "Here?")

    assert kit.rewards(await play(agent)) == [1.0]
    assert [path for _, path, _ in elsewhere.asked] == [
        "/v1/models/gemini-2.5-flash:generateContent",
        "/v1/chat/completions",
        "/v1/chat/completions",
        "/v1/models",
    ]


async def test_other_paths_are_not_taken_over(elsewhere: Elsewhere) -> None:
    async def agent() -> float:
        async with openai.AsyncOpenAI(api_key="x", base_url=elsewhere.url) as client:
            await client.models.list()
            with pytest.raises(openai.NotFoundError):
                await client.embeddings.create(model=MODEL, input="Hi")
        async with httpx.AsyncClient() as http:
            await http.post(f"{elsewhere.url}/chat/completions/x", json={"model": MODEL})
            await http.get(f"{elsewhere.url}/chat/completions")
        return float(await async_openai("Here?") == "Here?")

    assert reward(await play(agent)) == 1.0
    assert [path for _, path, _ in elsewhere.asked] == [
        "/v1/models",
        "/v1/embeddings",
        "/v1/chat/completions/x",
        "/v1/chat/completions",
    ]


async def test_code_outside_of_agents_is_left_alone(elsewhere: Elsewhere) -> None:
    inside, outside = asyncio.Event(), asyncio.Event()

    async def agent() -> float:
        inside.set()
        await outside.wait()
        return float(await async_openai("Here?") == "Here?")

    game = asyncio.create_task(play(agent))
    await inside.wait()
    assert takeover.is_installed()
    router = LM15["openai-chat"]
    ask = partial(blocking_openai, base_url=elsewhere.url)
    for said in (
        await async_openai("Hi", base_url=elsewhere.url),
        await asyncio.to_thread(ask, "Hi"),
        await in_thread(ask, "Hi"),
        await in_pool(ask, "Hi"),
        await router.ask("Hi", base_url=elsewhere.url),
        await asyncio.to_thread(router.ask_blocking, "Hi", base_url=elsewhere.url),
    ):
        assert said == "From elsewhere."
    outside.set()

    assert reward(await game) == 1.0
    assert len(elsewhere.asked) == 6


async def test_a_context_that_the_agent_leaves_is_outside(elsewhere: Elsewhere) -> None:
    async def agent() -> float:
        empty = contextvars.Context()
        ask = async_openai("Hi", base_url=elsewhere.url)
        said = await asyncio.get_running_loop().create_task(ask, context=empty)
        return float(said == "From elsewhere.")

    await play_without_a_call(agent)


async def test_large_uploads_that_are_no_model_calls_are_not_read_into_memory(
    elsewhere: Elsewhere,
) -> None:
    read: list[int] = []

    async def body() -> AsyncIterator[bytes]:
        for number in range(3):
            read.append(number)
            yield b"x"

    async def agent() -> float:
        async with httpx.AsyncClient() as http:
            request = http.build_request("POST", f"{elsewhere.url}/files", content=body())
            with pytest.raises(httpx.RequestNotRead):
                request.content  # noqa: B018
            await http.send(request)
            with pytest.raises(httpx.RequestNotRead):
                request.content  # noqa: B018
        return 1.0

    await play_without_a_call(agent)


# -- what outlives its agent ---------------------------------------------------------------------


Work = Callable[[], Any]
Said = concurrent.futures.Future[Any]


def left_to_a_task(work: Work) -> Any:
    async def late() -> Any:
        return await asyncio.to_thread(work)

    return asyncio.create_task(late())


def left_to_the_loops_threads(work: Work) -> Any:
    return asyncio.get_running_loop().run_in_executor(None, work)


def left_to_a_pool(work: Work) -> Any:
    pool = ThreadPoolExecutor(1)
    pending = pool.submit(work)
    pool.shutdown(wait=False)
    return asyncio.wrap_future(pending)


def left_to_another_pool(work: Work) -> Any:
    pool = ThreadPool(1)
    said = Said()
    pool.apply_async(lambda: said.set_result(work()))
    pool.close()
    return asyncio.wrap_future(said)


def left_to_a_thread(work: Work) -> Any:
    said = Said()
    threading.Thread(target=lambda: said.set_result(work())).start()
    return asyncio.wrap_future(said)


def left_to_a_timer(work: Work) -> Any:
    said = Said()
    threading.Timer(0, lambda: said.set_result(work())).start()
    return asyncio.wrap_future(said)


def left_to_a_thread_of_a_pool(work: Work) -> Any:
    with ThreadPoolExecutor(1) as pool:
        said = Said()
        thread = threading.Thread(target=lambda: said.set_result(work()))
        pool.submit(thread.start).result()
        return asyncio.wrap_future(said)


WORK = [left_to_a_task, left_to_the_loops_threads, left_to_a_pool, left_to_another_pool]
THREADS = [left_to_a_thread, left_to_a_timer, left_to_a_thread_of_a_pool]


async def left(leave: Callable[..., Any], elsewhere: Elsewhere) -> str:
    """What a call gets that was left behind, of one agent, and made after it was over."""
    is_over = threading.Event()
    pending: list[Any] = []

    def work() -> str:
        is_over.wait()
        try:
            return blocking_openai("Late.", max_retries=0, base_url=elsewhere.url)
        except openai.BadRequestError as error:
            return f"{error.code}: {error}"

    async def agent() -> float:
        pending.append(leave(work))
        return float(await async_openai("First.") == "First.")

    assert reward(await play(agent)) == 1.0
    is_over.set()
    return str(await pending[0])


@pytest.mark.parametrize("leave", WORK, ids=lambda leave: leave.__name__)
async def test_work_that_an_agent_handed_out_is_told_that_the_episode_is_over(
    leave: Callable[..., Any], elsewhere: Elsewhere
) -> None:
    told = await left(leave, elsewhere)

    assert told.startswith("rollout_over: ")
    assert "had ended" in told
    assert EpisodeEndedError.__name__ not in told
    assert elsewhere.asked == []


@pytest.mark.parametrize("leave", THREADS, ids=lambda leave: leave.__name__)
async def test_a_thread_that_outlives_its_agent_is_nobodys(
    leave: Callable[..., Any], elsewhere: Elsewhere
) -> None:
    assert await left(leave, elsewhere) == "From elsewhere."


class Service:
    """A thread that does everybody's work, started by whoever comes first: an event bus, say."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def do(self, work: Callable[..., Any], *arguments: Any) -> Any:
        if not self._thread.is_alive():
            self._thread.start()
        done: concurrent.futures.Future[Any] = concurrent.futures.Future()
        self._queue.put((work, arguments, done))
        return done.result()

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            work, arguments, done = item
            try:
                done.set_result(work(*arguments))
            except BaseException as error:
                done.set_exception(error)


async def test_a_service_that_began_within_an_agent_serves_the_others(
    elsewhere: Elsewhere,
) -> None:
    service = Service()

    def agent() -> bool:
        return bool(service.do(blocking_openai, "Mine.") == "Mine.")

    assert reward(await play(agent)) == 1.0
    ask = partial(blocking_openai, base_url=elsewhere.url, max_retries=0)
    for _ in range(5):
        assert await asyncio.to_thread(service.do, ask, "Hi") == "From elsewhere."
    service.stop()


async def test_a_service_keeps_no_rollout_alive() -> None:
    service = Service()
    gone: list[weakref.ref[Any]] = []

    def agent() -> bool:
        gone.append(weakref.ref(takeover.current_endpoint()))
        return bool(service.do(blocking_openai, "Mine.") == "Mine.")

    await play(agent)
    for _ in range(3):
        await asyncio.sleep(0)
        gc.collect()
    assert gone[0]() is None
    service.stop()


Do = Callable[..., str]
"""Asks the policy by OpenAI's SDK, somewhere; options are the client's."""


def a_pool(stack: ExitStack) -> Do:
    pool = stack.enter_context(ThreadPoolExecutor(2))
    return lambda text, **options: pool.submit(blocking_openai, text, **options).result()


def a_loop_in_a_thread(stack: ExitStack) -> Do:
    """As LangChain, MCP clients and anyio's portals have it."""
    loop = asyncio.new_event_loop()
    stack.callback(loop.close)
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    stack.callback(thread.join)
    stack.callback(lambda: loop.call_soon_threadsafe(loop.stop))

    def do(text: str, **options: Any) -> str:
        return asyncio.run_coroutine_threadsafe(async_openai(text, **options), loop).result()

    return do


def by_the_old_pool(way: Callable[..., str]) -> Callable[[ExitStack], Do]:
    def made(stack: ExitStack) -> Do:
        pool = stack.enter_context(ThreadPool(2))
        return lambda text, **options: way(pool, partial(blocking_openai, **options), text)

    return made


SHARED: dict[str, Callable[[ExitStack], Do]] = {
    "a pool": a_pool,
    "a loop in a thread": a_loop_in_a_thread,
    "map": by_the_old_pool(lambda pool, ask, text: pool.map(ask, [text])[0]),
    "imap": by_the_old_pool(lambda pool, ask, text: next(iter(pool.imap_unordered(ask, [text])))),
    "starmap": by_the_old_pool(lambda pool, ask, text: pool.starmap(ask, [(text,)])[0]),
    "apply": by_the_old_pool(lambda pool, ask, text: pool.apply(ask, (text,))),
    "apply_async": by_the_old_pool(lambda pool, ask, text: pool.apply_async(ask, (text,)).get()),
}


@pytest.mark.parametrize("make", SHARED.values(), ids=SHARED)
async def test_what_began_within_an_agent_works_for_each_who_uses_it(
    make: Callable[[ExitStack], Do], elsewhere: Elsewhere
) -> None:
    with ExitStack() as stack:
        begin = functools.cache(lambda: make(stack))

        def agent(task: str) -> bool:
            return begin()(task) == task

        assert reward(await play(agent, "First.")) == 1.0
        trajectories = await asyncio.gather(*(play(agent, f"Task {n}") for n in range(4)))
        assert [reward(trajectory) for trajectory in trajectories] == [1.0] * 4
        outside = partial(begin(), base_url=elsewhere.url, max_retries=0)
        for _ in range(3):
            assert await asyncio.to_thread(outside, "Hi") == "From elsewhere."


async def test_threads_of_pools_that_agents_began_do_the_others_work(elsewhere: Elsewhere) -> None:
    with ThreadPoolExecutor(1) as pool:

        async def agent() -> bool:
            loop = asyncio.get_running_loop()
            said = [
                await loop.run_in_executor(pool, blocking_openai, "Mine."),
                await asyncio.to_thread(blocking_openai, "Mine."),
                await anyio.to_thread.run_sync(blocking_openai, "Mine."),
            ]
            return said == ["Mine."] * 3

        assert reward(await play(agent)) == 1.0
        ask = partial(blocking_openai, base_url=elsewhere.url)
        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(pool, ask, "Hi") == "From elsewhere."
        assert await asyncio.to_thread(ask, "Hi") == "From elsewhere."
        assert await anyio.to_thread.run_sync(ask, "Hi") == "From elsewhere."


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
async def test_a_forked_process_is_nobodys(elsewhere: Elsewhere) -> None:
    def agent() -> bool:
        reading, writing = os.pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
            child = os.fork()
        if child == 0:
            os.write(writing, b"none" if takeover.current_endpoint() is None else b"some")
            os._exit(0)
        os.waitpid(child, 0)
        said = os.read(reading, 10)
        os.close(reading)
        os.close(writing)
        return said == b"none" and takeover.current_endpoint() is not None

    await play_without_a_call(agent)


def test_rollouts_on_several_loops_at_once_are_each_their_own() -> None:
    def agent(task: str) -> bool:
        return blocking_openai(task) == task

    with ThreadPoolExecutor(4) as pool:
        trajectories = pool.map(lambda n: asyncio.run(play(agent, f"Task {n}")), range(8))
        assert [reward(trajectory) for trajectory in trajectories] == [1.0] * 8


async def test_a_thread_of_an_agent_looks_like_any() -> None:
    seen: list[Any] = []

    class Own(threading.Thread):
        def run(self) -> None:
            seen.append((dict(vars(self)).get("run"), takeover.current_endpoint() is not None))

    async def agent() -> float:
        replaced = threading.Thread()
        replaced.run = lambda: seen.append(vars(replaced)["run"])  # type: ignore[method-assign]
        own_run = replaced.run
        for thread in (Own(), replaced):
            thread.start()
            thread.join()
            with pytest.raises(RuntimeError, match="threads can only be started once"):
                thread.start()
        assert "run" not in vars(Own())
        assert seen == [(None, True), own_run]
        return 1.0

    await play_without_a_call(agent)


# -- installed once, removed without a trace -----------------------------------------------------


PATCHED = [
    (httpx.Client, "_transport_for_url"),
    (httpx.AsyncClient, "_transport_for_url"),
    (httpx2.Client, "_transport_for_url"),
    (httpx2.AsyncClient, "_transport_for_url"),
    (aiohttp.ClientSession, "_request"),
    (threading.Thread, "start"),
    (ThreadPoolExecutor, "submit"),
]


def patches() -> list[Any]:
    return [vars(owner)[name] for owner, name in PATCHED]


@pytest.fixture
def removed() -> Iterator[None]:
    takeover.remove()
    yield
    takeover.remove()


@pytest.mark.usefixtures("removed")
def test_removing_it_leaves_everything_as_it_was() -> None:
    originals = patches()
    assert not takeover.is_installed()

    takeover.install()
    patched = patches()
    assert takeover.is_installed()
    assert all(new is not old for new, old in zip(patched, originals, strict=True))
    assert [new.__name__ for new in patched] == [name for _, name in PATCHED]
    assert "apply_async" in vars(ThreadPool)

    takeover.install()
    assert patches() == patched

    for _ in range(2):
        takeover.remove()
        assert patches() == originals
        assert not takeover.is_installed()
    assert "apply_async" not in vars(ThreadPool)  # what was inherited is inherited again
    assert "_guarded_task_generation" not in vars(ThreadPool)


@pytest.mark.usefixtures("removed")
def test_nobody_sees_a_difference() -> None:
    def looks(function: Any) -> Any:
        names = ("__name__", "__qualname__", "__module__", "__doc__")
        return [getattr(function, name) for name in names], inspect.signature(function)

    before = [looks(getattr(owner, name)) for owner, name in PATCHED]
    sources = [inspect.getsource(getattr(owner, name)) for owner, name in PATCHED]
    takeover.install()

    assert [looks(getattr(owner, name)) for owner, name in PATCHED] == before
    assert [inspect.getsource(getattr(owner, name)) for owner, name in PATCHED] == sources
    for owner, name in PATCHED:
        assert pickle.loads(pickle.dumps(getattr(owner, name))) is getattr(owner, name)


@pytest.mark.usefixtures("removed")
def test_an_exception_while_it_is_installed_leaves_nothing_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    originals = patches()
    finders = [*sys.meta_path]

    patch = takeover._patch

    def fail(owner: type, name: str, replacement: Any) -> None:
        if name == "submit":
            raise RuntimeError("no")
        patch(owner, name, replacement)

    monkeypatch.setattr(takeover, "_patch", fail)
    with pytest.raises(RuntimeError):
        takeover.install()

    assert patches() == originals
    assert sys.meta_path == finders
    assert not takeover.is_installed()
    monkeypatch.undo()
    takeover.install()
    assert takeover.is_installed()


@pytest.mark.usefixtures("removed")
async def test_what_others_wrap_meanwhile_stays_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    takeover.install()
    ours, started = threading.Thread.start, []

    def start(thread: threading.Thread) -> None:
        started.append(thread)
        ours(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    takeover.remove()
    assert vars(threading.Thread)["start"] is start

    takeover.install()
    assert vars(threading.Thread)["start"] is start

    async def agent() -> float:
        return float(await in_thread(blocking_openai, "Still.") == "Still.")

    assert reward(await play(agent)) == 1.0
    assert started
    monkeypatch.undo()


@pytest.mark.usefixtures("removed")
async def test_every_env_installs_it_again_and_it_takes_effect_once() -> None:
    async def agent(task: int) -> float:
        return float(await async_openai(f"Task {task}") == f"Task {task}")

    first = await play(agent, 0)
    patched = patches()
    assert takeover.is_installed()
    rest = await asyncio.gather(*(play(agent, number) for number in range(1, 5)))
    assert patches() == patched
    takeover.remove()
    last = await play(agent, 5)
    assert [reward(trajectory) for trajectory in [first, *rest, last]] == [1.0] * 6


# -- refusals ------------------------------------------------------------------------------------


async def test_a_blocking_call_on_the_envs_own_loop_is_a_400() -> None:
    async def agent() -> float:
        for sdk, ask in BLOCKING.items():
            with pytest.raises(REFUSALS, match="asyncio.to_thread"):
                pytest.fail(f"{sdk} says {ask('Would wait for ever.')}")
        return 1.0

    await play_without_a_call(agent)


async def test_evert_s_own_calls_to_a_model_of_the_policys_name_are_never_taken_over(
    elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the policy would be asked to answer, and be shown what only the answerer may know."""
    monkeypatch.setenv("SOME_KEY", "x")
    answerer = RemoteModel(MODEL, base_url=elsewhere.url, api_key_env="SOME_KEY")

    async def agent() -> float:
        reply = await answerer(ChatRequest(MODEL, messages("The secret is 7.")))
        assert reply.text == "From elsewhere."
        return float(await async_openai("Here?") == "Here?")

    assert kit.rewards(await play(agent)) == [1.0]
    assert [body["messages"] for _, _, body in elsewhere.asked] == [messages("The secret is 7.")]


def test_take_over_is_installed_once_by_however_many_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    takeover.remove()
    before = len(sys.meta_path)
    lock, all_found_none = takeover._lock, threading.Barrier(8)
    came: set[threading.Thread] = set()

    class Door:
        """The lock; nobody takes it until all have found that nothing is installed."""

        def __enter__(self) -> None:
            if threading.current_thread() not in came:  # who has the lock may take it again
                came.add(threading.current_thread())
                all_found_none.wait(50)
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    monkeypatch.setattr(takeover, "_lock", Door())
    threads = [threading.Thread(target=takeover.install) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert len(sys.meta_path) <= before + 1
    takeover.remove()
    assert len(sys.meta_path) == before
