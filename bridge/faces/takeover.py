"""Take-over: the calls of agents that build their own client, ``openai.OpenAI()`` deep inside.

Within an agent's context, requests to a chat API whose body names one of the rollout's models are
answered by the rollout; every other request, and every request of other code in the process, goes
where it would have gone. It works below the SDKs, where ``httpx`` and ``httpx2`` choose the
transport of a request, and where ``aiohttp`` sends one, so it does not matter which SDK or
framework made it, or over what transport. DSPy's own engine, which uses none of these, is taken
over at its ``lm15`` transports.

Whose call it is, a context variable says. Tasks and ``asyncio.to_thread`` carry it by themselves;
for plain threads and thread pools, which start from an empty context, ``Thread.start`` and
``ThreadPoolExecutor.submit`` hand it on, inside of agents only.

The other way around, tokens that the Cookbook samples keep their log-probabilities on their way to
an Env (``logprobs.py``), to which it hands the bare tokens.

``install`` is called by every Env and takes effect once; ``remove`` undoes it.
"""

import concurrent.futures
import concurrent.futures.thread
import contextvars
import functools
import importlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import aiohttp
from tinker_cookbook.completers import TinkerTokenCompleter, TokensWithLogprobs
from yarl import URL

from evert.bridge.faces import aiohttp_transport, lm15
from evert.bridge.faces.endpoint import Endpoint
from evert.bridge.faces.transport import Transport, response_for
from evert.bridge.logprobs import remembering

current_endpoint: contextvars.ContextVar[Endpoint | None] = contextvars.ContextVar(
    "evert_current_endpoint", default=None
)
"""The API of the rollout that the current task or thread belongs to; None outside of agents."""

_originals: list[tuple[type, str, Any]] = []
_lock = threading.Lock()


def agent_context(endpoint: Endpoint) -> contextvars.Context:
    """A copy of the current context in which the calls are ``endpoint``'s."""
    context = contextvars.copy_context()
    context.run(current_endpoint.set, endpoint)
    return context


@contextmanager
def left_alone() -> Iterator[None]:
    """Calls made inside are never taken over: evert's own, to models that are really elsewhere."""
    token = current_endpoint.set(None)
    try:
        yield
    finally:
        current_endpoint.reset(token)


def install() -> None:
    """Make take-over work from now on; again to no effect."""
    with _lock:
        if _originals:
            return
        for name in ("httpx", "httpx2"):
            try:
                library: Any = importlib.import_module(name)
            except ImportError:
                continue
            for client in (library.Client, library.AsyncClient):
                _patch(client, "_transport_for_url", _choosing_transport)
        _patch(aiohttp.ClientSession, "_request", _sending)
        _lm15.begin()
        _patch(TinkerTokenCompleter, "__call__", _remembering_logprobs)
        _patch(threading.Thread, "start", _starting_in_rollout)
        _patch(concurrent.futures.ThreadPoolExecutor, "submit", _submitting_in_rollout)


def remove() -> None:
    """Undo ``install``, until the next Env starts."""
    with _lock:
        if _originals:
            _lm15.end()
        while _originals:
            owner, name, original = _originals.pop()
            setattr(owner, name, original)


def is_installed() -> bool:
    """Whether take-over is in effect."""
    return bool(_originals)


def _patch(owner: type, name: str, replacement: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    _originals.append((owner, name, original))
    setattr(owner, name, functools.wraps(original)(replacement(original)))


# -- requests ------------------------------------------------------------------------------------


def _choosing_transport(original: Callable[..., Any]) -> Callable[..., Any]:
    def transport_for_url(client: Any, url: Any) -> Any:
        transport = original(client, url)
        endpoint = current_endpoint.get()
        if endpoint is None or isinstance(transport, Transport):  # not an agent, or its own client
            return transport
        return _Sorting(transport, endpoint)

    return transport_for_url


class _Sorting(Transport):
    """A transport that answers the rollout's requests and passes the others on."""

    def __init__(self, transport: Any, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._transport = transport

    async def handle_async_request(self, request: Any) -> Any:
        """Answer, or pass on."""
        if not self._endpoint.is_chat(request.method, request.url.path):
            return await self._transport.handle_async_request(request)
        url, content = str(request.url), await request.aread()
        if self._endpoint.serves(url, content):
            return await super().handle_async_request(request)
        try:
            return await self._transport.handle_async_request(request)
        except Exception as error:
            return response_for(request, self._endpoint.stranded(url, content, error))

    def handle_request(self, request: Any) -> Any:
        """Answer, or pass on."""
        if not self._endpoint.is_chat(request.method, request.url.path):
            return self._transport.handle_request(request)
        url, content = str(request.url), request.read()
        if self._endpoint.serves(url, content):
            return super().handle_request(request)
        try:
            return self._transport.handle_request(request)
        except Exception as error:
            return response_for(request, self._endpoint.stranded(url, content, error))


def _sending(original: Callable[..., Any]) -> Callable[..., Any]:
    async def _request(session: Any, method: str, str_or_url: Any, **options: Any) -> Any:
        endpoint, url = current_endpoint.get(), URL(str_or_url)
        path = f"/{url.path}"  # or within a session's base
        if endpoint is None or not endpoint.is_chat(method.upper(), path):
            return await original(session, method, str_or_url, **options)
        data, body = options.get("data"), options.get("json")
        content = data if body is None else json.dumps(body)
        content = content.encode() if isinstance(content, str) else content
        if not isinstance(content, bytes):
            return await original(session, method, str_or_url, **options)
        address = str(url) if url.absolute else path
        if endpoint.serves(address, content):
            answer = await endpoint.answer(method.upper(), path, content)
        else:
            try:
                return await original(session, method, str_or_url, **options)
            except Exception as error:
                answer = endpoint.stranded(address, content, error)
        raises = options.get("raise_for_status")
        if raises is None:
            raises = session.raise_for_status
        return await aiohttp_transport.response_for(answer, raise_for_status=raises)

    return _request


def _patch_lm15(transports: ModuleType) -> None:
    for name in lm15.TRANSPORTS:
        if (transport := getattr(transports, name, None)) is not None:  # of another version
            _patch(transport, "stream", _choosing_stream)


_lm15 = lm15.WhenImported(_patch_lm15)


def _choosing_stream(original: Callable[..., Any]) -> Callable[..., Any]:
    def stream(transport: Any, request: Any) -> Any:
        endpoint = current_endpoint.get()
        if endpoint is None or not endpoint.is_chat(request.method, lm15.path_of(request)):
            return original(transport, request)
        if endpoint.serves(request.url, request.body):
            return lm15.Exchange(endpoint, request)
        return lm15.PassedOn(endpoint, request, lambda: original(transport, request))

    return stream


# -- what was sampled ----------------------------------------------------------------------------


def _remembering_logprobs(original: Callable[..., Any]) -> Callable[..., Any]:
    async def complete(completer: Any, *arguments: Any, **options: Any) -> TokensWithLogprobs:
        return remembering(await original(completer, *arguments, **options))

    return complete


# -- threads -------------------------------------------------------------------------------------


def _starting_in_rollout(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(thread: threading.Thread) -> None:
        endpoint = current_endpoint.get()
        if endpoint is not None and not _serves_a_pool(thread):
            thread.run = functools.partial(_run_in, endpoint, thread.run)  # type: ignore[method-assign]
        original(thread)

    return start


def _serves_a_pool(thread: threading.Thread) -> bool:
    """Whether a thread will do other people's work too: its tasks say whose they are."""
    worker = getattr(concurrent.futures.thread, "_worker", None)
    return worker is not None and getattr(thread, "_target", None) is worker


def _submitting_in_rollout(original: Callable[..., Any]) -> Callable[..., Any]:
    def submit(pool: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        endpoint = current_endpoint.get()
        if endpoint is None:
            return original(pool, fn, *args, **kwargs)
        return original(pool, _run_in, endpoint, fn, *args, **kwargs)

    return submit


def _run_in(endpoint: Endpoint, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    token = current_endpoint.set(endpoint)
    try:
        return function(*args, **kwargs)
    finally:
        current_endpoint.reset(token)
