"""Agents that build their own client, deep inside, and know nothing of evert.

1. Every SDK, wherever an agent's code may run: in its task, a thread, a pool, another loop.
2. Many episodes at once, and the threads they share, are never mixed up.
3. Other models, other paths and all code outside of agents go where they would have gone.
4. It is installed once, and ``remove`` leaves everything as it was.
5. A blocking call on the loop that has to answer it is a 400 that says so.
"""

import asyncio
import concurrent.futures
import contextvars
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
import pytest_asyncio
from aiohttp import web
from google import genai
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv, EpisodeEndedError, RemoteModel, ScriptedPolicy
from evert.bridge.faces import takeover
from evert.bridge.requests import ChatRequest

MODEL = "policy"


# -- what agents do ------------------------------------------------------------------------------


def messages(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def async_openai(text: str, model: str = MODEL, **options: Any) -> str:
    async with openai.AsyncOpenAI(api_key="x", **options) as client:
        said = await client.chat.completions.create(model=model, messages=messages(text))
    return said.choices[0].message.content or ""


async def async_responses(text: str) -> str:
    async with openai.AsyncOpenAI(api_key="x") as client:
        return (await client.responses.create(model=MODEL, input=text)).output_text


async def async_anthropic(text: str) -> str:
    async with anthropic.AsyncAnthropic(api_key="x") as client:
        said: Any = await client.messages.create(
            model=MODEL, messages=messages(text), max_tokens=500
        )
    return str(said.content[0].text)


async def async_genai(text: str, model: str = MODEL, **options: Any) -> str:
    async with genai.Client(api_key="x", **options).aio as client:
        return (await client.models.generate_content(model=model, contents=text)).text or ""


async def async_genai_stream(text: str) -> str:
    async with genai.Client(api_key="x").aio as client:
        stream = await client.models.generate_content_stream(model=MODEL, contents=text)
        return "".join([chunk.text or "" async for chunk in stream])


async def async_genai_without_aiohttp(text: str) -> str:
    options: Any = {"async_client_args": {"transport": httpx2.AsyncHTTPTransport()}}
    return await async_genai(text, http_options=options)


def blocking_openai(text: str, model: str = MODEL, **options: Any) -> str:
    with openai.OpenAI(api_key="x", **options) as client:
        said = client.chat.completions.create(model=model, messages=messages(text))
    return said.choices[0].message.content or ""


def blocking_responses(text: str) -> str:
    with openai.OpenAI(api_key="x") as client:
        return client.responses.create(model=MODEL, input=text).output_text


def blocking_anthropic(text: str) -> str:
    with anthropic.Anthropic(api_key="x") as client:
        said: Any = client.messages.create(model=MODEL, messages=messages(text), max_tokens=500)
    return str(said.content[0].text)


async def async_vertex(text: str) -> str:
    return await async_genai(text, vertexai=True)


def blocking_genai(text: str) -> str:
    with genai.Client(api_key="x") as client:
        return client.models.generate_content(model=MODEL, contents=text).text or ""


def streamed_genai(text: str) -> str:
    with genai.Client(api_key="x") as client:
        chunks = client.models.generate_content_stream(model=MODEL, contents=text)
        return "".join(chunk.text or "" for chunk in chunks)


def streamed(text: str) -> str:
    with openai.OpenAI(api_key="x") as client:
        chunks: Any = client.chat.completions.create(
            model=MODEL, messages=messages(text), stream=True
        )
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)


ASYNC = {
    "openai": async_openai,
    "responses": async_responses,
    "anthropic": async_anthropic,
    "genai": async_genai,
    "genai stream": async_genai_stream,
    "genai without aiohttp": async_genai_without_aiohttp,
    "genai on Vertex": async_vertex,
}
BLOCKING = {
    "openai": blocking_openai,
    "responses": blocking_responses,
    "anthropic": blocking_anthropic,
    "genai": blocking_genai,
    "genai stream": streamed_genai,
    "stream": streamed,
}
REFUSALS = (openai.BadRequestError, anthropic.BadRequestError, genai.errors.ClientError)
every_async_sdk = pytest.mark.parametrize("ask", ASYNC.values(), ids=ASYNC)
every_blocking_sdk = pytest.mark.parametrize("ask", BLOCKING.values(), ids=BLOCKING)


def echo(prompt: str) -> str:
    """Says what the last user said: every reply tells whose it is."""
    return prompt.rpartition("user\n")[2].partition("<|im_end|>")[0]


async def play(agent: Any, *task: Any, **options: Any) -> Trajectory:
    return await do_single_rollout(ScriptedPolicy(echo), ChatAgentEnv(agent, *task, **options))


def reward(trajectory: Trajectory) -> float:
    return sum(transition.reward for transition in trajectory.transitions)


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


# -- 1. wherever an agent's code runs ------------------------------------------------------------


@every_async_sdk
async def test_an_async_agent_that_builds_its_own_client(ask: Callable[..., Any]) -> None:
    async def agent() -> bool:
        return bool(await ask("Hello?") == "Hello?")

    trajectory = await play(agent)
    assert reward(trajectory) == 1.0
    assert len(trajectory.transitions) == 1


@every_blocking_sdk
async def test_a_plain_agent_that_builds_its_own_client(ask: Callable[[str], str]) -> None:
    def agent() -> bool:
        return ask("Hello?") == "Hello?"

    trajectory = await play(agent)
    assert reward(trajectory) == 1.0
    assert len(trajectory.transitions) == 1


async def test_an_agent_may_take_the_task_alone() -> None:
    async def agent(task: str) -> bool:
        return await async_openai(task) == "two and two"

    def plain(task: str) -> bool:
        return blocking_openai(task) == "two and two"

    assert reward(await play(agent, "two and two")) == 1.0
    assert reward(await play(plain, "two and two")) == 1.0


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
@every_blocking_sdk
async def test_blocking_calls_in_an_async_agents_threads(
    ask: Callable[[str], str], place: Callable[..., Any]
) -> None:
    async def agent() -> bool:
        return bool(await place(ask, "In here.") == "In here.")

    assert reward(await play(agent)) == 1.0


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


@pytest.mark.parametrize("library", [httpx, httpx2])
async def test_requests_without_any_sdk(library: Any) -> None:
    body = {"model": MODEL, "messages": messages("Bare.")}
    url = "https://api.openai.com/v1/chat/completions"

    async def agent() -> bool:
        async with library.AsyncClient() as client:
            response = await client.post(url, json=body)
        assert type(response) is library.Response
        blocking = await asyncio.to_thread(library.post, url, json=body)
        assert type(blocking) is library.Response
        said = [one.json()["choices"][0]["message"]["content"] for one in (response, blocking)]
        return said == ["Bare."] * 2

    assert reward(await play(agent)) == 1.0


@pytest.mark.parametrize("form", ["json", "text", "bytes"])
async def test_requests_of_aiohttp_without_any_sdk(form: str) -> None:
    body = {"model": MODEL, "messages": messages("Bare.")}
    text = json.dumps(body)
    sent: dict[str, Any] = {
        "json": {"json": body},
        "text": {"data": text},
        "bytes": {"data": text.encode()},
    }

    async def agent() -> bool:
        async with (
            aiohttp.ClientSession("https://api.openai.com/v1/") as session,
            session.post("chat/completions", **sent[form]) as response,
        ):
            assert type(response) is aiohttp.ClientResponse
            return bool((await response.json())["choices"][0]["message"]["content"] == "Bare.")

    assert reward(await play(agent)) == 1.0


async def test_aiohttp_raises_for_a_refusal_where_it_is_told_to() -> None:
    body = {"model": MODEL, "messages": messages("Hi"), "n": 2}
    url = "https://api.openai.com/v1/chat/completions"
    raised: list[int] = []

    async def agent() -> float:
        async with aiohttp.ClientSession() as session:
            assert (await session.post(url, json=body)).status == 400
            with pytest.raises(aiohttp.ClientResponseError) as caught:
                await session.post(url, json=body, raise_for_status=True)
            raised.append(caught.value.status)
        async with aiohttp.ClientSession(raise_for_status=True) as session:
            assert (await session.post(url, json=body, raise_for_status=False)).status == 400
            with pytest.raises(aiohttp.ClientResponseError) as caught:
                await session.post(url, json=body)
            raised.append(caught.value.status)
        return 1.0

    await ChatAgentEnv(agent).initial_observation()
    assert raised == [400, 400]


# -- 2. many at once -----------------------------------------------------------------------------


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


async def test_a_pool_that_agents_share_works_for_each_of_them() -> None:
    """Its threads start within one rollout and outlive it."""
    with ThreadPoolExecutor(2) as pool:

        def agent(task: str) -> bool:
            return pool.submit(blocking_openai, task).result() == task

        tasks = [f"Task {number}" for number in range(8)]
        for task in tasks[:4]:
            assert reward(await play(agent, task)) == 1.0
        trajectories = await asyncio.gather(*(play(agent, task) for task in tasks[4:]))
        assert [reward(trajectory) for trajectory in trajectories] == [1.0] * 4

        loop = asyncio.get_running_loop()
        assert await loop.run_in_executor(pool, takeover.current_endpoint.get) is None


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


async def test_what_an_agent_leaves_running_is_told_that_the_episode_is_over() -> None:
    late: list[BaseException] = []
    over = threading.Event()

    def straggler() -> None:
        over.wait()
        try:
            blocking_openai("Late.", max_retries=0)
        except openai.BadRequestError as error:
            late.append(error)

    thread = threading.Thread(target=straggler)

    async def agent() -> float:
        await async_openai("First.")
        thread.start()
        return 1.0

    await play(agent)
    over.set()
    await asyncio.to_thread(thread.join)

    [error] = late
    assert isinstance(error, openai.BadRequestError)
    assert error.code == "rollout_over"
    assert EpisodeEndedError.__name__ not in str(error)
    assert "had ended" in str(error)


# -- 3. everything else goes where it would have gone --------------------------------------------


class Elsewhere:
    """A loopback server that stands for the network."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        sent = json.loads(body) if body.startswith(b"{") else None
        self.asked.append((request.method, request.path, sent))
        if request.path != "/v1/chat/completions":
            known = request.path == "/v1/models"
            return web.json_response({"data": [], "object": "list"}, status=200 if known else 404)
        message = {"role": "assistant", "content": "From elsewhere."}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return web.json_response(
            {
                "id": "1",
                "object": "chat.completion",
                "created": 1,
                "model": "m",
                "choices": [choice],
            }
        )


@pytest_asyncio.fixture
async def elsewhere() -> AsyncIterator[Elsewhere]:
    server = Elsewhere()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    server.url = f"http://127.0.0.1:{port}/v1"
    yield server
    await runner.cleanup()


async def test_other_models_are_asked_where_they_are(elsewhere: Elsewhere) -> None:
    async def agent() -> float:
        for model in ("gpt-4o", "policy-2", ""):
            said = await async_openai("Hi", model, base_url=elsewhere.url)
            assert said == "From elsewhere."
        said = await asyncio.to_thread(blocking_openai, "Hi", "gpt-4o", base_url=elsewhere.url)
        assert said == "From elsewhere."
        return float(await async_openai("Here?", base_url=elsewhere.url) == "Here?")

    trajectory = await play(agent)

    assert reward(trajectory) == 1.0
    assert len(trajectory.transitions) == 1
    assert [body["model"] for _, _, body in elsewhere.asked] == ["gpt-4o", "policy-2", "", "gpt-4o"]
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

    trajectory = await play(agent)

    assert reward(trajectory) == 1.0
    assert len(trajectory.transitions) == 1
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
    for said in (
        await async_openai("Hi", base_url=elsewhere.url),
        await asyncio.to_thread(blocking_openai, "Hi", base_url=elsewhere.url),
        await in_thread(lambda text: blocking_openai(text, base_url=elsewhere.url), "Hi"),
        await in_pool(lambda text: blocking_openai(text, base_url=elsewhere.url), "Hi"),
    ):
        assert said == "From elsewhere."
    outside.set()

    assert reward(await game) == 1.0
    assert len(elsewhere.asked) == 4


async def test_a_context_that_the_agent_leaves_is_outside(elsewhere: Elsewhere) -> None:
    async def agent() -> float:
        empty = contextvars.Context()
        ask = async_openai("Hi", base_url=elsewhere.url)
        said = await asyncio.get_running_loop().create_task(ask, context=empty)
        return float(said == "From elsewhere.")

    result: Any = await ChatAgentEnv(agent).initial_observation()
    assert result.reward == 1.0


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

    result: Any = await ChatAgentEnv(agent).initial_observation()
    assert result.reward == 1.0


# -- 4. installed once, removed without a trace --------------------------------------------------


PATCHED = [
    (httpx.Client, "_transport_for_url"),
    (httpx.AsyncClient, "_transport_for_url"),
    (httpx2.Client, "_transport_for_url"),
    (httpx2.AsyncClient, "_transport_for_url"),
    (aiohttp.ClientSession, "_request"),
    (threading.Thread, "start"),
    (ThreadPoolExecutor, "submit"),
]


@pytest.fixture
def removed() -> Iterator[None]:
    takeover.remove()
    yield
    takeover.remove()


@pytest.mark.usefixtures("removed")
def test_removing_it_leaves_everything_as_it_was() -> None:
    originals = [vars(owner)[name] for owner, name in PATCHED]
    assert not takeover.is_installed()

    takeover.install()
    patched = [vars(owner)[name] for owner, name in PATCHED]
    assert takeover.is_installed()
    assert all(new is not old for new, old in zip(patched, originals, strict=True))
    assert [new.__name__ for new in patched] == [name for _, name in PATCHED]

    takeover.install()
    assert [vars(owner)[name] for owner, name in PATCHED] == patched

    takeover.remove()
    assert [vars(owner)[name] for owner, name in PATCHED] == originals
    assert not takeover.is_installed()
    takeover.remove()
    assert [vars(owner)[name] for owner, name in PATCHED] == originals


@pytest.mark.usefixtures("removed")
async def test_every_env_installs_it_and_it_takes_effect_once() -> None:
    async def agent(task: int) -> float:
        return float(await async_openai(f"Task {task}") == f"Task {task}")

    first = await play(agent, 0)
    patched = [vars(owner)[name] for owner, name in PATCHED]
    assert takeover.is_installed()
    rest = await asyncio.gather(*(play(agent, number) for number in range(1, 5)))

    assert [vars(owner)[name] for owner, name in PATCHED] == patched
    assert [reward(trajectory) for trajectory in [first, *rest]] == [1.0] * 5


@pytest.mark.usefixtures("removed")
async def test_it_comes_back_with_the_next_env() -> None:
    async def agent() -> float:
        return float(await async_openai("Again.") == "Again.")

    assert reward(await play(agent)) == 1.0
    takeover.remove()
    assert reward(await play(agent)) == 1.0


# -- 5. refusals ---------------------------------------------------------------------------------


@every_blocking_sdk
async def test_a_blocking_call_on_the_envs_own_loop_is_a_400(ask: Callable[[str], str]) -> None:
    async def agent() -> float:
        with pytest.raises(REFUSALS, match="asyncio.to_thread"):
            ask("Would wait for ever.")
        return 1.0

    result: Any = await ChatAgentEnv(agent).initial_observation()
    assert result.reward == 1.0


async def test_a_field_that_is_refused_is_a_400() -> None:
    async def agent() -> float:
        async with openai.AsyncOpenAI(api_key="x") as client:
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(model=MODEL, messages=messages("Hi"), n=2)
        assert caught.value.param == "n"
        return 1.0

    result: Any = await ChatAgentEnv(agent).initial_observation()
    assert result.reward == 1.0


async def test_closing_the_env_tells_whoever_waits() -> None:
    told: list[openai.BadRequestError] = []

    def agent() -> float:
        try:
            blocking_openai("Hello?")
        except openai.BadRequestError as error:
            told.append(error)
        return 0.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await env.close()

    assert [error.code for error in told] == ["rollout_over"]
    assert not env.is_running


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

    trajectory = await play(agent)

    assert reward(trajectory) == 1.0
    assert len(trajectory.transitions) == 1
    assert [body["messages"] for _, _, body in elsewhere.asked] == [messages("The secret is 7.")]
