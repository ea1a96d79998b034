"""Take-over: agents that build their own SDK client, without knowing about evert, reach the policy.
It works with every SDK and in threads and pools. All other requests go to their real address."""

import asyncio
import concurrent.futures
import contextvars
import functools
import gc
import inspect
import json
import logging
import os
import pickle
import queue
import threading
import warnings
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable
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
from tests.bridge.clients.sdk_calls import (
    ASYNC,
    BLOCKING,
    LM15,
    MODEL,
    REFUSALS,
    async_genai,
    async_openai,
    blocking_anthropic,
    blocking_openai,
)
from tests.kit import Logs, Patch, as_agent, play_without_a_call, reward, user
from tests.kit.serving import Elsewhere
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, BlockingAgentClient, EpisodeEndedError, RemoteModel
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients import takeover

URL = "https://api.openai.com/v1/chat/completions"


def messages(text: str) -> Any:
    return [user(text)]


def echo(prompt: str) -> str:
    """Repeat the last user message, so that each reply can be matched to its call."""
    return prompt.rpartition("user\n")[2].partition("<|im_end|>")[0]


async def play(agent: Any, *task: Any) -> Trajectory:
    return await kit.play(agent, echo, **({"task": task[0]} if task else {}))


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: Patch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# -- SDKs, threads and pools ---------------------------------------------------------------------


async def test_agents_can_build_their_own_client_with_any_sdk() -> None:
    texts: dict[str, str] = {}

    async def agent() -> float:
        texts.update({sdk: await ask("Hello?") for sdk, ask in ASYNC.items()})
        return 1.0

    def plain() -> float:
        texts.update({sdk: ask("Hello?") for sdk, ask in BLOCKING.items()})
        return 1.0

    agents: list[tuple[Any, dict[str, Any]]] = [(agent, ASYNC), (plain, BLOCKING)]
    for form, ways in agents:
        assert kit.rewards(await play(form)) == [0.0] * (len(ways) - 1) + [1.0]
        assert texts == dict.fromkeys(ways, "Hello?")
        texts.clear()


async def test_clients_reach_the_policy_whenever_and_wherever_they_were_created() -> None:
    old = openai.AsyncOpenAI(api_key="x")

    async def agent(client: Any, task: str) -> bool:
        by_handle = await client.chat.completions.create(messages=messages(task))
        by_sdk = await old.chat.completions.create(model=MODEL, messages=messages(task))
        texts = [completion.choices[0].message.content for completion in (by_handle, by_sdk)]
        return [*texts, await async_openai(task)] == [task] * 3

    assert kit.rewards(await play(agent, "all")) == [0.0, 0.0, 1.0]
    await old.close()


Work = Callable[[], Any]
Place = Callable[[Work], Awaitable[Any]]
"""A function that runs work somewhere (such as in a thread), immediately or later."""


def started_by(start: Callable[[Work], Any]) -> Place:
    def place(work: Work) -> Awaitable[Any]:
        result = concurrent.futures.Future[Any]()

        def run() -> None:
            try:
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)

        start(run)
        return asyncio.wrap_future(result)

    return place


def submit(work: Work) -> None:
    pool = ThreadPoolExecutor(1)
    pool.submit(work)
    pool.shutdown(wait=False)


def apply(work: Work) -> None:
    pool = ThreadPool(1)
    pool.apply_async(work)
    pool.close()


def start(work: Work) -> None:
    threading.Thread(target=work).start()


def start_a_subclass(work: Work) -> None:
    class Own(threading.Thread):
        def run(self) -> None:
            work()

    Own().start()


def start_in_a_pool(work: Work) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(start, work).result()


HANDED_OUT: dict[str, Place] = {
    "a task": lambda work: asyncio.create_task(asyncio.to_thread(work)),
    "the loop's threads": lambda work: asyncio.get_running_loop().run_in_executor(None, work),
    "a pool": started_by(submit),
    "multiprocessing's pool": started_by(apply),
}
THREADS: dict[str, Place] = {
    "a thread": started_by(start),
    "a subclass": started_by(start_a_subclass),
    "a timer": started_by(lambda work: threading.Timer(0, work).start()),
    "a thread of a pool": started_by(start_in_a_pool),
    "a thread of a thread": started_by(lambda work: start(lambda: start(work))),
    "a pool of a thread": started_by(lambda work: start(lambda: submit(work))),
}
PLACES = {**HANDED_OUT, **THREADS}
every_place = pytest.mark.parametrize("place", PLACES)


@every_place
async def test_blocking_calls_in_an_async_agents_threads_are_taken_over(place: str) -> None:
    ways = {sdk: BLOCKING[sdk] for sdk in ("openai", "genai stream", "lm15 anthropic stream")}
    texts: dict[str, str] = {}

    async def agent() -> float:
        for sdk, ask in ways.items():
            texts[sdk] = await PLACES[place](partial(ask, "In here."))
        return 1.0

    await play(agent)
    assert texts == dict.fromkeys(ways, "In here.")


async def test_requests_without_an_sdk_are_taken_over() -> None:
    body = {"model": MODEL, "messages": messages("Bare.")}
    libraries: list[Any] = [httpx, httpx2]
    text = json.dumps(body)
    forms: list[Any] = [{"json": body}, {"data": text}, {"data": text.encode()}]
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
    assert [completion["choices"][0]["message"]["content"] for completion in said] == ["Bare."] * 7


@as_agent()
async def test_aiohttp_still_raises_its_own_error_for_a_bad_url() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.InvalidUrlClientError):
            await session.post("http://[bad/", json={})


@as_agent()
async def test_aiohttp_honours_raise_for_status() -> None:
    body = {"model": MODEL, "messages": messages("Hi"), "n": 2}
    rows: list[tuple[bool, dict[str, Any], bool]] = [
        (False, {}, False),
        (False, {"raise_for_status": True}, True),
        (True, {}, True),
        (True, {"raise_for_status": False}, False),
    ]
    for default, options, raises in rows:
        async with aiohttp.ClientSession(raise_for_status=default) as session:
            if raises:
                with pytest.raises(aiohttp.ClientResponseError, match="400"):
                    await session.post(URL, json=body, **options)
            else:
                assert (await session.post(URL, json=body, **options)).status == 400


# -- concurrent episodes -------------------------------------------------------------------------


async def test_many_concurrent_episodes_are_never_mixed_up() -> None:
    async def agent(task: str) -> bool:
        questions = [f"{task}, number {number}" for number in range(4)]
        ways: list[Any] = [
            async_openai,
            lambda text: asyncio.to_thread(blocking_anthropic, text),
        ] * 2
        said = await asyncio.gather(*(ask(text) for ask, text in zip(ways, questions, strict=True)))
        return said == questions and await async_openai(f"{task}, at last") == f"{task}, at last"

    def plain(task: str) -> bool:
        questions = [f"{task}.{number}" for number in range(5)]
        with ThreadPoolExecutor(2) as pool:
            return [*pool.map(blocking_openai, questions)] == questions

    agents: list[Any] = [agent, plain]
    games = [play(agent, f"{agent.__name__} {n}") for n in range(12) for agent in agents]
    trajectories = await asyncio.gather(*games)

    assert [reward(trajectory) for trajectory in trajectories] == [1.0] * 24
    assert {len(trajectory.transitions) for trajectory in trajectories} == {5}


def test_rollouts_on_different_loops_are_never_mixed_up() -> None:
    def agent(task: str) -> bool:
        return blocking_openai(task) == task

    with ThreadPoolExecutor(4) as pool:
        trajectories = pool.map(lambda n: asyncio.run(play(agent, f"Task {n}")), range(8))
        assert [reward(trajectory) for trajectory in trajectories] == [1.0] * 8


async def test_an_agent_can_play_an_episode_of_another_agent() -> None:
    async def inner() -> bool:
        return await async_openai("Inner.") == "Inner."

    def plain_inner() -> bool:
        return blocking_openai("Inner.") == "Inner."

    async def outer() -> float:
        won = reward(await play(inner)) + reward(await play(plain_inner))
        return won + (await async_openai("Outer.") == "Outer.")

    assert kit.rewards(await play(outer)) == [3.0]


# -- all other requests go to their real address -------------------------------------------------


async def test_calls_to_other_models_are_not_taken_over(elsewhere: Elsewhere) -> None:
    at = {"base_url": elsewhere.url}
    google: Any = {"http_options": {"base_url": elsewhere.url.removesuffix("/v1")}}
    router = LM15["openai-chat"]

    async def agent() -> float:
        for model in ("gpt-4o", "policy-2", ""):
            assert await async_openai("Hi", model, **at) == "From elsewhere."
        for ask in (blocking_openai, router.ask_blocking):
            assert await asyncio.to_thread(ask, "Hi", "gpt-4o", **at) == "From elsewhere."
        assert await router.ask("Hi", "gpt-5.2", **at) == "From elsewhere."
        with pytest.raises(genai.errors.ClientError, match="404"):
            await async_genai("Hi", "gemini-2.5-flash", **google)
        texts = [await router.ask("Here?", **at), await async_openai("Here?", **at)]
        return float([*texts, await async_genai("Here?", **google)] == ["Here?"] * 3)

    assert kit.rewards(await play(agent)) == [0.0, 0.0, 1.0]
    *calls, (_, path, _) = elsewhere.asked
    models = [body["model"] for _, _, body in calls]
    assert models == ["gpt-4o", "policy-2", "", "gpt-4o", "gpt-4o", "gpt-5.2"]
    assert calls[0][2]["messages"] == messages("Hi")
    assert path == "/v1/models/gemini-2.5-flash:generateContent"


async def test_only_requests_that_are_actually_sent_are_logged(
    elsewhere: Elsewhere, caplog: Logs
) -> None:
    async def agent() -> float:
        for library in (httpx, httpx2):
            async with library.AsyncClient() as client:
                for url, model in ((URL, MODEL), (f"{elsewhere.url}/chat/completions", "gpt-4o")):
                    await client.post(url, json={"model": model, "messages": messages("Hi")})
        return 1.0

    for name in ("httpx", "httpx2"):
        caplog.set_level(logging.INFO, name)
    await play(agent)
    lines = [r.getMessage() for r in caplog.records if r.name in ("httpx", "httpx2")]
    assert len(lines) == len(elsewhere.asked) == 2
    assert all(elsewhere.url in line for line in lines)


async def test_requests_other_than_model_calls_are_not_taken_over(elsewhere: Elsewhere) -> None:
    url = f"{elsewhere.url}/chat/completions"

    async def agent() -> float:
        async with openai.AsyncOpenAI(api_key="x", base_url=elsewhere.url) as client:
            await client.models.list()
            with pytest.raises(openai.NotFoundError):
                await client.embeddings.create(model=MODEL, input="Hi")
        async with httpx.AsyncClient() as http:
            await http.post(f"{url}/x", json={"model": MODEL})
            await http.get(url)
        async with aiohttp.ClientSession() as session:
            await session.post(url, json={"model": "gpt-4o"})
            await session.post(url, data={"model": MODEL})  # a form
            await session.get(f"{elsewhere.url}/models")
        return float(await async_openai("Here?") == "Here?")

    assert kit.rewards(await play(agent)) == [1.0]
    chat = "chat/completions"
    paths = ["models", "embeddings", f"{chat}/x", chat, chat, chat, "models"]
    assert [path for _, path, _ in elsewhere.asked] == [f"/v1/{path}" for path in paths]


@pytest.mark.parametrize("path", ["/completions", "/responses/compact"])
async def test_an_unsupported_path_gets_a_404_that_lists_the_supported_ones(
    path: str, elsewhere: Elsewhere
) -> None:
    async def agent() -> float:
        client = openai.AsyncOpenAI(api_key="unused", base_url=elsewhere.url, max_retries=0)
        with pytest.raises(openai.NotFoundError, match=f"POST .*{path}. Supported endpoints: POST"):
            await client.post(path, body={"model": MODEL}, cast_to=object)
        with pytest.raises(openai.NotFoundError):
            await client.post(path, body={"model": "another"}, cast_to=object)
        return 1.0

    await play_without_a_call(agent, policy_names=MODEL)
    assert [(target, body["model"]) for _, target, body in elsewhere.asked] == [
        (f"/v1{path}", "another")
    ]


@as_agent()
def test_an_async_call_without_an_asyncio_loop_gets_a_400(client: BlockingAgentClient) -> None:
    call = AgentClient(client._endpoint).chat.completions.create(messages=messages("Hi"))
    with pytest.raises(openai.BadRequestError, match="evert only supports asyncio"):
        call.send(None)  # run the coroutine without asyncio, as trio would


async def test_calls_outside_of_agents_are_not_intercepted(elsewhere: Elsewhere) -> None:
    inside, outside = asyncio.Event(), asyncio.Event()

    async def agent() -> float:
        inside.set()
        await outside.wait()
        return float(await async_openai("Here?") == "Here?")

    game = asyncio.create_task(play(agent))
    await inside.wait()
    assert takeover._is_installed
    router, at = LM15["openai-chat"], {"base_url": elsewhere.url}
    texts = [await async_openai("Hi", **at), await router.ask("Hi", **at)]
    for ask in (blocking_openai, router.ask_blocking):
        texts += [await place(partial(ask, "Hi", **at)) for place in PLACES.values()]
    assert texts == ["From elsewhere."] * len(elsewhere.asked)
    outside.set()

    assert reward(await game) == 1.0
    assert len(elsewhere.asked) == 2 + 2 * len(PLACES)


@as_agent()
async def test_calls_in_a_fresh_context_are_not_taken_over(elsewhere: Elsewhere) -> None:
    ask = async_openai("Hi", base_url=elsewhere.url)
    reply = asyncio.get_running_loop().create_task(ask, context=contextvars.Context())
    assert await reply == "From elsewhere."


@as_agent()
async def test_request_bodies_that_are_not_model_calls_are_not_read(elsewhere: Elsewhere) -> None:
    async def body() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b"x"

    async with httpx.AsyncClient() as http:
        request = http.build_request("POST", f"{elsewhere.url}/files", content=body())
        await http.send(request)
        with pytest.raises(httpx.RequestNotRead):
            request.content  # noqa: B018


# -- threads and calls that outlive their agent --------------------------------------------------


@every_place
async def test_a_call_after_its_agent_has_finished_is_rejected_or_sent_on(
    place: str, elsewhere: Elsewhere
) -> None:
    is_over = threading.Event()
    pending: list[Awaitable[str]] = []

    def work() -> str:
        is_over.wait()
        try:
            return blocking_openai("Late.", max_retries=0, base_url=elsewhere.url)
        except openai.BadRequestError as error:
            return f"{error.code}: {error}"

    async def agent() -> float:
        pending.append(PLACES[place](work))
        return float(await async_openai("First.") == "First.")

    assert reward(await play(agent)) == 1.0
    is_over.set()
    outcome = await pending[0]
    if place in THREADS:
        assert outcome == "From elsewhere."
        return
    assert outcome.startswith("rollout_over: ")
    assert "had ended" in outcome
    assert EpisodeEndedError.__name__ not in outcome
    assert elsewhere.asked == []


async def test_a_shared_thread_serves_later_agents_without_keeping_the_first_alive(
    elsewhere: Elsewhere,
) -> None:
    """The first agent starts a thread, such as an event bus, that serves all agents."""
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
    gone: list[weakref.ref[Any]] = []

    def serve() -> None:
        for future, work in iter(inbox.get, None):
            future.set_result(work())

    def do(work: Work) -> Any:
        future = concurrent.futures.Future[Any]()
        inbox.put((future, work))
        return future.result(60)

    thread = threading.Thread(target=serve, daemon=True)

    def agent() -> bool:
        thread.start()
        gone.append(weakref.ref(takeover.current_endpoint()))
        return bool(do(partial(blocking_openai, "Mine.")) == "Mine.")

    assert reward(await play(agent)) == 1.0
    for _ in range(3):
        await asyncio.sleep(0)
        gc.collect()
    assert gone[0]() is None
    ask = partial(blocking_openai, "Hi", base_url=elsewhere.url, max_retries=0)
    for _ in range(5):
        assert await asyncio.to_thread(do, ask) == "From elsewhere."
    inbox.put(None)
    thread.join()


Do = Callable[..., str]
"""Calls the policy with the OpenAI SDK from a shared worker. Options are passed to the client."""


def a_pool(stack: ExitStack) -> Do:
    pool = stack.enter_context(ThreadPoolExecutor(2))
    return lambda text, **options: pool.submit(blocking_openai, text, **options).result()


def a_loop_in_a_thread(stack: ExitStack) -> Do:
    """Run an event loop in a thread, as LangChain, MCP clients and anyio portals do."""
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
async def test_shared_workers_started_by_one_agent_serve_each_agent(
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


async def test_pool_threads_started_by_one_agent_serve_other_agents(elsewhere: Elsewhere) -> None:
    with ThreadPoolExecutor(1) as pool:
        in_pool = partial(asyncio.get_running_loop().run_in_executor, pool)
        ways: list[Place] = [in_pool, asyncio.to_thread, anyio.to_thread.run_sync]

        async def ask_all(text: str, **options: Any) -> list[str]:
            return [await way(partial(blocking_openai, text, **options)) for way in ways]

        async def agent() -> bool:
            return await ask_all("Mine.") == ["Mine."] * 3

        assert reward(await play(agent)) == 1.0
        assert await ask_all("Hi", base_url=elsewhere.url) == ["From elsewhere."] * 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@as_agent()
def test_a_forked_process_belongs_to_no_agent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking a multi-threaded process
        child = os.fork()
    if child == 0:
        os._exit(7 if takeover.current_endpoint() is None else 8)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    assert takeover.current_endpoint() is not None


@as_agent()
async def test_a_thread_started_by_an_agent_looks_like_any_thread() -> None:
    seen: list[Any] = []

    class Own(threading.Thread):
        def run(self) -> None:
            seen.append((dict(vars(self)).get("run"), takeover.current_endpoint() is not None))

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


# -- installing the patches ----------------------------------------------------------------------


PATCHED = [
    *((client, "_transport_for_url") for lib in (httpx, httpx2) for client in (lib.Client,
        lib.AsyncClient)),
    (aiohttp.ClientSession, "_request"),
    (threading.Thread, "start"),
    (ThreadPoolExecutor, "submit"),
]  # fmt: skip


def patches() -> list[Any]:
    return [vars(owner)[name] for owner, name in PATCHED]


def test_patched_functions_look_like_the_originals() -> None:
    def looks(function: Any) -> Any:
        names = ("__name__", "__qualname__", "__module__", "__doc__")
        seen = [getattr(function, name) for name in names]
        return seen, inspect.signature(function), inspect.getsource(function)

    takeover.install()
    patched = patches()
    originals = [inspect.unwrap(method) for method in patched]
    assert all(new is not old for new, old in zip(patched, originals, strict=True))
    assert [*map(looks, patched)] == [*map(looks, originals)]
    assert [pickle.loads(pickle.dumps(new)) for new in patched] == patched

    takeover.install()
    assert patches() == patched


async def test_other_libraries_patches_stay_in_place(monkeypatch: Patch) -> None:
    takeover.install()
    original, started = threading.Thread.start, []

    def wrapped(thread: threading.Thread) -> None:
        started.append(thread)
        original(thread)

    monkeypatch.setattr(threading.Thread, "start", wrapped)

    async def agent() -> bool:
        text = await THREADS["a thread"](partial(blocking_openai, "Still."))
        return bool(text == "Still.")

    assert reward(await play(agent)) == 1.0
    assert vars(threading.Thread)["start"] is wrapped
    assert started
    monkeypatch.undo()


def test_many_threads_install_take_over_once(monkeypatch: Patch) -> None:
    lock, all_found_none, times = takeover._lock, threading.Barrier(8), []

    class Door:
        """A lock that is free only once all threads have seen that take-over is not installed."""

        def __enter__(self) -> None:
            all_found_none.wait(50)
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    monkeypatch.setattr(takeover, "_lock", Door())
    monkeypatch.setattr(takeover, "_is_installed", False)
    monkeypatch.setattr(takeover, "_patch_all", lambda: times.append(1))
    threads = [threading.Thread(target=takeover.install) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert times == [1]


@as_agent()
async def test_a_blocking_call_on_the_envs_own_loop_gets_a_400() -> None:
    for sdk, ask in BLOCKING.items():
        with pytest.raises(REFUSALS, match="asyncio.to_thread") as caught:
            pytest.fail(f"{sdk} returned {ask('Would wait forever.')}")
        if isinstance(caught.value, openai.BadRequestError):
            assert caught.value.code == "blocking_call"


async def test_everts_own_calls_to_a_model_with_the_policys_name_are_not_taken_over(
    elsewhere: Elsewhere, monkeypatch: Patch
) -> None:
    """If they were, the policy would answer and would see what only the answerer may know."""
    monkeypatch.setenv("SOME_KEY", "x")
    answerer = RemoteModel(MODEL, base_url=elsewhere.url, api_key_env="SOME_KEY")

    async def agent() -> float:
        reply = await answerer(ChatRequest(MODEL, messages("The secret is 7.")))
        assert reply.text == "From elsewhere."
        return float(await async_openai("Here?") == "Here?")

    assert kit.rewards(await play(agent)) == [1.0]
    assert [body["messages"] for _, _, body in elsewhere.asked] == [messages("The secret is 7.")]
