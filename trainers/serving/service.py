"""``PolicyService``: serves this process's sampling clients over HTTP, for example to workers.

    GET  /v1/models        the models that are currently served
    POST /v1/completions   vLLM's format, with token ids (``wire.py``)
    POST ...               chat APIs for the models passed to ``chat()`` (``chat.py``)
    POST /v1/feedback      sets rewards of recorded replies (``recording.py``)

The service runs on an event loop in its own thread, so that workers don't have to wait for a busy
trainer. Each request calls ``sample`` on a served client. The engine batches requests that arrive
together, including those made in this process. Closing a connection cancels its request.

The key only permits sampling. The service rejects requests without the key and requests from web
pages (``is_named``, ``is_from_here``). It always uses plain HTTP, even if it listens beyond
loopback.
"""

import asyncio
import hmac
import itertools
import logging
import secrets
import socket
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Self

import orjson
import tinker
from aiohttp import web
from tinker import types

from evert.bridge.clients.dialects.api import ApiResponse, model_card, model_list
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
from evert.bridge.clients.http.server import key_of
from evert.bridge.models.tinker_model import context_length_here
from evert.bridge.off_loop import off_loop
from evert.trainers.engine.common.errors import EngineClosedError, SamplingRequestError
from evert.trainers.engine.models.encoding import make_thread_safe
from evert.trainers.serving.chat import ChatApi, ChatModel, Sample
from evert.trainers.serving.client import ServedSamplingClient
from evert.trainers.serving.recording import ServedRecords, feedback
from evert.trainers.serving.streaming import stream_reply
from evert.trainers.serving.wire import (
    CompletionAnswer,
    CompletionRequest,
    ServerKind,
    read_request,
    write_answer,
)

logger = logging.getLogger(__name__)

PEERS = 4096
"""Maximum number of idle authenticated connections. If there are more, the oldest are closed."""

BACKLOG = 4096
WITHDRAWN = 256
"""How many withdrawn names to remember, for better error messages."""


class PolicyService:
    """Serves this process's sampling clients. Can be used as a context manager.

    Args:
        host: Interface to listen on. With an interface other than loopback, other machines can
            sample with the key, and anyone who can read the traffic can see the prompts and the
            key. In this case, a warning is logged.
        port: Port to listen on (0: any free port).
        key: API key required in all requests (default: a random key).

    Attributes:
        url: For example ``http://127.0.0.1:41000/v1``.
        key: The API key.
        requests: Number of sampling requests so far, including running ones.

    Raises:
        OSError: The interface or port is not available.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0, key: str | None = None) -> None:
        if host not in LOOPBACK:
            logger.warning(
                "The policy is served on %s over plain HTTP, so anyone who can read the traffic "
                "can see prompts, replies and the API key. Use a trusted network, or put a TLS "
                "proxy or an SSH tunnel in front.",
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
        address = f"[{host}]" if ":" in host else host
        if host in ("0.0.0.0", "::"):
            address = socket.gethostname()
        self.url = f"http://{address}:{self._socket.getsockname()[1]}/v1"
        self._loop = asyncio.new_event_loop()
        self._closing = asyncio.Event()
        self._peers: OrderedDict[Connection, None] = OrderedDict()
        self._connections = Connections(self._handle, self._loop)
        self._arrivals = _Arrivals(self._loop)
        self._chat: ChatApi | None = None
        self._records: ServedRecords | None = None
        self._thread = threading.Thread(target=self._run, name="evert policy service", daemon=True)
        self._thread.start()

    def offer(self, client: Any, name: str | None = None) -> ServedSamplingClient:
        """Serve a client until it is withdrawn. Thread-safe.

        Args:
            client: A ``tinker.SamplingClient`` from the embedded engine or the SDK.
            name: The model's name (default: a new name). A client that is already served keeps its
                name.

        Returns:
            A client that can be passed to other processes. When pickled, it includes the key.
        """
        old_name = next((n for n, c in [*self._offered.items()] if c is client), None)
        name = old_name or name or f"policy-{next(self._names)}"
        self._offered[name] = client
        base = client.get_base_model()
        return ServedSamplingClient(
            self.url, name, self.key, base_model=base, dialect=ServerKind.EVERT
        )

    def chat(self, models: Mapping[str, ChatModel], records: ServedRecords | None = None) -> None:
        """Enable the chat APIs for these models, which must sample with ``self.sample``.

        Args:
            models: Maps the names that clients use to models.
            records: Records conversations and handles feedback. If None, feedback is rejected.
        """
        self._chat, self._records = ChatApi(models, records), records

    def sample(self, client: Any) -> Sample:
        """Return a function that samples from an embedded engine client, for a ``ChatModel``."""
        return partial(self._sample, client)

    async def _sample(
        self,
        client: Any,
        prompt: tinker.ModelInput,
        params: types.SamplingParams,
        watch: Callable[[list[int]], None] | None = None,
    ) -> types.SampledSequence:
        self.requests += 1
        if watch is None:
            sampling = client.sample(prompt, 1, params)
        else:
            sampling = client.watch(
                prompt, params, lambda tokens: self._arrivals.call(partial(watch, tokens))
            )
        response: types.SampleResponse = await self._arrivals.of(sampling.future())
        return response.sequences[0]

    def withdraw(self, client: Any) -> None:
        """Stop serving a client, if it is served."""
        for name, offered in [*self._offered.items()]:
            if offered is client:
                self._withdrawn.append(name)
                del self._offered[name]

    def close(self) -> None:
        """Stop the service, close all connections and cancel their requests. Idempotent."""
        if self._thread.is_alive() and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._closing.set)
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- in the service's thread -----------------------------------------------------------------

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
        keys = (key.encode(errors="surrogateescape") for key in (key_of(request), self.key))
        if not hmac.compare_digest(*keys):
            return await send(request, whole(_WRONG_KEY, last=True))
        connection = connection_of(request)
        connection.work()
        try:
            if self._chat is not None and request.path.rstrip("/") != "/v1/completions":
                return await self._answer_chat(self._chat, request)
            return await send(request, whole(await self._answer(request)))
        finally:
            connection.rest(self._peers, PEERS)

    async def _answer(self, request: web.BaseRequest) -> ApiResponse:
        path = request.path.rstrip("/")
        if path == "/v1/models" and request.method == "GET":
            return self._models()
        if path != "/v1/completions" or request.method != "POST":
            return error_answer(
                404,
                "NotFoundError",
                f"{request.method} {path} is not available here. Use GET /v1/models, or "
                "POST /v1/completions with token ids.",
            )
        body = await body_of(request)
        if isinstance(body, ApiResponse):
            return body
        try:
            return await self._complete(read_request(body))
        except SamplingRequestError as error:
            return error_answer(400, "SamplingRequestError", str(error))
        except EngineClosedError as error:
            return error_answer(503, "EngineClosedError", str(error))
        except Exception as error:
            logger.warning("A sampling request failed.", exc_info=error)
            return error_answer(500, type(error).__name__, str(error))

    async def _answer_chat(self, api: ChatApi, request: web.BaseRequest) -> web.StreamResponse:
        body = await body_of(request)
        if isinstance(body, ApiResponse):
            return await send(request, whole(body, last=True))
        if request.method == "GET" and request.path.rstrip("/") == "/v1/models":
            return await send(request, whole(self._models()))
        if request.method == "POST" and request.path.rstrip("/") == "/v1/feedback":
            return await send(request, whole(await feedback(self._records, body)))
        call = await api.read_soon(api.route(request.method, request.path, body))
        if isinstance(call, ApiResponse):
            return await send(request, whole(call))
        if call.stream:
            return await stream_reply(request, call, api.reply_to)
        return await send(request, whole(await call.wait(api.reply_to(call))))

    def _models(self) -> ApiResponse:
        cards = []
        for name, client in [*self._offered.items()]:
            base = client.get_base_model()
            facts = {"root": base, "max_model_len": context_length_here(base)}
            cards.append({**model_card(name), **facts})
        return model_list(cards)

    async def _complete(self, request: CompletionRequest) -> ApiResponse:
        client = self._offered.get(request.model)
        if client is None:
            return self._not_served(request.model)
        self.requests += 1
        decode = client.get_tokenizer().decode if request.texts else None
        ids = request.prompt
        if isinstance(ids, str):
            _check_length(ids, client)
            encode = make_thread_safe(client.get_tokenizer()).encode
            ids = [*await off_loop(encode, ids, add_special_tokens=False)]
        prompt = tinker.ModelInput.from_ints(ids)
        sequences: Sequence[types.SampledSequence] = ()
        if request.params.max_tokens != 0:
            sampling = client.sample(prompt, request.count, request.params)
            sequences = (await self._arrivals.of(sampling.future())).sequences
        scores = None
        if request.prompt_logprobs:
            scores = await self._arrivals.of(client.compute_logprobs(prompt).future())
        return ApiResponse(
            200, write_answer(request, CompletionAnswer([*sequences], scores, ids), decode)
        )

    def _not_served(self, name: str) -> ApiResponse:
        names = ", ".join(self._offered) or "none"
        if name in self._withdrawn:
            message = (
                f"The weights {name!r} are no longer served, usually because they were replaced "
                f"by newer ones. Currently available: {names}."
            )
        else:
            message = f"No model {name!r} is served here. Currently available: {names}."
        return error_answer(404, "NotServedError", message)


def _check_length(text: str, client: Any) -> None:
    """Reject text that can't fit, because tokenizing it would delay other requests for seconds."""
    context = context_length_here(client.get_base_model())
    if context is None or len(text) <= context:
        return
    longest = max(map(len, client.get_tokenizer().get_vocab()))
    if len(text) > context * longest:
        raise SamplingRequestError(
            f"The prompt has {len(text):,} characters, but the model's context length is "
            f"{context:,} tokens of at most {longest} characters each. Send a shorter prompt."
        )


class _Arrivals:
    """Passes calls and results from other threads to an event loop in batches.

    The engine often finishes many sequences in one step. If each of them woke up the event loop
    separately, the engine's thread would lose the GIL each time.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._arrived: deque[Callable[[], object]] = deque()
        self._is_woken = False

    async def of(self, future: "Future[Any]") -> Any:
        """Wait for a future's result. Cancelling this also cancels the future."""
        waiter = self._loop.create_future()
        future.add_done_callback(lambda _: self.call(partial(_wake, waiter)))
        try:
            await waiter
        except asyncio.CancelledError:
            future.cancel()
            raise
        return future.result()

    def call(self, function: Callable[[], object]) -> None:
        """Schedule a function to be called in the event loop. Thread-safe."""
        self._arrived.append(function)
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the service is closed, so nobody is waiting for the result
                self._is_woken = False

    def _deliver(self) -> None:
        self._is_woken = False  # must come first, so that later arrivals wake the loop again
        while self._arrived:
            self._arrived.popleft()()


def _wake(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_result(None)


def error_answer(status: int, kind: str, message: str) -> ApiResponse:
    """Return an error in vLLM's format."""
    error = {"message": message, "type": kind, "param": None, "code": status}
    return ApiResponse(status, orjson.dumps({"error": error}))


_WRONG_KEY = error_answer(
    401,
    "AuthenticationError",
    "The request does not contain this service's API key. Send the header "
    "`Authorization: Bearer KEY`.",
)

_MISNAMED = error_answer(
    403,
    "PermissionDeniedError",
    "The request's Host header does not match this service, or it was sent by a web page on "
    "another host (Origin header). Don't connect from a web page. Use the service's address, "
    "'localhost' or the name in host=. If the service listens beyond loopback, this machine's "
    "name works too.",
)
