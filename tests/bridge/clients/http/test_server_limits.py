"""Connection limits of the loopback server, tested with raw sockets.

Connections without a key never block a rollout's calls, malformed HTTP cannot smuggle requests, and
a key only gives access to its own rollout and is never leaked.
"""

import asyncio
import gzip
import itertools
import json
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.kit import Logs, Patch, play, until

from evert import AgentClient
from evert.bridge.clients.http import connections, server
from evert.bridge.clients.http.connections import Connections
from evert.bridge.clients.http.server import Address

ROOT = Path(__file__).parents[4]
QUESTION = [{"role": "user", "content": "Hi"}]
BODY = json.dumps({"model": "any", "messages": QUESTION}).encode()
PATH = "/v1/chat/completions"


@asynccontextmanager
async def serving(reply: str = "yes", host: str = "127.0.0.1") -> AsyncIterator[Address]:
    """Serve a rollout whose calls all arrive over HTTP, and give every call the same reply."""
    address: asyncio.Future[Address] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def agent(client: AgentClient) -> float:
        address.set_result(client.serve(host))
        await over.wait()
        return 1.0

    async with asyncio.TaskGroup() as tasks:
        episode = tasks.create_task(play(agent, lambda prompt: reply))
        try:
            yield await address
        finally:
            over.set()
            await asyncio.wait({episode})
            episode.exception()  # a rollout without a call has no trajectory


def the_connections() -> Connections:
    [only] = server._servers.values()
    return only._connections


OPENED: list[asyncio.StreamWriter] = []


@pytest.fixture(autouse=True)
async def all_are_closed() -> AsyncIterator[None]:
    yield
    while OPENED:
        writer = OPENED.pop()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
    await asyncio.sleep(0.1)  # wait for connections that the server has just accepted to close


def place(address: Address) -> tuple[str, int]:
    return "127.0.0.1", int(address.root_url.rpartition(":")[2])


async def connect(address: Address) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(*place(address))
    OPENED.append(writer)
    return reader, writer


def request(
    address: Address,
    body: bytes = BODY,
    *headers: str,
    line: str = f"POST {PATH} HTTP/1.1",
    host: str = "127.0.0.1",
    key: str | None = None,
    length: bool = True,
    close: bool = True,
) -> bytes:
    """Return the raw bytes of a request, with extra headers."""
    lines = [
        line,
        f"Host: {host}",
        f"Authorization: Bearer {address.api_key if key is None else key}",
        *([f"Content-Length: {len(body)}"] if length else []),
        *(["Connection: close"] if close else []),
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode() + body


async def one_answer(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head + await reader.readexactly(length)


async def send(address: Address, data: bytes) -> bytes:
    """Send data and return everything the server sends before it closes the connection."""
    reader, writer = await connect(address)
    writer.write(data)
    try:
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionResetError:
        return b""


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# -- slow clients --------------------------------------------------------------------------------


async def test_idle_connections_and_endless_headers_time_out(monkeypatch: Patch) -> None:
    monkeypatch.setattr(connections, "IDLE_TIME", 0.3)
    async with serving() as address:
        for data in (b"", request(address, key="none", close=False), request(address, close=False)):
            await send(address, data)
        reader, writer = await connect(address)
        writer.write(f"POST {PATH} HTTP/1.1\r\n".encode())
        while not reader.at_eof() and not writer.is_closing():
            writer.write(b"x: y\r\n")
            await asyncio.sleep(0.02)


async def test_a_body_that_never_arrives_gets_a_408(monkeypatch: Patch) -> None:
    monkeypatch.setattr(connections, "BODY_TIME", 0.3)
    async with serving() as address:
        answer = await send(address, request(address)[:-1])
    assert status(answer) == 408
    assert b"The body was not sent within 0.3 s." in answer


def echo(address: Address) -> bytes:
    """Return a request whose response does not fit in a socket buffer."""
    body = json.dumps({"input": "Hi", "metadata": {"echoed": "x" * 2**24}}).encode()
    return request(address, body, line="POST /v1/responses HTTP/1.1")


async def test_a_client_that_reads_nothing_is_disconnected(monkeypatch: Patch) -> None:
    monkeypatch.setattr(connections, "WRITE_TIME", 0.3)
    async with serving() as address:
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, place(address))
            await loop.sock_sendall(client, echo(address))
            await until(lambda: not the_connections().every)


async def test_clients_that_read_nothing_do_not_outlive_the_server() -> None:
    async with serving() as address:
        reader, writer = await connect(address)
        writer.write(echo(address))
        await writer.drain()
        await reader.readexactly(1000)  # the server has started to respond
        every = the_connections().every
    await until(lambda: not every)


# -- number of connections -----------------------------------------------------------------------


Opened = Callable[[Address, int], list[socket.socket]]


@pytest.fixture
def opened() -> Iterator[Opened]:
    with ExitStack() as stack:

        def open_some(address: Address, count: int) -> list[socket.socket]:
            at = place(address)
            return [stack.enter_context(socket.create_connection(at)) for _ in range(count)]

        yield open_some


def are_crowded() -> bool:
    return len(the_connections().every) > connections.STRANGERS


async def says_hi(pair: tuple[asyncio.StreamReader, asyncio.StreamWriter], to: Address) -> None:
    reader, writer = pair
    writer.write(request(to, close=False))
    assert status(await one_answer(reader)) == 200


crowded = pytest.mark.filterwarnings(  # from asyncio
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


@crowded
async def test_600_idle_connections_do_not_block_a_rollout(
    opened: Opened, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(connections, "YOUNG", 0.1)
    async with serving() as address:
        idle = opened(address, 600)
        await asyncio.sleep(0.2)
        assert status(await send(address, request(address))) == 200
        calls = [send(address, request(address)) for _ in range(20)]
        assert {status(answer) for answer in await asyncio.gather(*calls)} == {200}
        await until(lambda: not are_crowded())
        idle[0].settimeout(10)
        assert idle[0].recv(1) == b""  # the oldest connection was closed


@crowded
async def test_unauthenticated_connections_never_displace_a_known_client(
    opened: Opened, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(connections, "YOUNG", 0)
    async with serving() as address:
        pair = await connect(address)
        for _ in range(3):
            await says_hi(pair, address)
            opened(address, 300)
            await until(are_crowded)
            await asyncio.sleep(0.1)  # let the server close some of the new connections


@crowded
async def test_a_new_client_has_time_to_send_its_request(
    opened: Opened, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(connections, "YOUNG", 600)
    async with serving() as address:
        pair = await connect(address)
        opened(address, 600)
        await until(lambda: len(the_connections().every) > 600)
        await says_hi(pair, address)


@crowded
async def test_a_connection_can_be_reused_for_another_rollout(opened: Opened) -> None:
    async with serving() as outer:
        async with serving() as address:
            pair = await connect(address)
            await says_hi(pair, address)
        opened(outer, 600)
        await until(are_crowded)
        await says_hi(pair, outer)


async def test_a_rollout_with_too_many_concurrent_calls_gets_a_429(monkeypatch: Patch) -> None:
    monkeypatch.setattr(connections, "AT_ONCE", 2)
    async with serving() as address:
        slow = [await connect(address) for _ in range(2)]
        for _, writer in slow:
            writer.write(request(address)[:-1])
        await asyncio.sleep(0.1)
        answer = await send(address, request(address))
        assert status(answer) == 429
        assert b"2 waiting calls" in answer
        async with serving("another's") as theirs_address:
            assert b"another's" in await send(theirs_address, request(theirs_address))
        for reader, writer in slow:
            writer.write(BODY[-1:])
            assert status(await reader.read()) == 200


async def test_idle_connections_of_a_rollout_are_limited(monkeypatch: Patch) -> None:
    monkeypatch.setattr(connections, "RESTING", 3)
    monkeypatch.setattr(connections, "YOUNG", 0)
    async with serving() as address:
        held = [await connect(address) for _ in range(8)]
        for pair in held:
            await says_hi(pair, address)
        await until(lambda: len(the_connections().every) == 3)


# -- host names ----------------------------------------------------------------------------------

OURS = ["127.0.0.1:80", "localhost", "LocalHost.", "a.localhost:1", "[::1]:8", "10.0.0.7"]
CONTAINERS = ["host.docker.internal:80", "host.containers.internal"]
FOREIGN = ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[", "", "a@b:c:d"]


async def test_requests_with_a_local_host_name_are_answered_and_others_rejected() -> None:
    async with serving() as address:
        for host in (*OURS, *CONTAINERS):
            assert status(await send(address, request(address, host=host))) == 200, host
        for host in (*FOREIGN, socket.gethostname()):
            answer = await send(address, request(address, host=host))
            assert status(answer) == 403, host
            assert b"not a name of this server" in answer
            target = f"POST http://{host}{PATH} HTTP/1.1"
            assert status(await send(address, request(address, line=target))) in (400, 403), host


async def test_a_server_on_other_interfaces_accepts_the_machines_hostname() -> None:
    async with serving(host="0.0.0.0") as address:
        call = request(address, host=socket.gethostname())
        assert status(await send(address, call)) == 200
        assert status(await send(address, request(address, host="evil.example"))) == 403


async def test_no_response_has_cors_headers() -> None:
    cors = ["Origin: http://evil.example", "Access-Control-Request-Method: POST"]
    async with serving() as address:
        for method, key in itertools.product(["OPTIONS", "POST", "GET"], [None, "none"]):
            data = request(address, BODY, *cors, line=f"{method} {PATH} HTTP/1.1", key=key)
            assert b"access-control" not in (await send(address, data)).lower(), method


# -- HTTP ----------------------------------------------------------------------------------------

CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
CHUNKED = "Transfer-Encoding: chunked"
PACKED = gzip.compress(BODY)
GZIP = "Content-Encoding: gzip"


def chunked(body: bytes, *headers: str, **options: Any) -> Any:
    return lambda to: request(to, body, CHUNKED, *headers, length=False, **options)


def plain(body: bytes = BODY, *headers: str, **options: Any) -> Any:
    return lambda to: request(to, body, *headers, **options)


FINE = {
    "chunks": chunked(CHUNKS),
    "chunks in HTTP/1.0": chunked(CHUNKS, line=f"POST {PATH} HTTP/1.0"),
    "chunks with a trailer": chunked(CHUNKS[:-2] + b"x: y\r\n\r\n"),
    "HTTP/1.0": plain(line=f"POST {PATH} HTTP/1.0"),
    "an absolute target": plain(line=f"POST http://localhost{PATH} HTTP/1.1"),
    "a query": plain(line=f"POST {PATH}?beta=true HTTP/1.1"),
    "packed": plain(PACKED, GZIP),
    "packed in chunks": chunked(b"%x\r\n%s\r\n0\r\n\r\n" % (len(PACKED), PACKED), GZIP),
    "an upgrade that is not taken up": plain(BODY, "Upgrade: h2c", "Connection: Upgrade"),
}
BAD = {
    "two lengths": (plain(BODY, "Content-Length: 3"), 400),
    "length and chunks": (lambda to: request(to, CHUNKS, CHUNKED), 400),
    "chunks that are not last": (chunked(CHUNKS, "Transfer-Encoding: identity"), 400),
    "an odd chunk size": (chunked(b"0x5\r\nabcde\r\n0\r\n\r\n"), 400),
    "a chunk that is longer": (chunked(b"3\r\nabcde\r\n0\r\n\r\n"), 400),
    "a negative length": (plain(b"", "Content-Length: -1", length=False), 400),
    "a folded header": (plain(BODY, "x: y", " z"), 400),
    "a space before the colon": (plain(BODY, "x : y"), 400),
    "a bare line feed": (lambda to: request(to).replace(b"\r\n", b"\n", 1), 400),
    "a null in a header": (plain(BODY, "x: \0"), 400),
    "a long header": (plain(BODY, f"x: {'y' * 9000}"), 400),
    "many headers": (plain(BODY, *["x: y"] * 300), 400),
    "a long path": (plain(line=f"POST /{'x' * 9000} HTTP/1.1"), 400),
    "no host": (lambda to: request(to).replace(b"Host", b"Most"), 400),
    "two hosts": (plain(BODY, "Host: localhost"), 400),
    "no HTTP": (lambda _: b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03\r\n\r\n", 400),
    "HTTP/2": (lambda _: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HEAD": (plain(b"", line=f"HEAD {PATH} HTTP/1.1"), 404),
    "OPTIONS": (plain(b"", line="OPTIONS * HTTP/1.1"), 404),
    "TRACE": (plain(b"", line=f"TRACE {PATH} HTTP/1.1"), 404),
    "CONNECT": (plain(b"", line="CONNECT localhost:80 HTTP/1.1"), 404),
    "a web socket": (
        plain(b"", "Upgrade: websocket", "Connection: Upgrade", line="GET /v1/realtime HTTP/1.1"),
        404,
    ),
    "a form": (plain(b"--x\r\n\r\n--x--", "Content-Type: multipart/form-data; boundary=x"), 400),
    "packed badly": (plain(b"\x1f\x8b" + PACKED[5:], GZIP), 400),
    "packed as it is not": (plain(BODY, "Content-Encoding: br"), 400),
    "packed far too much": (plain(gzip.compress(bytes(2**27)), GZIP), 413),
    "far too long": (plain(b"", f"Content-Length: {2**40}", length=False), 413),
}


async def test_unusual_but_valid_http_is_answered() -> None:
    async with serving() as address:
        for form, make in FINE.items():
            assert status(await send(address, make(address))) == 200, form


async def test_invalid_http_is_rejected_with_a_single_response(caplog: Logs) -> None:
    async with serving() as address:
        for form, (make, expected) in BAD.items():
            answer = await send(address, make(address))
            assert status(answer) == expected, form
            assert answer.count(b"HTTP/1.") == 1, form
            assert address.api_key.encode() not in answer, form
            assert status(await send(address, request(address))) == 200, form
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_100_continue_is_only_sent_to_clients_with_a_known_key() -> None:
    async with serving() as address:
        expecting = request(address, BODY, "Expect: 100-continue")
        assert (await send(address, expecting)).startswith(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 2"
        )
        strange = request(address, BODY, "Expect: 100-continue", key="none")
        assert (await send(address, strange)).startswith(b"HTTP/1.1 401")


async def test_pipelined_requests_are_answered_in_order() -> None:
    models = request(Address("", "", ""), b"", line="GET /v1/models HTTP/1.1", close=False)
    async with serving() as address:
        models = models.replace(b"Bearer ", f"Bearer {address.api_key}".encode())
        answer = await send(address, models + request(address, close=False) * 40 + request(address))
    assert answer.count(b"HTTP/1.1 200") == 42
    assert answer.index(b'"object": "list"') < answer.index(b"chat.completion")


# -- keys ----------------------------------------------------------------------------------------


async def test_a_retry_never_gets_the_reply_of_another_rollout() -> None:
    async with serving("mine") as mine, serving("yours") as yours:
        assert mine.root_url == yours.root_url
        assert b"mine" in await send(mine, request(mine))
        retry = request(yours, BODY, "x-stainless-retry-count: 1")
        assert b"yours" in await send(yours, retry)


async def test_keys_are_never_returned_or_logged(caplog: Logs) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving() as address:
        key = address.api_key
        for data in (
            request(address, line=f"POST /v1/{key} \0 HTTP/1.1"),
            request(address, BODY, f"x{key} : y"),
            request(address, BODY, f"x: {key}\0"),
            request(address, BODY, key),
            request(address, BODY, key=f"{key}x"),
            key.encode() + b"\r\n\r\n",
            request(address, b"{"),
            request(address, host=key),
        ):
            answer = await send(address, data)
            assert 400 <= status(answer) < 500
            assert key.encode() not in answer
    assert key not in caplog.text


@pytest.mark.nightly
def test_hostile_http_does_not_affect_other_rollouts() -> None:
    """Run the quick version of ``benchmarks/hostile_http.py``."""
    script = [sys.executable, "benchmarks/hostile_http.py", "--quick"]
    ended = subprocess.run(script, cwd=ROOT, capture_output=True, text=True, check=False)

    assert ended.returncode == 0, ended.stdout + ended.stderr
