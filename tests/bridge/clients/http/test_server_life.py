"""The loopback server stops when its last rollout ends or its event loop closes."""

import asyncio
import contextlib
import gc
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests import kit
from tests.kit import start, tokens_of, user

from evert import AgentClient, ChatAgentEnv, EnvClosedError, EpisodeEndedError
from evert.bridge.clients.http import server
from evert.bridge.clients.http.server import Address

ROOT = Path(__file__).parents[4]
QUESTION: list[Any] = [user("Hi")]


def listening() -> list[Any]:
    return [conn for conn in psutil.Process().net_connections() if conn.status == "LISTEN"]


@pytest.fixture(autouse=True)
def nothing_listens() -> Iterator[None]:
    yield
    gc.collect()
    assert not listening()
    assert not server._servers


def ask(address: Address, text: str = "Hi") -> str:
    """Make a blocking call with urllib, which evert does not take over."""
    body = {"model": "any", "messages": [user(text)]}
    request = urllib.request.Request(
        f"{address.base_url}/chat/completions",
        json.dumps(body).encode(),
        {"authorization": f"Bearer {address.api_key}"},
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


async def asking(client: AgentClient) -> float:
    """An agent that makes its calls over HTTP from a thread."""
    return float(await asyncio.to_thread(ask, client.serve()) == "yes")


async def play(agent: Any = asking) -> float:
    return kit.reward(await kit.play(agent, lambda prompt: "yes"))


async def abandon(addresses: list[Address]) -> ChatAgentEnv:
    """Start an episode whose agent requests an address; return its Env without closing it."""

    async def agent(client: AgentClient) -> float:
        addresses.append(client.serve())
        await client.chat.completions.create(messages=QUESTION)
        return 1.0

    env = await start(agent)
    return env


def is_refused(address: Address) -> bool:
    with pytest.raises(urllib.error.URLError) as caught:
        ask(address)
    return isinstance(caught.value.reason, ConnectionRefusedError)


# -- requesting an address -----------------------------------------------------------------------


async def test_an_address_requested_while_the_agent_returns_works_or_raises() -> None:
    outcomes: list[Address | Exception] = []
    threads: list[threading.Thread] = []

    async def agent(client: AgentClient) -> float:
        def late() -> None:
            try:
                outcomes.append(client.serve())
            except (EpisodeEndedError, EnvClosedError) as error:
                outcomes.append(error)

        threads.append(threading.Thread(target=late))
        threads[-1].start()
        return 1.0

    for _ in range(200):
        await ChatAgentEnv(agent).initial_observation()
        await asyncio.to_thread(threads[-1].join)
        assert not server._servers

    assert len(outcomes) == 200


async def test_a_finished_episode_does_not_hand_out_an_address() -> None:
    clients: list[AgentClient] = []

    async def agent(client: AgentClient) -> float:
        clients.append(client)
        assert client.serve()
        return 1.0

    await ChatAgentEnv(agent).initial_observation()
    with pytest.raises(EpisodeEndedError):
        clients[0].serve()


def test_an_address_cannot_be_requested_after_the_loop_is_closed() -> None:
    clients: list[AgentClient] = []

    async def agent(client: AgentClient) -> float:
        clients.append(client)
        await client.chat.completions.create(messages=QUESTION)
        return 1.0

    env = ChatAgentEnv(agent)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(env.initial_observation())
    cancel_all(loop)
    loop.close()

    with pytest.raises((EnvClosedError, EpisodeEndedError)):
        clients[0].serve()


# -- event loops that stop -----------------------------------------------------------------------


def cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel all tasks, because Python warns about pending tasks when a loop is closed."""
    for task in asyncio.all_tasks(loop):
        task.cancel()
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop), return_exceptions=True))


def test_consecutive_runs_have_their_own_servers() -> None:
    assert [asyncio.run(play()) for _ in range(5)] == [1.0] * 5


def test_all_episodes_of_a_loop_share_a_fixed_port() -> None:
    port, addresses = kit.free_port(), list[Address]()

    async def agent(client: AgentClient) -> float:
        addresses.append(client.serve(f"0.0.0.0:{port}"))
        elsewhere = replace(addresses[-1], base_url=f"http://127.0.0.2:{port}/v1")
        return float(await asyncio.to_thread(ask, elsewhere) == "yes")

    async def plays() -> None:
        assert [await play(agent), await play(agent)] == [1.0, 1.0]
        first, second = addresses
        assert first.root_url == second.root_url == f"http://0.0.0.0:{port}"
        with pytest.raises(urllib.error.HTTPError, match="400"):  # its episode is over
            await asyncio.to_thread(ask, first)

    asyncio.run(plays())
    assert is_refused(replace(addresses[0], base_url=f"http://127.0.0.1:{port}/v1"))


@pytest.mark.parametrize(
    ("host", "named"),
    [
        ("0.0.0.0:8443", ("0.0.0.0", 8443)),
        ("[::1]:8443", ("::1", 8443)),
        ("::1", ("::1", 0)),
        ("[::1]", ("::1", 0)),
        ("127.0.0.1", ("127.0.0.1", 0)),
        ("trainer:80", ("trainer", 80)),
    ],
)
def test_an_interface_can_be_given_with_or_without_a_port(
    host: str, named: tuple[str, int]
) -> None:
    assert server.interface_and_port(host) == named


@pytest.mark.parametrize("error", [RuntimeError, asyncio.CancelledError])
def test_a_run_that_fails_or_is_cancelled_stops_its_server(error: type[BaseException]) -> None:
    addresses: list[Address] = []
    envs: list[ChatAgentEnv] = []

    async def trainer() -> None:
        envs.append(await abandon(addresses))
        if error is RuntimeError:
            raise error
        asyncio.get_running_loop().call_soon(asyncio.current_task().cancel)  # type: ignore[union-attr]
        await asyncio.Event().wait()

    for _ in range(3):
        with pytest.raises(error):
            asyncio.run(trainer())
        assert not listening()
    assert all(map(is_refused, addresses))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # from asyncio
@pytest.mark.parametrize("turns", [0, 1, 2, 3, 50])
def test_closing_a_loop_stops_its_server(turns: int) -> None:
    """The server stops when its loop closes, no matter how far the server's startup got and even if
    the Env is still referenced."""
    addresses: list[Address] = []
    loop = asyncio.new_event_loop()

    async def some_turns(addresses: list[Address] = addresses, turns: int = turns) -> Any:
        env = await abandon(addresses)
        for _ in range(turns):
            await asyncio.sleep(0)
        return env

    kept = loop.run_until_complete(some_turns())
    with socket.create_connection(("127.0.0.1", port_of(addresses[0]))) as idle:
        loop.run_until_complete(asyncio.sleep(0.05 if turns else 0))
        cancel_all(loop)
        loop.close()
        idle.settimeout(10)
        with suppress(ConnectionResetError):
            assert idle.recv(1) == b"", turns
    assert not listening(), turns
    assert is_refused(addresses[0]), turns
    assert kept.turns == 0


def port_of(address: Address) -> int:
    return int(address.root_url.rpartition(":")[2])


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_dropping_an_unclosed_loop_stops_its_server() -> None:
    loop = asyncio.new_event_loop()
    addresses: list[Address] = []
    loop.run_until_complete(abandon(addresses))
    cancel_all(loop)
    gone = weakref.ref(loop)
    del loop
    gc.collect()

    assert gone() is None
    assert is_refused(addresses[0])


def test_a_loop_that_is_stopped_and_restarted_keeps_serving() -> None:
    addresses: list[Address] = []

    async def agent(client: AgentClient) -> float:
        addresses.append(client.serve())
        await client.chat.completions.create(messages=QUESTION)
        return float(await asyncio.wrap_future(answer) == "yes")

    env = ChatAgentEnv(agent)
    with ThreadPoolExecutor(1) as pool, contextlib.closing(asyncio.new_event_loop()) as loop:
        loop.run_until_complete(env.initial_observation())
        answer = pool.submit(ask, addresses[0])  # sent while the loop is stopped
        steps = [loop.run_until_complete(env.step(tokens_of("yes"))) for _ in range(2)]

    assert [step.episode_done for step in steps] == [False, True]
    assert steps[1].reward == 1.0


def test_loops_in_threads_have_their_own_servers() -> None:
    meet = threading.Barrier(3, timeout=60)
    ports: set[int] = set()

    async def agent(client: AgentClient) -> float:
        ports.add(port_of(client.serve()))
        await asyncio.to_thread(meet.wait)
        return await asking(client)

    with ThreadPoolExecutor(3) as pool:
        assert [*pool.map(lambda _: asyncio.run(play(agent)), range(3))] == [1.0] * 3
    assert len(ports) == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # forks a multi-threaded process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
async def test_a_fork_inherits_no_sockets_and_serves_its_own_address() -> None:
    results = multiprocessing.get_context("fork").SimpleQueue()
    go = os.pipe()

    def child() -> None:
        results.put(len([conn for conn in psutil.Process().net_connections() if conn.laddr]))
        os.read(go[0], 1)
        results.put(ask(addresses[0]))  # the parent's server answers
        os.read(go[0], 1)
        results.put(asyncio.run(play()))

    addresses: list[Address] = []

    async def agent(client: AgentClient) -> float:
        addresses.append(client.serve())
        await asyncio.sleep(0.05)  # wait until the server is listening
        process.start()
        os.write(go[1], b"1")
        for _ in range(2):  # the child makes its call between these two calls
            await client.chat.completions.create(messages=QUESTION)
            await asyncio.sleep(1)
        return 1.0

    process = multiprocessing.get_context("fork").Process(target=child)
    assert await play(agent) == 1.0
    assert is_refused(addresses[0])
    os.write(go[1], b"1")
    await asyncio.to_thread(process.join)
    assert [results.get(), results.get(), results.get()] == [0, "yes", 1.0]
    for end in go:
        os.close(end)


# -- references, keys and leftovers --------------------------------------------------------------


async def test_a_server_keeps_no_reference_to_the_rollout_that_started_it() -> None:
    gone: list[weakref.ref[Any]] = []
    has_begun = asyncio.Event()

    async def first(client: AgentClient) -> float:
        gone.append(weakref.ref(client._endpoint))
        assert client.serve()
        has_begun.set()
        return await asking(client)

    async def second(client: AgentClient) -> float:
        started = asyncio.create_task(play(first))
        await has_begun.wait()
        assert client.serve()
        await started
        del started
        async with asyncio.timeout(60):
            while gone[0]() is not None:  # the thread that made the call may still reference it
                await asyncio.sleep(0.01)
                gc.collect()
        return 1.0

    assert await play(second) == 1.0


def test_an_address_does_not_show_its_key() -> None:
    address = Address("http://127.0.0.1:1", "http://127.0.0.1:1/v1", "evert-secret")

    assert "evert-secret" not in f"{address} {address!r}"


@pytest.mark.nightly
def test_concurrent_commands_get_addresses_and_leave_nothing_behind() -> None:
    """Run the quick version of ``benchmarks/commands.py``."""
    script = [sys.executable, "benchmarks/commands.py", "--quick"]
    ended = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
