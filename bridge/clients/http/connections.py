"""Connections of the loopback server: who may hold one, how long, and what is read and written.

A connection is a stranger's until it brings the key of a running rollout. Of strangers' there are
``STRANGERS`` at most, the oldest makes room: thousands of them keep no rollout from being heard. A
rollout has ``AT_ONCE`` calls being answered, and ``RESTING`` connections between calls.

Headers are aiohttp's business (8190 bytes a line, 128 of them, ``IDLE_TIME`` to send them), and so
is everything that HTTP can be wrong in. No browser is answered under a foreign name (``is_named``:
DNS rebinding), nor told that it may read an answer (CORS).
"""

import asyncio
import ipaddress
import logging
import socket
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from evert.bridge.clients.dialects.bodies import LONG_BODY
from evert.bridge.clients.dialects.endpoint import Answer, failure
from evert.bridge.off_loop import off_loop

logger = logging.getLogger(__name__)

# bytes
BODY_LIMIT = 64 * 2**20  # of a request's body, unpacked; a longer one is a 413

# seconds
BODY_TIME = 60.0  # that a body may take; a slower one is a 408
IDLE_TIME = 30.0  # from a connection's start, or its last answer, to the end of its next headers
WRITE_TIME = 30.0  # that a client may take to read what it is sent before it is hung up on
LINGER_TIME = 2.0  # in which a client that is refused may finish sending, so that it hears why
YOUNG = 1.0  # in which a connection does not make room, or a client could not speak: see ``rest``

# connections
STRANGERS = 256  # without a running rollout's key
RESTING = 256  # of a rollout between calls; as many that are left of rollouts that are over
AT_ONCE = 1024  # requests of a rollout that are being answered; a further one is a 429
ACCEPTED_AT_ONCE = 16  # that are let in before those that are in have their turn again

LOOPBACK = ("127.0.0.1", "::1", "localhost")

CONTAINERS = ("host.docker.internal", "gateway.docker.internal", "host.containers.internal")
"""What a machine is called by the containers on it; names that nobody can register."""

BAD_BODY = (web.RequestPayloadError, HttpProcessingError)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class Connections(web.Server):
    """All connections of a server."""

    def __init__(self, handler: Handler, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(handler, handler_cancellation=True, loop=loop)
        self.strangers: OrderedDict[Connection, None] = OrderedDict()
        self.retired: OrderedDict[Connection, None] = OrderedDict()
        self.every: set[Connection] = set()
        self.is_over = False

    def __call__(self) -> "Connection":
        """A new connection."""
        return Connection(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=IDLE_TIME,
            lingering_time=LINGER_TIME,
            access_log=None,  # type: ignore[arg-type]
        )

    async def end(self) -> None:
        """Let what is being answered be answered, as far as it is, and hang up."""
        self.is_over = True
        self.pre_shutdown()
        await self.shutdown(0.1)
        for connection in [*self.every]:
            connection.wire.abort()  # a client that reads nothing would keep it open

    def forget(self) -> None:
        """Close all sockets where no loop can do it: it is closed, or another process's."""
        for connection in self.every:
            its = getattr(connection.wire.get_extra_info("socket"), "_sock", None)
            if its is not None:
                its.close()


class Connection(web.RequestHandler):
    """One connection."""

    wire: asyncio.Transport  # which aiohttp forgets before it is closed
    _circle: "OrderedDict[Connection, None] | None" = None
    _since = 0.0

    def connection_made(self, transport: Any) -> None:
        """A client is here, as a stranger."""
        self.wire = transport
        self._all: Connections = self._manager  # type: ignore[assignment]
        if self._all.is_over:  # it was let in just before
            transport.abort()
            return
        self._all.every.add(self)
        super().connection_made(transport)
        self.rest(self._all.strangers, STRANGERS)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It is gone."""
        self.work()
        self._all.every.discard(self)
        super().connection_lost(exc)

    def work(self) -> None:
        """It is being answered, and makes room for nobody."""
        if self._circle is not None:
            self._circle.pop(self, None)
            self._circle = None

    def rest(self, circle: "OrderedDict[Connection, None]", most: int) -> None:
        """It waits, as the latest of some; of too many the first are hung up on."""
        self.work()
        now = self._loop.time()
        if not self.wire.is_closing():
            self._circle, self._since = circle, now
            circle[self] = None
        while len(circle) > most:
            first = next(iter(circle))
            if now - first._since < YOUNG and len(circle) <= 4 * most:  # more of so young ones
                break
            first.work()
            first.wire.abort()

    def retire(self) -> None:
        """It waits, but its rollout is over."""
        self.rest(self._all.retired, RESTING)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no HTTP, which is not repeated: there may be a key in it."""
        if isinstance(exc, ConnectionError):
            raise exc
        if status >= 500:
            logger.error("A request could not be answered: a bug of evert's.", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("The answer has begun, and cannot become an error.")
        text = f"This is no HTTP that can be read ({type(exc).__name__})."
        told = text, "invalid_request_error", "bad_http"
        if status >= 500:
            told = "evert failed to answer; its log says why.", "api_error", "internal_error"
        return whole(failure(status, *told), last=True)

    def log_exception(self, *args: Any, exc_info: object = None, **options: Any) -> None:
        """Log what nobody expected, which a bad body is not: it was answered."""
        if not isinstance(exc_info, BAD_BODY):
            super().log_exception(*args, exc_info=exc_info, **options)


# -- names -----------------------------------------------------------------------------------------


def is_named(request: web.BaseRequest, interface: str) -> bool:
    """Whether a request is to a name of this server's: an address, or one that nobody registers."""
    target, hosts = request.raw_path, [request.headers.get("host", LOOPBACK[0])]
    if not target.startswith(("/", "*")):
        hosts.append(urlsplit(target if "://" in target else f"//{target}").netloc)
    return all(_is_ours(host, interface) for host in hosts)


def is_from_here(request: web.BaseRequest, interface: str) -> bool:
    """Whether no page of another host makes a request: a browser says whose page it is."""
    origin = request.headers.get("origin")
    return origin is None or _is_ours(origin.partition("://")[2], interface)


@lru_cache(64)
def _is_ours(host: str, interface: str) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    own = {*LOOPBACK, *CONTAINERS, interface.lower()}
    if interface not in LOOPBACK:
        own.add(socket.gethostname().lower())
    return name in own or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


# -- what is read and written ----------------------------------------------------------------------


async def body_of(request: web.BaseRequest) -> bytes | Answer:
    """A request's body, unpacked if it was packed; or the answer to one that cannot be had."""
    too_long = failure(
        413,
        f"The body is longer than {BODY_LIMIT} bytes.",
        "invalid_request_error",
        "request_too_large",
    )
    if (request.content_length or 0) > BODY_LIMIT:
        return too_long
    if request.headers.get("expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer has not begun
    chunks, size = [], 0
    try:
        async with asyncio.timeout(BODY_TIME):
            while chunk := await request.content.readany():
                size += len(chunk)
                if size > BODY_LIMIT:
                    return too_long
                chunks.append(chunk)
    except TimeoutError:
        message = f"The body was not sent within {BODY_TIME:g} s."
        return failure(408, message, "invalid_request_error", "request_timeout")
    except BAD_BODY as error:
        message = f"The body cannot be read ({type(error).__name__}): bad chunks or packing."
        return failure(400, message, "invalid_request_error", "bad_body")
    return b"".join(chunks) if size <= LONG_BODY else await off_loop(b"".join, chunks)


def whole(answer: Answer, *, last: bool = False) -> web.Response:
    """An answer as a response, the last of its connection or not."""
    response = web.Response(
        status=answer.status, body=answer.content, headers={"content-type": answer.content_type}
    )
    if last:
        response.force_close()
    return response


async def send(request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
    """Send a whole response, or the end of a stream."""
    async with being_read(request):
        await response.prepare(request)
        await response.write_eof()
    return response


@asynccontextmanager
async def being_read(request: web.BaseRequest) -> AsyncIterator[None]:
    """Hang up on a client that does not read what is sent meanwhile."""
    try:
        async with asyncio.timeout(WRITE_TIME):
            yield
    except TimeoutError:
        connection_of(request).wire.abort()
        raise ConnectionResetError("The client does not read its answer.") from None


def connection_of(request: web.BaseRequest) -> Connection:
    """The connection that a request came by."""
    return request.protocol  # type: ignore[return-value]
