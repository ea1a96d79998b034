"""Connections to the loopback server: limits, timeouts, reading and writing.

A connection is a *stranger* until it sends a request with the key of a running rollout. At most
``STRANGERS`` strangers are kept open. Beyond that, a new stranger replaces the oldest one, so even
thousands of strangers cannot block a rollout. A rollout can have ``AT_ONCE`` requests in progress
and ``RESTING`` idle connections.

aiohttp limits the headers (128 lines of 8190 bytes, ``IDLE_TIME`` to send them) and rejects
malformed HTTP. To prevent DNS rebinding, requests for unknown host names are refused
(``is_named``). No CORS headers are sent, so web pages from other origins cannot read responses.
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

from evert.bridge.clients.dialects.api import ApiResponse, failure
from evert.bridge.clients.dialects.bodies import LONG_BODY
from evert.bridge.off_loop import off_loop

logger = logging.getLogger(__name__)

# bytes
BODY_LIMIT = 64 * 2**20  # maximum size of a decompressed body; larger ones get a 413

# seconds
BODY_TIME = 60.0  # time to send a body; slower clients get a 408
IDLE_TIME = 30.0  # time to send headers after connecting or after the previous response
WRITE_TIME = 30.0  # time to read a response; slower clients are disconnected
LINGER_TIME = 2.0  # time for a refused client to finish sending, so that it can read the error
YOUNG = 1.0  # connections idle for less stay open, so that clients can send a request (``rest``)

# connections
STRANGERS = 256  # open connections without the key of a running rollout
RESTING = 256  # idle connections per rollout, plus as many for all finished rollouts together
AT_ONCE = 1024  # requests in progress per rollout; further requests get a 429
ACCEPTED_AT_ONCE = 16  # connections to accept in a row before serving the open ones again

LOOPBACK = ("127.0.0.1", "::1", "localhost")

CONTAINERS = ("host.docker.internal", "gateway.docker.internal", "host.containers.internal")
"""Names that containers use for their host machine. They cannot be registered as domains."""

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
        """Return a new connection."""
        return Connection(
            self,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=IDLE_TIME,
            lingering_time=LINGER_TIME,
            access_log=None,  # type: ignore[arg-type]
        )

    async def end(self) -> None:
        """Close all connections, giving responses in progress 0.1 s to finish."""
        self.is_over = True
        self.pre_shutdown()
        await self.shutdown(0.1)
        for connection in [*self.every]:
            connection.wire.abort()  # a client that does not read could keep it open

    def forget(self) -> None:
        """Close all sockets without using the event loop, which is closed or in another process."""
        for connection in self.every:
            raw_socket = getattr(connection.wire.get_extra_info("socket"), "_sock", None)
            if raw_socket is not None:
                raw_socket.close()


class Connection(web.RequestHandler):
    """One connection."""

    wire: asyncio.Transport  # aiohttp drops its own reference before the transport closes
    _circle: "OrderedDict[Connection, None] | None" = None
    _since = 0.0

    def connection_made(self, transport: Any) -> None:
        """Add the new connection to the strangers."""
        self.wire = transport
        # This is the connection's only reference to evert's objects.
        self._all: Connections = self._manager  # type: ignore[assignment]
        if self._all.is_over:  # accepted just before the server stopped
            transport.abort()
            return
        self._all.every.add(self)
        super().connection_made(transport)
        self.rest(self._all.strangers, STRANGERS)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Remove the connection."""
        self.work()
        self._all.every.discard(self)
        super().connection_lost(exc)

    def work(self) -> None:
        """Mark the connection as busy, so that it won't be replaced."""
        if self._circle is not None:
            self._circle.pop(self, None)
            self._circle = None

    def rest(self, circle: "OrderedDict[Connection, None]", limit: int) -> None:
        """Add the connection to the idle connections in ``circle``, and close the oldest ones.

        ``limit`` connections stay open, or up to four times as many if the oldest of them has been
        idle for less than ``YOUNG`` seconds.
        """
        self.work()
        now = self._loop.time()
        if not self.wire.is_closing():
            self._circle, self._since = circle, now
            circle[self] = None
        while len(circle) > limit:
            first = next(iter(circle))
            if now - first._since < YOUNG and len(circle) <= 4 * limit:
                break
            first.work()
            first.wire.abort()

    def retire(self) -> None:
        """Mark the connection as idle after the end of its rollout."""
        self.rest(self._all.retired, RESTING)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the response for a failed request.

        The response does not include the request, which may contain a key.
        """
        if isinstance(exc, ConnectionError):
            raise exc
        if status >= 500:
            logger.error("A request failed because of a bug in evert.", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("Cannot send an error: the response has already started.")
        text = f"The request is not valid HTTP ({type(exc).__name__})."
        details = text, "invalid_request_error", "bad_http"
        if status >= 500:
            details = "Internal error in evert; see its log.", "api_error", "internal_error"
        return whole(failure(status, *details), last=True)

    def log_exception(self, *args: Any, exc_info: object = None, **options: Any) -> None:
        """Log an error, except for malformed bodies, which are reported to the client."""
        if not isinstance(exc_info, BAD_BODY):
            super().log_exception(*args, exc_info=exc_info, **options)


# -- names -----------------------------------------------------------------------------------------


def is_named(request: web.BaseRequest, interface: str) -> bool:
    """Return whether a request's host is an IP address or one of this machine's names."""
    target, hosts = request.raw_path, [request.headers.get("host", LOOPBACK[0])]
    if not target.startswith(("/", "*")):
        hosts.append(urlsplit(target if "://" in target else f"//{target}").netloc)
    return all(_is_ours(host, interface) for host in hosts)


def is_from_here(request: web.BaseRequest, interface: str) -> bool:
    """Return False for requests from other sites' web pages (browsers send the page's origin)."""
    origin = request.headers.get("origin")
    return origin is None or _is_ours(origin.partition("://")[2], interface)


@lru_cache(64)
def _is_ours(host: str, interface: str) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    names = {*LOOPBACK, *CONTAINERS, interface.lower()}
    if interface not in LOOPBACK:
        names.add(socket.gethostname().lower())
    return name in names or name.endswith(".localhost") or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


# -- reading and writing ---------------------------------------------------------------------------


async def body_of(request: web.BaseRequest) -> bytes | ApiResponse:
    """Return a request's decompressed body, or an error response."""
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
        request.writer.output_size = 0  # the response has not started yet
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
        message = f"Cannot read the body ({type(error).__name__}): invalid chunks or compression."
        return failure(400, message, "invalid_request_error", "bad_body")
    return b"".join(chunks) if size <= LONG_BODY else await off_loop(b"".join, chunks)


def whole(answer: ApiResponse, *, last: bool = False) -> web.Response:
    """Build a complete response. If ``last``, the connection is closed afterwards."""
    response = web.Response(
        status=answer.status, body=answer.content, headers={"content-type": answer.content_type}
    )
    if last:
        response.force_close()
    return response


async def send(request: web.BaseRequest, response: web.StreamResponse) -> web.StreamResponse:
    """Send a complete response."""
    async with being_read(request):
        await response.prepare(request)
        await response.write_eof()
    return response


@asynccontextmanager
async def being_read(request: web.BaseRequest) -> AsyncIterator[None]:
    """Close the connection if the client does not read the response within ``WRITE_TIME``."""
    try:
        async with asyncio.timeout(WRITE_TIME):
            yield
    except TimeoutError:
        connection_of(request).wire.abort()
        raise ConnectionResetError("The client did not read the response in time.") from None


def connection_of(request: web.BaseRequest) -> Connection:
    """Return the connection that a request arrived on."""
    return request.protocol  # type: ignore[return-value]
