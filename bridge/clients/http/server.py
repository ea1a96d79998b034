"""Serves rollouts over loopback HTTP, for agents in other processes.

There is one server per event loop and interface, which can serve any number of rollouts. Each
rollout has a key with 192 random bits that the agent's process sends as the API key. (Keys are
looked up in a dict, so a timing attack would have to guess the hash of a key.)

The server is already listening when it returns an address. It stops when its last rollout is
released. A server with a fixed port, which other programs may know, runs until its event loop ends.
The server's ``_Tie`` is only referenced by the loop, so however the loop ends, the finalizer of the
``_Tie`` closes the sockets. Forked processes do not serve anything.
"""

import asyncio
import contextvars
import functools
import logging
import os
import secrets
import socket
import sys
import threading
import weakref
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from aiohttp import web

from evert.bridge.clients.dialects.api import ApiResponse, failure
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.clients.http.calls_and_retries import Calls
from evert.bridge.clients.http.connections import (
    ACCEPTED_AT_ONCE,
    LOOPBACK,
    Connections,
    is_named,
    send,
    whole,
)

logger = logging.getLogger(__name__)

KEYS_REMEMBERED = 1024  # finished rollouts' keys to keep, so that late calls get a specific error
BACKLOG = 1024
RELAYED_PORT = 47113
"""The port used in URLs for Unix sockets. The client runs a relay on this port."""
AGES = 1e9  # delay in seconds of a timer that should never fire


@dataclass(frozen=True, slots=True)
class Address:
    """A rollout's URLs: ``base_url`` for the OpenAI SDK, and ``root_url`` for other SDKs.

    If ``socket`` is the path of a Unix socket, the URLs work wherever a relay to it is running.
    """

    root_url: str
    base_url: str
    api_key: str = field(repr=False)
    socket: str | None = None


class _Tie:
    """An object referenced only by an event loop, so it is garbage-collected with the loop."""


class Server:
    """The server for one event loop and one interface or Unix socket."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: str) -> None:
        self._loop = loop
        self._rollouts: dict[str, Calls] = {}
        self._over: deque[str] = deque(maxlen=KEYS_REMEMBERED)
        self._socket, self._root = _listening(host)
        self._interface = host
        self._name, self._port = interface_and_port(host)
        self._connections = Connections(self._handle, loop)
        self._listener: asyncio.Server | None = None
        self._task: asyncio.Task[None] | None = None
        self._timer: weakref.ref[asyncio.TimerHandle] | None = None
        tie = _Tie()
        self._end = weakref.finalize(tie, _drop, weakref.ref(self))
        # Use an empty context, because the server may outlive the current rollout.
        loop.call_soon_threadsafe(self._begin, tie, context=contextvars.Context())

    def _begin(self, tie: _Tie) -> None:
        if self._socket.fileno() >= 0:
            timer = self._loop.call_later(AGES, id, tie)
            self._timer = weakref.ref(timer)
            self._task = self._loop.create_task(self._listen(), name="evert server")

    async def _listen(self) -> None:
        if self._socket.fileno() < 0:
            return
        self._listener = await self._loop.create_server(
            self._connections, sock=self._socket, backlog=ACCEPTED_AT_ONCE, start_serving=False
        )
        await self._listener.start_serving()
        # Set the backlog here: asyncio's ``backlog`` is also the number of accepts in a row.
        self._socket.listen(BACKLOG)

    async def _stop(self) -> None:
        self._end.detach()
        timer = self._timer() if self._timer is not None else None
        if timer is not None:
            timer.cancel()
        if self._listener is not None:
            with suppress(NotImplementedError):
                self._loop.remove_reader(self._socket)
            await asyncio.sleep(0)  # let asyncio finish accepting a connection
            self._listener.close()
        self._socket.close()
        await self._connections.end()

    def _forget(self) -> None:
        with _lock:
            if _servers.get((id(self._loop), self._interface)) is self:
                del _servers[id(self._loop), self._interface]

    def drop(self) -> None:
        """Close all sockets immediately, without using the event loop."""
        self._forget()
        self._socket.close()
        self._connections.forget()

    def add(self, endpoint: Endpoint) -> Address:
        """Serve a rollout until its episode is over. Thread-safe."""
        key = f"evert-{secrets.token_urlsafe(24)}"
        endpoint.episode.hold(functools.partial(self.release, key))
        self._rollouts[key] = Calls(endpoint)
        socket_path = self._interface if _is_path(self._interface) else None
        return Address(self._root, f"{self._root}/v1", key, socket_path)

    async def release(self, key: str) -> None:
        """Stop serving a rollout. After the last one, stop the server unless its port is fixed."""
        with _lock:  # another thread may request an address at the same time
            calls = self._rollouts.pop(key)
            self._over.append(key)
            is_over = not self._rollouts and not self._port
            if is_over:
                self._forget()
        calls.end()
        if is_over:
            self._task = self._loop.create_task(self._stop(), name="evert server")
            await asyncio.wait({self._task})

    # -- requests --------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if not is_named(request, self._name):
            return await send(request, whole(self._unknown_host(), last=True))
        key = key_of(request)
        calls = self._rollouts.get(key)
        if calls is None:
            return await send(request, whole(self._unknown_key(key), last=True))
        return await calls.answer(request)

    def _unknown_host(self) -> ApiResponse:
        message = (
            "The Host header is not a name of this server. Use its IP address, 'localhost', or (in "
            "a container) 'host.docker.internal'. A proxy in front of the server must set the Host "
            "header to one of these."
        )
        return failure(403, message, "permission_error", "unknown_host")

    def _unknown_key(self, key: str) -> ApiResponse:
        if key in self._over:
            message = (
                "The episode for this key is over, so its model calls cannot be answered. Wait for "
                "every call before the agent ends."
            )
            return failure(400, message, "invalid_request_error", "rollout_over")
        problem = "No rollout has this API key" if key else "The request has no API key"
        message = (
            f"{problem}. Send client.api_key, the key for client.base_url. Commands receive it as "
            "{api_key} or in OPENAI_API_KEY, ANTHROPIC_API_KEY or GEMINI_API_KEY."
        )
        return failure(401, message, "authentication_error", "invalid_api_key")


def _listening(host: str) -> tuple[socket.socket, str]:
    if not _is_path(host):
        host, port = interface_and_port(host)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=BACKLOG)
        name = f"[{host}]" if ":" in host else host
        return listener, f"http://{name}:{listener.getsockname()[1]}"
    if sys.platform != "linux":  # only used for sandboxes
        raise NotImplementedError("Serving on a Unix socket is only supported on Linux.")
    listener = socket.socket(socket.AF_UNIX)
    folder = os.open(os.path.dirname(host), os.O_PATH)
    try:
        # Bind via /proc, because the full path may be too long for a socket address.
        listener.bind(f"/proc/self/fd/{folder}/{os.path.basename(host)}")
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(folder)
    return listener, f"http://{LOOPBACK[0]}:{RELAYED_PORT}"


def interface_and_port(host: str) -> tuple[str, int]:
    """Split "0.0.0.0:8443" or "[::]:8443" into interface and port (default: 0, any free port)."""
    name, _, port = host.rpartition(":")
    is_both = port.isdecimal() and name and (":" not in name or name.endswith("]"))
    return (name.strip("[]"), int(port)) if is_both else (host.strip("[]"), 0)


def _is_path(host: str) -> bool:
    return host.startswith("/")


def key_of(request: web.BaseRequest) -> str:
    """Return the API key from a request's headers (as sent by any of the SDKs), or ""."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return key.strip()
    names = ("x-api-key", "x-goog-api-key")
    return next((request.headers[name] for name in names if name in request.headers), "")


# -- one server per loop and interface -------------------------------------------------------------

_servers: weakref.WeakValueDictionary[tuple[int, str], Server] = weakref.WeakValueDictionary()
"""Servers by loop ``id`` and interface. A server keeps its loop alive, so the id stays valid."""

_lock = threading.RLock()


def serve(endpoint: Endpoint, host: str = LOOPBACK[0]) -> Address:
    """Serve a rollout on a host until its episode ends. Thread-safe.

    Returns the same address if the rollout is already being served on this host.
    """
    endpoint.episode.check_running()
    with _lock:
        if host not in endpoint.addresses:
            endpoint.addresses[host] = _serve(endpoint, host)
        return endpoint.addresses[host]  # type: ignore[no-any-return]


def _serve(endpoint: Endpoint, host: str) -> Address:
    loop = endpoint.episode.loop
    if interface_and_port(host)[0] not in LOOPBACK and not _is_path(host):
        logger.warning(
            "Model calls are served on %s over plain HTTP, so anyone who can read the traffic can "
            "read the rollouts and their keys. Use a TLS proxy or an SSH tunnel to protect them.",
            host,
        )
    server = _servers.get((id(loop), host)) or Server(loop, host)
    _servers[id(loop), host] = server
    try:
        return server.add(endpoint)
    finally:
        if not server._rollouts:  # the rollout is already over, and nothing else uses the server
            server.drop()


def _drop(server: "weakref.ref[Server]") -> None:
    """Drop a server whose event loop was closed."""
    live_server = server()
    if live_server is not None:
        live_server.drop()


def _drop_all() -> None:
    """Close all sockets in a forked process, because only the parent serves them."""
    for server in [*_servers.values()]:
        server.drop()
    _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_drop_all
    )
