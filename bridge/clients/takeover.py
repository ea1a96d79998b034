"""Take-over: intercepts calls from agents that build their own client (``openai.OpenAI()``).

If an agent sends a chat API request for one of its rollout's models, the rollout answers it. The
agent's other requests, and all requests from other code in the process, go to their usual
destination. Calls are taken over below the SDKs: ``httpx`` and ``httpx2`` are patched where they
choose the transport for a request, ``aiohttp`` where it sends a request, and ``lm15`` (used by
DSPy) in its transports.

A context variable holds a ``Claim`` (``ownership.py``) that determines which rollout a call belongs
to. Tasks inherit the claim. For threads, pools and processes, these rules apply:

- While work that an agent submitted to a pool is running, the work belongs to the agent. The pool
  itself never belongs to an agent.
- A thread started by an agent belongs to the agent until the agent ends. After that, it does not
  belong to any rollout, because it may serve the whole process (for example, a logger).
- Processes that an agent forks or spawns do not belong to a rollout.

Another patch keeps the log-probabilities of tokens sampled by the Cookbook (``logprobs.py``). Every
Env calls ``install``, but only the first call has an effect.
"""

import concurrent.futures
import concurrent.futures.thread
import contextvars
import functools
import importlib
import logging
import multiprocessing.pool
import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import aiohttp
from tinker_cookbook.completers import TinkerTokenCompleter, TokensWithLogprobs
from yarl import URL

from evert.bridge.clients import aiohttp_transport, lm15_transport
from evert.bridge.clients.dialects.api import ApiResponse
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.clients.httpx_transport import Transport, was_sent
from evert.bridge.ownership import CLAIM, Claim, current_owner
from evert.bridge.tokens.logprobs import keep_logprobs

Function = Callable[..., Any]


def current_endpoint() -> Endpoint | None:
    """Return the API of the rollout that the current task or thread belongs to, if any."""
    return cast("Endpoint | None", current_owner())


def agent_context(endpoint: Endpoint) -> contextvars.Context:
    """Return a copy of the current context, changed so that ``endpoint`` answers calls."""
    context = contextvars.copy_context()
    context.run(CLAIM.set, Claim(lambda: endpoint, False, os.getpid()))
    return context


# -- patches -------------------------------------------------------------------------------------

_lock = threading.Lock()
_is_installed = False


def install() -> None:
    """Enable take-over for the rest of this process. Calling this again has no effect."""
    global _is_installed
    if _is_installed:
        return
    with _lock:
        if not _is_installed:  # another thread may have installed it
            _patch_all()
            _is_installed = True


def _patch_all() -> None:
    for name in ("httpx", "httpx2"):
        try:
            library: Any = importlib.import_module(name)
        except ImportError:
            continue
        logging.getLogger(name).addFilter(was_sent)
        for client in (library.Client, library.AsyncClient):
            _patch(client, "_transport_for_url", _choose_transport)
    _patch(aiohttp.ClientSession, "_request", _request)
    lm15_transport.when_imported(_patch_lm15)
    _patch(TinkerTokenCompleter, "__call__", _complete)
    _patch(threading.Thread, "start", _start)
    _patch(concurrent.futures.ThreadPoolExecutor, "submit", _submit)
    _patch(multiprocessing.pool.ThreadPool, "apply_async", _apply_async)
    _patch(multiprocessing.pool.ThreadPool, "_guarded_task_generation", _guard_tasks)


def _patch(owner: type, name: str, replacement: Function) -> None:
    """Replace a method with a function that gets the original method as its first argument."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def new(*args: Any, **options: Any) -> Any:
        return replacement(original, *args, **options)

    setattr(owner, name, new)


# -- requests ------------------------------------------------------------------------------------


def _choose_transport(original: Function, client: Any, url: Any) -> Any:
    transport = original(client, url)
    endpoint = current_endpoint()
    if endpoint is None or isinstance(transport, Transport):  # not in an agent, or already ours
        return transport
    return Transport(endpoint, transport)


async def _request(
    original: Function, session: Any, method: str, str_or_url: Any, **options: Any
) -> Any:
    send = functools.partial(original, session, method, str_or_url, **options)
    endpoint = current_endpoint()
    if endpoint is None:
        return await send()
    try:
        url = URL(str_or_url)
    except (TypeError, ValueError):
        return await send()  # raises aiohttp's own error
    path, method = f"/{url.path}", method.upper()  # may be relative to the session's base URL
    if endpoint.match(method, path) is None:
        return await send()
    data, body = options.get("data"), options.get("json")
    content = data if body is None else session.json_serialize(body)
    content = content.encode() if isinstance(content, str) else content
    if not isinstance(content, bytes):
        return await send()
    api_request = endpoint.route(method, path, content, str(url) if url.absolute else path)
    answer = await endpoint.answer(api_request, send)
    if not isinstance(answer, ApiResponse):
        return answer
    raises = options.get("raise_for_status")
    if raises is None:
        raises = session.raise_for_status
    return await aiohttp_transport.response_for(answer, raise_for_status=raises)


def _patch_lm15(transports: ModuleType) -> None:
    for name in lm15_transport.TRANSPORTS:
        if (transport := getattr(transports, name, None)) is not None:  # varies by lm15 version
            _patch(transport, "stream", _stream)


def _stream(original: Function, transport: Any, request: Any) -> Any:
    endpoint, send = current_endpoint(), functools.partial(original, transport, request)
    if endpoint is None or not endpoint.match(request.method, lm15_transport.path_of(request)):
        return send()
    return lm15_transport.Exchange(endpoint, request, send)


# -- sampled tokens ------------------------------------------------------------------------------


async def _complete(
    original: Function, completer: Any, *arguments: Any, **options: Any
) -> TokensWithLogprobs:
    return keep_logprobs(await original(completer, *arguments, **options))


# -- threads -------------------------------------------------------------------------------------


def _start(original: Function, thread: threading.Thread) -> Any:
    claim = _claim_here()
    if claim is None or _serves_a_pool(thread):
        return original(thread)
    instance_run = vars(thread).get("run")

    def run() -> None:
        _put_back(thread, instance_run)  # restore the original ``run`` once the thread is running
        _run_in(lent, thread.run)

    lent = claim.lent()
    thread.run = run  # type: ignore[method-assign]
    try:
        return original(thread)
    except BaseException:
        _put_back(thread, instance_run)
        raise


def _put_back(thread: threading.Thread, run: Any) -> None:
    vars(thread).pop("run", None)
    if run is not None:
        thread.run = run  # type: ignore[method-assign]


def _claim_here() -> Claim | None:
    """Return the claim that new work inherits, or None outside an agent."""
    return None if current_owner() is None else CLAIM.get()


_WORKERS = (
    getattr(concurrent.futures.thread, "_worker", None),
    getattr(multiprocessing.pool, "worker", None),
)
"""Target functions by which we recognise pool threads."""


def _serves_a_pool(thread: threading.Thread) -> bool:
    """Return whether this is a pool thread. In pools, each submitted task has its own claim."""
    target = getattr(thread, "_target", None)
    return target is not None and target in _WORKERS


def _submit(original: Function, pool: Any, fn: Function, /, *args: Any, **kwargs: Any) -> Any:
    return original(pool, _with_claim(fn), *args, **kwargs)


def _apply_async(original: Function, pool: Any, func: Function, *args: Any, **kwargs: Any) -> Any:
    return original(pool, _with_claim(func), *args, **kwargs)


def _guard_tasks(original: Function, pool: Any, job: Any, func: Function, iterable: Any) -> Any:
    return original(pool, job, _with_claim(func), iterable)


def _with_claim(function: Function) -> Function:
    claim = _claim_here()
    if claim is None:
        return function
    return functools.partial(_run_in, claim, function)


def _run_in(claim: Claim, function: Function, *args: Any, **kwargs: Any) -> Any:
    token = CLAIM.set(claim)
    try:
        return function(*args, **kwargs)
    finally:
        CLAIM.reset(token)
