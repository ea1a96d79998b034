"""One rollout's API, which turns a request's path and body into an answer, over any transport.

    POST .../chat/completions        OpenAI's chat completions
    POST .../responses               OpenAI's responses
    POST .../messages                Anthropic's messages
    POST .../models/NAME:generateContent, :streamGenerateContent    Gemini's generateContent
    POST .../messages/count_tokens, .../responses/input_tokens, .../models/NAME:countTokens
                                     the number of a prompt's tokens, in the API's own form
    GET  .../models[/name]           the model names that are answered here

Errors are answers too: a 400 (a 404 for other paths) in the API's own form, so that the agent's SDK
raises its own exception. A call after the end of the episode is a 400 as well, since no other
exception passes unchanged through every framework. If calls go on, ``AgentAborted`` is raised.
"""

import copy
import itertools
import json
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, TypeVar
from urllib.parse import urlsplit

import openai

from evert.bridge.chat.bad_requests import bad_request, failed
from evert.bridge.chat.fields import json_object
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.anthropic_messages import AnthropicMessages
from evert.bridge.clients.dialects.bodies import LONG_BODY, read_body
from evert.bridge.clients.dialects.chat_completions import ChatCompletions
from evert.bridge.clients.dialects.dialect import Dialect
from evert.bridge.clients.dialects.gemini import STATUSES, Gemini, method_of
from evert.bridge.clients.dialects.responses import Responses
from evert.bridge.conversations.matching import count_tokens
from evert.bridge.episode.episode import Episode
from evert.bridge.episode.routes import Routes, seat_model
from evert.bridge.errors import (
    BlockingCallError,
    EnvClosedError,
    EpisodeEndedError,
    EvertError,
    InvalidAgentError,
)
from evert.bridge.off_loop import off_loop
from evert.bridge.tokens.renderer import PromptRenderer

REFUSALS = (openai.APIStatusError, EnvClosedError, EpisodeEndedError, BlockingCallError)
"""Errors that become answers: a 400, a frozen model's own, the episode's end, a blocking call."""

Made = TypeVar("Made")

JSON = "application/json"
EVENTS = "text/event-stream"

COUNTS = ("/count_tokens", "/input_tokens", ":countTokens")
"""The path endings of requests that only count tokens."""

UNSERVED = ("/completions", "/complete", "/responses/compact", "/messages/batches")
"""The path endings of requests that call a model in a way that is not served here."""

LONG_PROMPT = 20_000
"""Bytes whose tokens take some milliseconds to count; longer prompts are counted in a thread."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to a request."""

    status: int
    content: bytes
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Call:
    """A model call that was read from a request."""

    request: ChatRequest
    dialect: Dialect
    body: Mapping[str, Any]
    number: str

    @property
    def stream(self) -> bool:
        """Whether the agent wants a stream of events."""
        return self.body.get("stream") is True

    def answered(self, reply: Reply) -> Answer:
        """Return the answer with a reply."""
        whole = self.dialect.write(reply, self.request, self.number, self.body)
        if self.stream:
            return Answer(200, self.dialect.framed(self.dialect.events(whole, self.body)), EVENTS)
        return Answer(200, _json(whole))

    def refused(self, error: Exception) -> Answer:
        """Return the answer with an error."""
        return _refusal(self.dialect, error)

    def refused_late(self, error: Exception) -> bytes:
        """Return the event of an error, for a stream that has begun."""
        return self.dialect.error_event(_error_body(error), _status(error))

    async def wait(self, reply: Awaitable[Reply]) -> Answer:
        """Wait for a reply, and return the answer with it or with its refusal."""
        try:
            return self.answered(await reply)
        except REFUSALS as error:
            return self.refused(error)


@dataclass
class Sent:
    """A request to the API that its path names. Its body is parsed once."""

    dialect: Dialect
    path: str  # without a slash at its end
    content: bytes
    url: str = ""

    @cached_property
    def body(self) -> Mapping[str, Any]:
        """The parsed body, with the fields that the path contains."""
        return self.dialect.addressed(self.path, read_body(self.content))

    def model(self) -> object:
        """Return the model's name, even of a body that is refused; None if it has none."""
        try:
            return self.body.get("model")
        except openai.BadRequestError:
            body = json_object(self.content)
            return None if body is None else self.dialect.addressed(self.path, body).get("model")


class Endpoint:
    """The API of one rollout, or of one seat of it."""

    def __init__(self, episode: Episode, model: str, renderer: PromptRenderer) -> None:
        self.episode = episode
        self.notes = episode.routes.notes_of(model)
        self.model = model
        self.renderer = renderer
        self.trains = True
        self.addresses: dict[str, Any] = {}
        self._seats: dict[str, Endpoint] = {}
        self._numbers = itertools.count()
        self._prefix = secrets.token_hex(6)  # an agent may see the ids of several rollouts
        self._chat = ChatCompletions(model)
        self._unserved = ChatCompletions(model)
        self._responses = Responses(model)
        self._anthropic = AnthropicMessages(model)
        self._gemini = Gemini(model)

    def seat(self, name: str) -> "Endpoint":
        """Return the API of a seat, the same one each time."""
        if name not in self._seats:
            routes, model = self.episode.routes, seat_model(name)
            if model not in routes.names:
                raise InvalidAgentError(
                    f"There is no seat {name!r} in this episode. Its seats: "
                    f"{', '.join(routes.seats) or 'none; give the builder seats='}."
                )
            seat = Endpoint(self.episode, model, self.renderer)
            seat._seats = self._seats
            self._seats[name] = seat
        return self._seats[name] if self.trains else self._seats[name].untrained

    @cached_property
    def untrained(self) -> "Endpoint":
        """The same API, with replies that are not trained on."""
        other = copy.copy(self)
        other.trains, other.addresses = False, {}
        return other

    @property
    def is_over(self) -> bool:
        """Whether the agent is done."""
        return self.episode.is_over

    def asked(self, request: ChatRequest) -> ChatRequest:
        """Return the request, marked as untrained if this API is."""
        return request if self.trains else replace(request, train=False)

    def new_id(self) -> str:
        """Return a unique id for a reply."""
        return f"{self._prefix}{next(self._numbers)}"

    def match(self, method: str, path: str) -> Dialect | None:
        """Return the API that a request's path names; None if it names none.

        Paths that call a model but are not served have an API too, so that ``read`` refuses them.
        """
        path = path.rstrip("/")
        if method != "POST":
            return None
        if path.endswith("/chat/completions"):
            return self._chat
        if path.endswith(("/responses", "/responses/input_tokens")):
            return self._responses
        if path.endswith(("/messages", "/messages/count_tokens")):
            return self._anthropic
        if path.endswith(UNSERVED):
            return self._unserved
        return self._gemini if method_of(path) else None

    # -- calls -----------------------------------------------------------------------------------

    async def answer(
        self, sent: Sent | Answer, send: Callable[[], Awaitable[Any]] | None = None
    ) -> Any:
        """Answer a request of an async agent once the trainer has sampled.

        With ``send``, a request for a model that is not served here gets the result of ``send``.
        """
        if (
            send is not None
            and isinstance(sent, Sent)
            and not self._serves(sent, await _soon(sent, sent.model))
        ):
            try:
                return await send()
            except Exception as error:
                return _stranded(self.episode.routes, sent, error)
        call = await self.read_soon(sent)
        if isinstance(call, Answer):
            return call
        return await call.wait(self.reply_to(call))

    def answer_blocking(self, sent: Sent | Answer, send: Callable[[], Any] | None = None) -> Any:
        """Answer a request of a thread, as ``answer`` does."""
        if send is not None and isinstance(sent, Sent) and not self._serves(sent, sent.model()):
            try:
                return send()
            except Exception as error:
                return _stranded(self.episode.routes, sent, error)
        call = self.read(sent)
        if isinstance(call, Answer):
            if call.status >= 400:
                self.episode.refusals.hold_back_blocking(call.content.decode())
            return call
        try:
            with _failures_named(call):
                reply = self.episode.call_blocking(call.request)
            return call.answered(reply)
        except REFUSALS as error:
            return call.refused(error)

    async def reply_to(self, call: Call, has_reader: Callable[[], bool] = lambda: True) -> Reply:
        """Return the reply to a call; see ``Episode.call``.

        Raises:
            openai.APIStatusError, EnvClosedError, EpisodeEndedError: The call is refused, or its
                frozen model has failed (code ``model_failed``).
        """
        with _failures_named(call):
            return await self.episode.call(call.request, has_reader)

    def sent(self, method: str, path: str, content: bytes, url: str = "") -> Sent | Answer:
        """Return a request to one of the APIs, or the answer to any other request."""
        dialect, path = self.match(method, path), path.rstrip("/")
        if dialect is not None:
            return Sent(dialect, path, content, url)
        if method == "GET" and "/models" in path:
            return _models(self.episode.routes, path)
        return _not_found(method, path)

    async def read_soon(self, sent: Sent | Answer) -> Call | Answer:
        """Call ``read``, in a thread if the body is long, and delay a refusal."""
        call = sent if isinstance(sent, Answer) else await _soon(sent, partial(self.read, sent))
        if isinstance(call, Answer) and call.status >= 400:
            await self.episode.refusals.hold_back(call.content.decode())
        return call

    def read(self, sent: Sent | Answer) -> Call | Answer:
        """Return a request's model call, or the answer to a count or to a bad request."""
        if isinstance(sent, Answer):
            return sent
        if sent.dialect is self._unserved:
            return _not_found("POST", sent.path)
        try:
            request = self.asked(sent.dialect.read(sent.body))
            if sent.path.endswith(COUNTS):
                return _counted(self.renderer, request, sent)
        except openai.BadRequestError as error:
            return _refusal(sent.dialect, error)
        return Call(request, sent.dialect, sent.body, self.new_id())

    def _serves(self, sent: Sent, model: object) -> bool:
        """Whether a model is answered here. Other names are recorded, for messages."""
        if "untrained" in vars(self) and self.untrained._is_own(sent.url):
            return False  # only the server can tell, by the key, whose address was called
        routes = self.episode.routes
        if isinstance(model, str) and not routes.knows(model) and not self._is_own(sent.url):
            routes.strangers[model] = None
        return routes.knows(model)

    def _is_own(self, url: str) -> bool:
        """Whether a request goes to this rollout's HTTP address, which may accept other names."""
        return any(url.startswith(f"{one.root_url}/") for one in self.addresses.values())


@contextmanager
def _failures_named(call: Call) -> Iterator[None]:
    """Turn a frozen model's error into a 400 that names the model; SDKs would retry a 500."""
    try:
        yield
    except REFUSALS:
        raise
    except Exception as error:
        raise failed(call.request.model, f"failed: {type(error).__name__}: {error}") from error


def _stranded(routes: Routes, sent: Sent, error: Exception) -> Answer:
    """Return the answer to a call of another model whose host is unknown or blocked."""
    model, host = sent.model(), urlsplit(sent.url).hostname
    if not isinstance(model, str) or not _is_final(error):
        raise error
    message = f"{routes.hint(model)} {host or 'Its host'} cannot be reached from here."
    return _refusal(sent.dialect, bad_request(message, param="model", code="model_not_found"))


def _counted(renderer: PromptRenderer, request: ChatRequest, sent: Sent) -> Answer:
    if len(sent.content) > LONG_PROMPT:  # so this runs in a thread
        renderer = renderer.off_loop
    return Answer(200, _json(sent.dialect.counted(count_tokens(request, renderer))))


def _models(routes: Routes, path: str) -> Answer:
    name = path.partition("/models")[2].lstrip("/")
    if not name:
        every = [_card(one) for one in routes.names]
        whole = {"object": "list", "data": every, "models": every, "has_more": False}
        return Answer(200, _json(whole))
    try:
        routes.find(name)
    except openai.BadRequestError as error:
        return failure(404, error.message, "not_found_error", "model_not_found")
    return Answer(200, _json(_card(name)))


async def _soon(sent: Sent, work: Callable[[], Made]) -> Made:
    """Return the result of ``work`` on a request, in a thread if the request is long."""
    most = LONG_PROMPT if sent.path.endswith(COUNTS) else LONG_BODY
    return work() if len(sent.content) <= most else await off_loop(work)


def _card(name: str) -> dict[str, Any]:
    rest = {"object": "model", "created": 0, "owned_by": "evert"}
    return {"id": name, "name": f"models/{name}", **rest}


def _is_final(error: BaseException | None) -> bool:
    while error is not None:
        unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
        if unknown or isinstance(error, EvertError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def _refusal(dialect: Dialect, error: Exception) -> Answer:
    return Answer(_status(error), _json(dialect.error(_error_body(error), _status(error))))


def _status(error: Exception) -> int:
    return error.status_code if isinstance(error, openai.APIStatusError) else 400


def _error_body(error: Exception) -> Mapping[str, Any]:
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        return body
    code = "blocking_call" if isinstance(error, BlockingCallError) else "rollout_over"
    return {"message": str(error), "type": "invalid_request_error", "param": None, "code": code}


def _not_found(method: str, path: str) -> Answer:
    message = (
        f"Nothing answers {method} {path} here. There are POST /v1/chat/completions, "
        "/v1/responses, /v1/messages, /v1/messages/count_tokens, /v1/responses/input_tokens and "
        "/v1beta/models/NAME:generateContent, :streamGenerateContent and :countTokens, and GET "
        "/v1/models."
    )
    return failure(404, message, "not_found_error", "not_found")


def failure(status: int, message: str, kind: str, code: str) -> Answer:
    """Return the error to a request that reaches no API, in a form that all SDKs can read."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    named = {**error, "status": STATUSES[status]}
    return Answer(status, _json({"type": "error", "error": named}))
