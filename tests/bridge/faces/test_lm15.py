"""``lm15``, the HTTP client below DSPy's own engine, with neither httpx nor a base class.

1. An agent's own router is taken over: blocking, async and streaming, in each dialect.
2. A router that is given ``client.transport`` is the rollout's wherever it is used.
3. Other models, and code outside of agents, go where they would have gone.
4. Whether lm15 was imported before or after makes no difference; ``remove`` undoes it.
5. What goes wrong is lm15's own exception, with our message.

DSPy with the copy of lm15 that it brings is played in ``tests/frameworks``.
"""

import asyncio
import importlib
import json
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import lm15
import pytest
from lm15.router import RouterConfig
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv, ScriptedPolicy
from evert.bridge.clients import takeover

DIALECTS = ["openai-chat", "openai", "anthropic"]
every_dialect = pytest.mark.parametrize("dialect", DIALECTS)

KEYS = {"OPENAI_API_KEY": "x", "ANTHROPIC_API_KEY": "x"}


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise AssertionError(f"the network was used: {arguments}")

    for name in ("connect", "connect_ex"):
        monkeypatch.setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, refuse)


def config(**options: Any) -> RouterConfig:
    return RouterConfig(env=KEYS, **options)


def hello(model: str) -> lm15.Request:
    return lm15.Request(model=model, messages=(lm15.Message.user("Hello?"),))


async def ask(model: str, **options: Any) -> str:
    async with lm15.AsyncLMRouter(config(**options)) as router:
        return str((await router.complete(hello(model))).text)


def ask_blocking(model: str, **options: Any) -> str:
    with lm15.LMRouter(config(**options)) as router:
        return str(router.complete(hello(model)).text)


async def play(agent: Any, **options: Any) -> float:
    env = ChatAgentEnv(agent, **options)
    trajectory = await do_single_rollout(ScriptedPolicy(lambda prompt: "Fine."), env)
    return sum(transition.reward for transition in trajectory.transitions)


# -- 1. the agent's own router -------------------------------------------------------------------


@every_dialect
@pytest.mark.usefixtures("no_sockets")
async def test_an_async_agent_with_a_router_of_its_own(dialect: str) -> None:
    async def agent() -> bool:
        return await ask(f"{dialect}:policy") == "Fine."

    assert await play(agent) == 1.0


@every_dialect
@pytest.mark.usefixtures("no_sockets")
async def test_a_plain_agent_with_a_router_of_its_own(dialect: str) -> None:
    def agent() -> bool:
        return ask_blocking(f"{dialect}:policy") == "Fine."

    assert await play(agent) == 1.0


@every_dialect
@pytest.mark.usefixtures("no_sockets")
async def test_streams_are_put_together_by_lm15(dialect: str) -> None:
    async def agent() -> bool:
        request = hello(f"{dialect}:policy")
        async with lm15.AsyncLMRouter(config()) as router:
            events: list[Any] = [event async for event in router.stream(request)]
        said = "".join(event.delta.text for event in events if event.type == "delta")
        return said == "Fine." and events[-1].finish_reason == "stop"

    def plain() -> bool:
        with lm15.LMRouter(config()) as router:
            events: list[Any] = [*router.stream(hello(f"{dialect}:policy"))]
        return "".join(event.delta.text for event in events if event.type == "delta") == "Fine."

    assert await play(agent) == 1.0
    assert await play(plain) == 1.0


@pytest.mark.usefixtures("no_sockets")
async def test_a_blocking_router_in_a_thread_of_an_async_agent() -> None:
    async def agent() -> bool:
        return await asyncio.to_thread(ask_blocking, "openai-chat:policy") == "Fine."

    assert await play(agent) == 1.0


# -- 2. a router that is given the rollout -------------------------------------------------------


@every_dialect
@pytest.mark.usefixtures("no_sockets")
async def test_a_router_over_the_clients_transport_needs_no_context(dialect: str) -> None:
    """A thread that was started before the agent, as frameworks have them."""
    given: list[Any] = []
    said: list[str] = []
    ready = threading.Event()

    def work() -> None:
        ready.wait()
        said.append(ask_blocking(f"{dialect}:gpt-5.2", transport=given[0].transport))

    thread = threading.Thread(target=work)
    thread.start()

    async def agent(client: AgentClient) -> bool:
        given.append(client)
        ready.set()
        await asyncio.to_thread(thread.join)
        whole = await ask(f"{dialect}:gpt-5.2", transport=client.transport)
        return [*said, whole] == ["Fine."] * 2

    assert await play(agent) == 1.0


# -- 3. everything else --------------------------------------------------------------------------


@pytest.fixture
def elsewhere() -> Iterator[tuple[str, list[str]]]:
    """A server that stands for the network, and the models it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["content-length"])))
            asked.append(sent["model"])
            choice = {
                "index": 0,
                "finish_reason": "stop",
                "message": {"role": "assistant", "content": "From elsewhere."},
            }
            answer = json.dumps(
                {"id": "1", "object": "chat.completion", "created": 1, "choices": [choice]}
            ).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *_: object) -> None:
            """Nothing on stderr."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1", asked
    server.shutdown()
    thread.join()
    server.server_close()


async def test_other_models_are_asked_where_they_are(elsewhere: tuple[str, list[str]]) -> None:
    url, asked = elsewhere
    options = {"base_urls": {"openai-chat": url}}

    async def agent() -> bool:
        said = [
            await ask("openai-chat:gpt-5.2", **options),
            await asyncio.to_thread(ask_blocking, "openai-chat:policy-2", **options),
            await ask("openai-chat:policy", **options),
        ]
        return said == ["From elsewhere."] * 2 + ["Fine."]

    assert await play(agent) == 1.0
    assert asked == ["gpt-5.2", "policy-2"]


async def test_code_outside_of_agents_is_left_alone(elsewhere: tuple[str, list[str]]) -> None:
    url, asked = elsewhere
    options = {"base_urls": {"openai-chat": url}}
    met = asyncio.Barrier(2)

    async def agent(client: AgentClient) -> float:
        await met.wait()
        await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return 1.0

    async def outside() -> list[str]:
        await met.wait()
        there = await asyncio.to_thread(ask_blocking, "openai-chat:policy", **options)
        return [await ask("openai-chat:policy", **options), there]

    _, said = await asyncio.gather(play(agent), outside())

    assert said == ["From elsewhere."] * 2
    assert asked == ["policy"] * 2


# -- 4. when it is imported ----------------------------------------------------------------------


@pytest.fixture
def not_imported() -> Iterator[None]:
    """lm15 as if nobody had imported it yet."""
    names = [name for name in sys.modules if name.partition(".")[0] == "lm15"]
    kept = {name: sys.modules.pop(name) for name in names}
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "lm15"]:
        del sys.modules[name]
    sys.modules.update(kept)


@pytest.mark.usefixtures("no_sockets", "not_imported")
async def test_an_agent_may_be_the_first_to_import_it() -> None:
    async def agent() -> bool:
        fresh: Any = importlib.import_module("lm15")
        assert fresh is not lm15
        request = fresh.Request(
            model="openai-chat:policy", messages=(fresh.Message.user("Hello?"),)
        )
        async with fresh.AsyncLMRouter(fresh.router.RouterConfig(env=KEYS)) as router:
            return str((await router.complete(request)).text) == "Fine."

    assert await play(agent) == 1.0


@pytest.mark.usefixtures("not_imported")
async def test_evert_itself_never_imports_it() -> None:
    async def agent(client: AgentClient) -> float:
        await client.chat.completions.create(messages=[{"role": "user", "content": "Hi"}])
        return 1.0

    assert await play(agent) == 1.0
    assert "lm15" not in sys.modules


async def test_remove_leaves_it_as_it_was() -> None:
    takeover.remove()
    transports: Any = importlib.import_module("lm15.transports")
    classes = (transports.StdlibTransport, transports.StdlibAsyncTransport)
    before = [vars(one)["stream"] for one in classes]
    finders = [*sys.meta_path]

    takeover.install()
    takeover.install()
    assert [vars(one)["stream"] for one in classes] != before
    takeover.remove()

    assert [vars(one)["stream"] for one in classes] == before
    assert sys.meta_path == finders


# -- 5. what goes wrong --------------------------------------------------------------------------


async def test_a_blocking_call_on_the_envs_own_loop_is_refused() -> None:
    async def agent() -> float:
        with pytest.raises(lm15.InvalidRequestError, match="asyncio.to_thread"):
            ask_blocking("openai-chat:policy")
        return 1.0

    result: Any = await ChatAgentEnv(agent).initial_observation()
    assert result.reward == 1.0


async def test_a_rollout_that_is_given_up_answers_what_waits() -> None:
    told: list[lm15.InvalidRequestError] = []

    def agent(client: BlockingAgentClient) -> float:
        try:
            ask_blocking("openai-chat:policy", transport=client.transport)
        except lm15.InvalidRequestError as error:
            told.append(error)
        return 0.0

    env = ChatAgentEnv(agent)
    await env.initial_observation()
    await env.close()

    [error] = told
    assert "was closed: this rollout is over" in str(error)
