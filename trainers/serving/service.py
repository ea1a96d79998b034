"""``PolicyService``: sampling clients of this process, served over HTTP to workers and others.

    GET  /v1/models        what is offered now
    POST /v1/completions   vLLM's shape, with token ids (``wire.py``)

It has a thread and an event loop of its own, so that neither a trainer that computes nor a loop
that is busy keeps workers waiting. Each request becomes a call of the offered client's ``sample``:
what arrives together meets in the engine's own batches, beside what the process samples itself. A
client who hangs up gives up what it asked for.

Who brings the key may sample, and nothing else: there is no other way in, and none for a page in a
browser (``is_named``, ``is_from_here``). Beyond loopback the traffic is plain HTTP.
"""

import asyncio
import hmac
import itertools
import logging
import secrets
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Self

import orjson
import tinker
from aiohttp import web
from tinker import types

from evert.bridge.clients.dialects.endpoint import Answer
from evert.bridge.clients.http.connections import (
    LOOPBACK,
    Connection,
    Connections,
    body_of,
    connection_of,
    is_from_here,
    is_named,
    send,
    whole,
)
from evert.bridge.models.tinker_model import context_length_here
from evert.bridge.off_loop import off_loop
from evert.trainers.engine.common.errors import EngineClosedError, SamplingRequestError
from evert.trainers.engine.models.encoding import one_at_a_time
from evert.trainers.serving.client import ServedSamplingClient
from evert.trainers.serving.wire import Answered, Asked, Dialect, read_request, write_answer

logger = logging.getLogger(__name__)

PEERS = 4096
"""Connections between two requests that brought the key; of more the first are hung up on."""

BACKLOG = 4096
WITHDRAWN = 256
"""Latest names that were withdrawn, which are told so."""


class PolicyService:
    """Serves sampling clients of this process; a context manager.

    Args:
        host: Interface to listen on. Another than loopback lets other machines in: who has the key
            samples, and who can read the traffic reads it. That is said in a warning.
        port: To listen on; 0 for a free one.
        key: That every request has to bring; None for a random one.

    Attributes:
        url: For example ``http://127.0.0.1:41000/v1``.
        key: The key.
        requests: Requests to sample that were answered, or are being answered.

    Raises:
        OSError: The interface or the port cannot be listened on.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, key: str | None = None) -> None:
        if host not in LOOPBACK:
            logger.warning(
                "The policy is served on %s over plain HTTP: whoever can read the traffic can read "
                "prompts, replies and the key. Keep it to a network that you trust, or put a "
                "proxy with TLS or an SSH tunnel in front.",
                host,
            )
        self.key = key or f"evert-{secrets.token_urlsafe(24)}"
        self.requests = 0
        self._host = host
        self._names = itertools.count(1)
        self._offered: dict[str, Any] = {}
        self._withdrawn: deque[str] = deque(maxlen=WITHDRAWN)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=BACKLOG)
        named = f"[{host}]" if ":" in host else host
        if host in ("0.0.0.0", "::"):
            named = socket.gethostname()
        self.url = f"http://{named}:{self._socket.getsockname()[1]}/v1"
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._peers: OrderedDict[Connection, None] = OrderedDict()
        self._connections = Connections(self._handle, self._loop)
        self._arrivals = _Arrivals(self._loop)
        self._thread = threading.Thread(target=self._run, name="evert policy service", daemon=True)
        self._thread.start()

    def offer(self, client: Any, name: str | None = None) -> ServedSamplingClient:
        """Serve a client until it is withdrawn. Safe from any thread.

        Args:
            client: A ``tinker.SamplingClient``, the embedded engine's or the SDK's.
            name: Of the model; None for a new one. A client that is offered again keeps its name.

        Returns:
            What stands for it in other processes; it pickles, with the key.
        """
        known = next((n for n, c in [*self._offered.items()] if c is client), None)
        name = known or name or f"policy-{next(self._names)}"
        self._offered[name] = client
        base = client.get_base_model()
        return ServedSamplingClient(self.url, name, self.key, base_model=base, dialect=Dialect.OURS)

    def withdraw(self, client: Any) -> None:
        """Serve a client no longer; one that is not offered is no error."""
        for name, offered in [*self._offered.items()]:
            if offered is client:
                self._withdrawn.append(name)
                del self._offered[name]

    def close(self) -> None:
        """Stop; requests that are being answered are hung up on. Further calls do nothing."""
        if self._thread.is_alive() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- its thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._offered.clear()
            self._loop.close()

    async def _serve(self) -> None:
        listener = await self._loop.create_server(
            self._connections, sock=self._socket, backlog=BACKLOG
        )
        await self._closing.wait()
        listener.close()
        await self._connections.end()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if not (is_named(request, self._host) and is_from_here(request, self._host)):
            return await send(request, whole(_MISNAMED, last=True))
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        brought, own = (one.encode(errors="surrogateescape") for one in (key.strip(), self.key))
        if scheme.lower() != "bearer" or not hmac.compare_digest(brought, own):
            return await send(request, whole(_WRONG_KEY, last=True))
        connection = connection_of(request)
        connection.work()
        try:
            return await send(request, whole(await self._answer(request)))
        finally:
            connection.rest(self._peers, PEERS)

    async def _answer(self, request: web.BaseRequest) -> Answer:
        path = request.path.rstrip("/")
        if path == "/v1/models" and request.method == "GET":
            return self._models()
        if path != "/v1/completions" or request.method != "POST":
            return failed(
                404,
                "NotFoundError",
                f"There is no {request.method} {path} here; there are GET /v1/models and "
                "POST /v1/completions, with token ids.",
            )
        body = await body_of(request)
        if isinstance(body, Answer):
            return body
        try:
            return await self._complete(read_request(body))
        except SamplingRequestError as error:
            return failed(400, "SamplingRequestError", str(error))
        except EngineClosedError as error:
            return failed(503, "EngineClosedError", str(error))
        except Exception as error:
            logger.warning("A request to sample failed.", exc_info=error)
            return failed(500, type(error).__name__, str(error))

    def _models(self) -> Answer:
        models = []
        for name, client in self._offered.items():
            base = client.get_base_model()
            facts = {"root": base, "max_model_len": context_length_here(base)}
            models.append({"id": name, "object": "model", "owned_by": Dialect.OURS.value, **facts})
        return Answer(200, orjson.dumps({"object": "list", "data": models}))

    async def _complete(self, asked: Asked) -> Answer:
        client = self._offered.get(asked.model)
        if client is None:
            return self._not_served(asked.model)
        self.requests += 1
        decode = client.get_tokenizer().decode if asked.texts else None
        ids = asked.prompt
        if isinstance(ids, str):
            encode = one_at_a_time(client.get_tokenizer()).encode
            ids = [*await off_loop(encode, ids, add_special_tokens=False)]
        prompt = tinker.ModelInput.from_ints(ids)
        sequences: Sequence[types.SampledSequence] = ()
        if asked.params.max_tokens != 0:
            sampling = client.sample(prompt, asked.count, asked.params)
            sequences = (await self._arrivals.of(sampling.future())).sequences
        scores = None
        if asked.prompt_logprobs:
            scores = await self._arrivals.of(client.compute_logprobs(prompt).future())
        return Answer(200, write_answer(asked, Answered([*sequences], scores, ids), decode))

    def _not_served(self, name: str) -> Answer:
        there = ", ".join(self._offered) or "none"
        if name in self._withdrawn:
            message = (
                f"The weights {name!r} are no longer served: whoever offered them has withdrawn "
                f"them, for newer ones as a rule. Ask for those that are offered now: {there}."
            )
        else:
            message = f"There is no model {name!r} here. Name one that is offered: {there}."
        return failed(404, "NotServedError", message)


class _Arrivals:
    """Results of other threads' futures, brought to a loop: one wake-up for all that come at once.

    The engine answers many rows after one step, and to wake a loop for each would cost the engine's
    thread the interpreter each time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[tuple[Future[Any], asyncio.Future[None]]] = deque()
        self._is_woken = False

    async def of(self, future: "Future[Any]") -> Any:
        """The result; cancelling this cancels the future."""
        waiter = self._loop.create_future()
        future.add_done_callback(lambda done: self._add(done, waiter))
        try:
            await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise
        return future.result()

    def _add(self, future: "Future[Any]", waiter: "asyncio.Future[None]") -> None:
        self._arrived.append((future, waiter))
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the service was closed: nobody waits
                self._is_woken = False

    def _deliver(self) -> None:
        self._is_woken = False  # first: what comes from now on wakes the loop again
        while self._arrived:
            _, waiter = self._arrived.popleft()
            if not waiter.done():
                waiter.set_result(None)


def failed(status: int, kind: str, message: str) -> Answer:
    """An error in vLLM's shape."""
    error = {"message": message, "type": kind, "param": None, "code": status}
    return Answer(status, orjson.dumps({"error": error}))


_WRONG_KEY = failed(
    401,
    "AuthenticationError",
    "The request brings no key of this service's. Send `Authorization: Bearer KEY` with the key "
    "that the service was started with.",
)

_MISNAMED = failed(
    403,
    "PermissionDeniedError",
    "The request is to a host that is none of this service's, or a page of another host makes it "
    "(Origin). Call the service by its address, by 'localhost', by this machine's own name where "
    "it listens beyond loopback, or by the name in host=; not from a page in a browser.",
)
