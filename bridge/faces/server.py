"""The rollouts' APIs over loopback HTTP, for agents in other processes.

One server an event loop and interface, however many rollouts there are; each has an unguessable
key, which its process sends as the API key. The server starts with the first rollout that asks for
an address and stops with the last that is released, or with its loop. From the moment the last key
is given back it is nobody's any more: a rollout that comes now gets a new one.

- A retry that the SDK marks as one (``x-stainless-retry-count``), with the same body, gets the
  reply of the call it repeats: nothing is sampled twice. An equal body without the mark is a new
  call.
- A stream that waits for the trainer is kept alive by comments, which every SDK skips.
- A call whose client has gone is given up, unless it is retried within some seconds.
"""

import asyncio
import functools
import hashlib
import logging
import secrets
import socket
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from aiohttp import web

from evert.bridge.errors import AgentAborted, EnvClosedError, EpisodeEndedError
from evert.bridge.faces.endpoint import EVENTS, REFUSALS, Answer, Call, Endpoint, failure
from evert.bridge.messages import Reply

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"

BODY_LIMIT = 64 * 2**20
"""Bytes of a request's body; a longer one is a 413."""

PING_EVERY = 10.0
"""Seconds between the comments that keep a waiting stream alive."""

RETRY_PATIENCE = 10.0
"""Seconds that a call outlives its client, for a retry to find it."""

REMEMBERED = 8
"""Latest calls of a rollout that a retry can find."""

KEYS_REMEMBERED = 1024
"""Latest keys of rollouts that are over, which are told so."""

BACKLOG = 1024


@dataclass(frozen=True, slots=True)
class Address:
    """Where a rollout is served.

    Attributes:
        root_url: Base URL for the Anthropic SDK and for Google's.
        base_url: Base URL for the OpenAI SDK.
        api_key: The rollout's key.
    """

    root_url: str
    base_url: str
    api_key: str


@dataclass(slots=True, eq=False)
class _Pending:
    """A call that is being answered, and how many clients wait for it."""

    reply: "asyncio.Task[Reply]"
    clients: int = 0


@dataclass(slots=True, eq=False)
class _Rollout:
    """One rollout's endpoint, and its latest calls by path and body."""

    endpoint: Endpoint
    calls: "OrderedDict[bytes, _Pending]" = field(default_factory=OrderedDict)


class Server:
    """The server of one event loop on one interface.

    Args:
        loop: Where it runs; the rollouts' own.
        host: Interface to listen on.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str) -> None:
        self._loop = loop
        self._rollouts: dict[str, _Rollout] = {}
        self._over: deque[str] = deque(maxlen=KEYS_REMEMBERED)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        self._interface = host
        self._host = f"[{host}]" if ":" in host else host
        app = web.Application(client_max_size=BODY_LIMIT)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1
        )
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._task is None:
            self._task = self._loop.create_task(self._run(), name="evert server")

    async def _run(self) -> None:
        """Serve until the last rollout is released, or the loop is shut down."""
        try:
            await self._runner.setup()
            await web.SockSite(self._runner, self._socket, backlog=BACKLOG).start()
            await self._stopping.wait()
        finally:
            self._forget()
            await self._runner.cleanup()
            self._socket.close()

    def _forget(self) -> None:
        """The next rollout on this loop gets a server of its own."""
        with _lock:
            if _servers.get((self._loop, self._interface)) is self:
                del _servers[self._loop, self._interface]

    def drop(self) -> None:
        """Listen no more, where the loop was closed without an end."""
        self._forget()
        self._socket.close()

    def add(self, endpoint: Endpoint) -> Address:
        """Serve a rollout. Safe from any thread."""
        key = f"evert-{secrets.token_urlsafe(24)}"
        self._rollouts[key] = _Rollout(endpoint)
        port = self._socket.getsockname()[1]
        root = f"http://{self._host}:{port}"
        return Address(root, f"{root}/v1", key)

    async def release(self, key: str) -> None:
        """Serve a rollout no more; with the last one the server stops."""
        with _lock:  # a thread may be asking for an address meanwhile
            rollout = self._rollouts.pop(key)
            self._over.append(key)
            is_last = not self._rollouts
            if is_last:
                self._forget()
        for pending in rollout.calls.values():
            pending.reply.cancel()
        if is_last:
            self._stopping.set()
            self._begin()
            if self._task is not None:
                await asyncio.wait({self._task})

    # -- requests --------------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        rollout = self._rollouts.get(_key_of(request))
        if rollout is None:
            return _whole(self._stranger(_key_of(request)))
        try:
            content = await request.read()
        except web.HTTPRequestEntityTooLarge:
            message = f"The body is longer than {BODY_LIMIT} bytes."
            return _whole(failure(413, message, "invalid_request_error", "request_too_large"))
        call = rollout.endpoint.read(request.method, request.path, content)
        if isinstance(call, Answer):
            return _whole(call)
        identity = hashlib.sha256(request.path.encode() + b"\0" + content).digest()
        pending = self._pending(rollout, call, identity, is_retry=_is_retry(request))
        pending.clients += 1
        try:
            if call.stream:
                return await _streamed(request, call, pending.reply)
            return _whole(await _answer(call, pending.reply))
        finally:
            pending.clients -= 1
            if pending.clients == 0 and not pending.reply.done():  # the client has gone
                self._loop.call_later(RETRY_PATIENCE, _give_up, pending)

    def _stranger(self, key: str) -> Answer:
        """The answer to a key that is no running rollout's."""
        if key in self._over:
            message = (
                "The episode of this key is over; nothing can answer its model calls. Wait for "
                "every call before the agent ends."
            )
            return failure(400, message, "invalid_request_error", "rollout_over")
        found = "No rollout has this API key" if key else "The request brings no API key"
        message = (
            f"{found}. Send the rollout's own, which goes with client.base_url: client.api_key, in "
            "a command {api_key} or the variable OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY."
        )
        return failure(401, message, "authentication_error", "invalid_api_key")

    def _pending(
        self, rollout: _Rollout, call: Call, identity: bytes, *, is_retry: bool
    ) -> _Pending:
        known = rollout.calls.get(identity)
        if is_retry and known is not None and not known.reply.cancelled():
            return known
        reply = self._loop.create_task(rollout.endpoint.episode.call(call.request), name="http")
        reply.add_done_callback(_retrieve)
        pending = rollout.calls[identity] = _Pending(reply)
        rollout.calls.move_to_end(identity)
        while len(rollout.calls) > REMEMBERED:
            oldest = next(iter(rollout.calls.items()))
            if not oldest[1].reply.done():
                break  # many calls at once: all of them are still needed
            del rollout.calls[oldest[0]]
        return pending


def _retrieve(reply: "asyncio.Task[Reply]") -> None:
    if not reply.cancelled():
        reply.exception()  # whoever waited has it; nobody may be left to


def _give_up(pending: _Pending) -> None:
    if pending.clients == 0:
        pending.reply.cancel()


def _key_of(request: web.Request) -> str:
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    names = ("x-api-key", "x-goog-api-key")
    return next((request.headers[name] for name in names if name in request.headers), "")


def _is_retry(request: web.Request) -> bool:
    return request.headers.get("x-stainless-retry-count", "0") not in ("0", "")


async def _answer(call: Call, reply: "asyncio.Task[Reply]") -> Answer:
    try:
        return await call.wait(asyncio.shield(reply))
    except AgentAborted as error:
        return call.refused(RuntimeError(str(error)))


def _whole(answer: Answer) -> web.Response:
    return web.Response(
        status=answer.status, body=answer.content, headers={"content-type": answer.content_type}
    )


async def _streamed(
    request: web.Request, call: Call, reply: "asyncio.Task[Reply]"
) -> web.StreamResponse:
    """A stream; a refusal that comes at once is an answer of its own, with its status."""
    await asyncio.wait({reply}, timeout=PING_EVERY)
    if reply.done():
        return _whole(await _answer(call, reply))
    response = web.StreamResponse(headers={"content-type": EVENTS})
    await response.prepare(request)
    while not reply.done():
        await response.write(call.dialect.ping)
        await asyncio.wait({reply}, timeout=PING_EVERY)
    try:
        await response.write(call.answered(reply.result()).content)
    except REFUSALS as error:
        await response.write(call.refused_late(error))
    await response.write_eof()
    return response


# -- one server a loop and interface ---------------------------------------------------------------

_servers: dict[tuple[asyncio.AbstractEventLoop, str], Server] = {}
_lock = threading.RLock()


def serve(endpoint: Endpoint, host: str = LOOPBACK) -> Address:
    """Give a rollout an address until its episode is over; once a host. Safe from any thread.

    Args:
        endpoint: The rollout's API.
        host: Interface to listen on. Another than loopback lets other machines in, over plain
            HTTP: that is said in a warning.

    Raises:
        OSError: The interface cannot be listened on.
        EnvClosedError, EpisodeEndedError: The episode is over.
    """
    with _lock:
        if host not in endpoint.addresses:
            endpoint.addresses[host] = _serve(endpoint, host)
        return endpoint.addresses[host]  # type: ignore[no-any-return]


def _serve(endpoint: Endpoint, host: str) -> Address:
    loop = endpoint.episode.loop
    if host not in (LOOPBACK, "::1", "localhost"):
        logger.warning(
            "Model calls are served on %s over plain HTTP: whoever can read the traffic can read "
            "the rollouts and their keys. Put a proxy with TLS or an SSH tunnel in front.",
            host,
        )
    for server in [one for (its, _), one in _servers.items() if its.is_closed()]:
        server.drop()
    server = _servers.get((loop, host)) or Server(loop, host)
    address = server.add(endpoint)
    _servers[loop, host] = server
    try:
        endpoint.episode.hold(functools.partial(server.release, address.api_key))
    except (EnvClosedError, EpisodeEndedError):
        asyncio.run_coroutine_threadsafe(server.release(address.api_key), loop)
        raise
    return address
