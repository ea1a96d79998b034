"""Converts HTTP requests to model calls, and replies to HTTP responses.

    POST .../chat/completions        OpenAI's Chat Completions API
    POST .../responses               OpenAI's Responses API
    POST .../messages                Anthropic's Messages API
    POST .../models/NAME:generateContent, :streamGenerateContent    Gemini's generateContent
    POST .../messages/count_tokens, .../responses/input_tokens, .../models/NAME:countTokens
                                     counts the tokens of a prompt
    GET  .../models[/name]           lists the available models

Errors are returned as 400 responses (404 for unknown paths) in the format of the API that was
called, so that the client's SDK raises its own exception.
"""

import itertools
import json
import secrets
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, TypeVar

import openai

from evert.bridge.chat.fields import json_object
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.anthropic_messages import AnthropicMessages
from evert.bridge.clients.dialects.bodies import LONG_BODY, read_body
from evert.bridge.clients.dialects.chat_completions import ChatCompletions
from evert.bridge.clients.dialects.dialect import Dialect
from evert.bridge.clients.dialects.events import Stream, as_list
from evert.bridge.clients.dialects.gemini import STATUSES, Gemini, method_of
from evert.bridge.clients.dialects.responses import Responses
from evert.bridge.conversations.matching import count_tokens
from evert.bridge.errors import BlockingCallError, EnvClosedError, EpisodeEndedError
from evert.bridge.off_loop import off_loop
from evert.bridge.tokens.renderer import PromptRenderer

REFUSALS = (openai.APIStatusError, EnvClosedError, EpisodeEndedError, BlockingCallError)
"""Errors that are returned as responses: HTTP errors, the end of the episode, blocking calls."""

Result = TypeVar("Result")

JSON = "application/json"
EVENTS = "text/event-stream"

COUNTS = ("/count_tokens", "/input_tokens", ":countTokens")
"""Path suffixes of requests that only count tokens."""

UNSERVED = ("/completions", "/complete", "/responses/compact", "/messages/batches")
"""Path suffixes of APIs that evert does not support."""

LONG_PROMPT = 20_000
"""Size in bytes above which tokens are counted in a thread. Shorter prompts take a few ms."""


@dataclass(frozen=True, slots=True)
class ApiResponse:
    """An HTTP response."""

    status: int
    content: bytes
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class ApiCall:
    """A model call that was parsed from an HTTP request."""

    request: ChatRequest
    dialect: Dialect
    body: Mapping[str, Any]
    number: str
    size: int  # size of the body in bytes

    @property
    def stream(self) -> bool:
        """Whether the client requested streaming."""
        return self.body.get("stream") is True

    def answered(self, reply: Reply) -> ApiResponse:
        """Return the response for a reply."""
        answer = self.written(reply)
        if not self.stream:
            return ApiResponse(200, json_bytes(answer))
        dialect, stream = self.dialect, Stream.of(answer, reply.reasoning, reply.text)
        events = as_list(dialect.events(stream, self.body))
        return ApiResponse(200, dialect.framed(events) + dialect.ending, EVENTS)

    def written(self, reply: Reply) -> dict[str, Any]:
        """Return the JSON object for a reply."""
        return self.dialect.write(reply, self.request, self.number, self.body)

    def refused(self, error: Exception) -> ApiResponse:
        """Return the response for an error."""
        return refusal(self.dialect, error)

    def refused_late(self, error: Exception, number: int = 0) -> bytes:
        """Return the event that reports an error in a stream after the first ``number`` events."""
        return self.dialect.error_event(_error_body(error), _status(error), number)

    async def wait(self, reply: Awaitable[Reply]) -> ApiResponse:
        """Wait for a reply; return the HTTP response for the reply or for the error."""
        try:
            return self.answered(await reply)
        except REFUSALS as error:
            return self.refused(error)


@dataclass
class ApiRequest:
    """An HTTP request to one of the APIs. Its body is only parsed once."""

    dialect: Dialect
    path: str  # without a trailing slash
    content: bytes
    url: str = ""

    @cached_property
    def body(self) -> Mapping[str, Any]:
        """The parsed body, including fields taken from the path."""
        return self.dialect.addressed(self.path, read_body(self.content))

    def model(self) -> object:
        """Return the model name, or None. This works even if the body will be refused."""
        try:
            return self.body.get("model")
        except openai.BadRequestError:
            body = json_object(self.content)
            return None if body is None else self.dialect.addressed(self.path, body).get("model")


class Api(ABC):
    """The APIs for one rollout or for a served model."""

    def __init__(self, model: str) -> None:
        self._numbers = itertools.count()
        self._prefix = secrets.token_hex(6)  # makes ids unique across rollouts
        self._chat = ChatCompletions(model)
        self._unserved = ChatCompletions(model)
        self._responses = Responses(model)
        self._anthropic = AnthropicMessages(model)
        self._gemini = Gemini(model)

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The names of the available models."""

    @abstractmethod
    def check_model(self, name: str) -> None:
        """Raise an error if the model is not available."""

    @abstractmethod
    def renderer_of(self, request: ChatRequest) -> PromptRenderer:
        """Return the renderer for the model that is called."""

    def adapt(self, request: ChatRequest) -> ChatRequest:
        """Return the request unchanged. Subclasses can override this to change the request."""
        return request

    @abstractmethod
    async def hold_back(self, refusal: str) -> None:
        """Delay an error, so that a client that keeps retrying does not slow down other clients."""

    def new_id(self) -> str:
        """Return a unique id for a reply."""
        return f"{self._prefix}{next(self._numbers)}"

    def match(self, method: str, path: str) -> Dialect | None:
        """Return the API for a path, or None.

        If a path belongs to an unsupported API that calls a model, an API is also returned, so that
        ``read`` can refuse the request.
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

    def route(
        self, method: str, path: str, content: bytes, url: str = ""
    ) -> ApiRequest | ApiResponse:
        """Return an ``ApiRequest`` for a model call or token count; answer all other requests."""
        dialect, path = self.match(method, path), path.rstrip("/")
        if dialect is not None:
            return ApiRequest(dialect, path, content, url)
        if method == "GET" and "/models" in path:
            return _models(self, path)
        return _not_found(method, path)

    async def read_soon(self, api_request: ApiRequest | ApiResponse) -> ApiCall | ApiResponse:
        """Call ``read``, in a thread if the body is long. Error responses are delayed."""
        call: ApiCall | ApiResponse
        if isinstance(api_request, ApiResponse):
            call = api_request
        else:
            call = await soon(api_request, partial(self.read, api_request))
        if isinstance(call, ApiResponse) and call.status >= 400:
            await self.hold_back(call.content.decode())
        return call

    def read(self, api_request: ApiRequest | ApiResponse) -> ApiCall | ApiResponse:
        """Parse a request. Return a model call, or the response for a token count or an error."""
        if isinstance(api_request, ApiResponse):
            return api_request
        if api_request.dialect is self._unserved:
            return _not_found("POST", api_request.path)
        try:
            request = self.adapt(api_request.dialect.read(api_request.body))
            if api_request.path.endswith(COUNTS):
                return _count(self.renderer_of(request), request, api_request)
        except openai.APIStatusError as error:
            return refusal(api_request.dialect, error)
        return ApiCall(
            request, api_request.dialect, api_request.body, self.new_id(), len(api_request.content)
        )


def _count(renderer: PromptRenderer, request: ChatRequest, api_request: ApiRequest) -> ApiResponse:
    if len(api_request.content) > LONG_PROMPT:  # we are in a thread
        renderer = renderer.off_loop
    return ApiResponse(
        200, json_bytes(api_request.dialect.counted(count_tokens(request, renderer)))
    )


def _models(api: Api, path: str) -> ApiResponse:
    name = path.partition("/models")[2].lstrip("/")
    if not name:
        return model_list([model_card(model) for model in api.names])
    try:
        api.check_model(name)
    except openai.APIStatusError as error:
        return failure(404, error.message, "not_found_error", "model_not_found")
    return ApiResponse(200, json_bytes(model_card(name)))


async def soon(api_request: ApiRequest, work: Callable[[], Result]) -> Result:
    """Run ``work`` for a request, in a thread if the request is long."""
    limit = LONG_PROMPT if api_request.path.endswith(COUNTS) else LONG_BODY
    return work() if len(api_request.content) <= limit else await off_loop(work)


def model_card(name: str) -> dict[str, Any]:
    """Return a model's description, with the fields that each of the SDKs expects."""
    openai_fields = {"object": "model", "created": 0, "owned_by": "evert"}
    created = "1970-01-01T00:00:00Z"
    anthropic_fields = {"type": "model", "display_name": name, "created_at": created}
    return {"id": name, "name": f"models/{name}", **openai_fields, **anthropic_fields}


def model_list(cards: Sequence[Mapping[str, Any]]) -> ApiResponse:
    """Return the list of models in a format that works for all APIs."""
    listing = {"object": "list", "data": cards, "models": cards, "has_more": False}
    return ApiResponse(200, json_bytes(listing))


def json_bytes(value: object) -> bytes:
    """Serialize a value to JSON."""
    return json.dumps(value).encode()


def refusal(dialect: Dialect, error: Exception) -> ApiResponse:
    """Return the response for an error, in the format of the given API."""
    return ApiResponse(
        _status(error), json_bytes(dialect.error(_error_body(error), _status(error)))
    )


def _status(error: Exception) -> int:
    return error.status_code if isinstance(error, openai.APIStatusError) else 400


def _error_body(error: Exception) -> Mapping[str, Any]:
    body = getattr(error, "body", None)
    if isinstance(body, Mapping):
        return body
    code = "blocking_call" if isinstance(error, BlockingCallError) else "rollout_over"
    return {"message": str(error), "type": "invalid_request_error", "param": None, "code": code}


def _not_found(method: str, path: str) -> ApiResponse:
    message = (
        f"Unknown endpoint: {method} {path}. Supported endpoints: POST /v1/chat/completions, "
        "/v1/responses, /v1/messages, /v1/messages/count_tokens, /v1/responses/input_tokens and "
        "/v1beta/models/NAME:generateContent, :streamGenerateContent and :countTokens, and GET "
        "/v1/models."
    )
    return failure(404, message, "not_found_error", "not_found")


def failure(status: int, message: str, kind: str, code: str) -> ApiResponse:
    """Return an error that is not specific to one API, in a format that all SDKs can read."""
    error = {"message": message, "type": kind, "param": None, "code": code}
    body = {**error, "status": STATUSES[status]}
    return ApiResponse(status, json_bytes({"type": "error", "error": body}))
