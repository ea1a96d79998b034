"""The API of one rollout, independent of the transport.

Calls after the end of the episode get a 400 error, because it is the only error that all frameworks
pass through unchanged. If the agent keeps making calls, ``AgentAborted`` is raised.
"""

import copy
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

from evert.bridge.chat.bad_requests import bad_request, failed
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.api import (
    REFUSALS,
    Api,
    ApiCall,
    ApiRequest,
    ApiResponse,
    refusal,
    soon,
)
from evert.bridge.episode.episode import Episode
from evert.bridge.episode.routes import Routes, seat_model
from evert.bridge.errors import EvertError, InvalidAgentError
from evert.bridge.tokens.renderer import PromptRenderer


class Endpoint(Api):
    """The API of one rollout, or of one of its seats."""

    def __init__(self, episode: Episode, model: str, renderer: PromptRenderer) -> None:
        super().__init__(model)
        self.episode = episode
        self.notes = episode.routes.notes_of(model)
        self.model = model
        self.renderer = renderer
        self.trains = True
        self.addresses: dict[str, Any] = {}
        self._seats: dict[str, Endpoint] = {}

    def seat(self, name: str) -> "Endpoint":
        """Return the API for a seat. Returns the same object each time."""
        if name not in self._seats:
            routes, model = self.episode.routes, seat_model(name)
            if model not in routes.names:
                raise InvalidAgentError(
                    f"This episode has no seat {name!r}. Available seats: "
                    f"{', '.join(routes.seats) or 'none (pass seats= to the builder)'}."
                )
            seat = Endpoint(self.episode, model, self.renderer)
            seat._seats = self._seats
            self._seats[name] = seat
        return self._seats[name] if self.trains else self._seats[name].untrained

    @cached_property
    def untrained(self) -> "Endpoint":
        """The same API, but its replies are not trained on."""
        endpoint = copy.copy(self)
        endpoint.trains, endpoint.addresses = False, {}
        return endpoint

    @property
    def is_over(self) -> bool:
        """Whether the agent has finished."""
        return self.episode.is_over

    @property
    def names(self) -> Sequence[str]:
        """The names of the available models."""
        return self.episode.routes.names

    def check_model(self, name: str) -> None:
        """Raise an error if the model is not available."""
        self.episode.routes.find(name)

    def renderer_of(self, request: ChatRequest) -> PromptRenderer:
        """Return the Env's renderer."""
        return self.renderer

    async def hold_back(self, refusal: str) -> None:
        """Delay an error (see ``Refusals``)."""
        await self.episode.refusals.hold_back(refusal)

    def adapt(self, request: ChatRequest) -> ChatRequest:
        """Mark the request as untrained if this is an untrained API."""
        return request if self.trains else replace(request, train=False)

    # -- calls -----------------------------------------------------------------------------------

    async def answer(
        self,
        api_request: ApiRequest | ApiResponse,
        send: Callable[[], Awaitable[Any]] | None = None,
    ) -> Any:
        """Answer a request from an async agent, waiting for the trainer to sample the reply.

        If ``send`` is given, it is used to forward requests for other models to their destination.
        """
        if (
            send is not None
            and isinstance(api_request, ApiRequest)
            and not self._serves(api_request, await soon(api_request, api_request.model))
        ):
            try:
                return await send()
            except Exception as error:
                return _unreachable(self.episode.routes, api_request, error)
        call = await self.read_soon(api_request)
        if isinstance(call, ApiResponse):
            return call
        return await call.wait(self.reply_to(call))

    def answer_blocking(
        self, api_request: ApiRequest | ApiResponse, send: Callable[[], Any] | None = None
    ) -> Any:
        """Answer a request from a thread (see ``answer``)."""
        if (
            send is not None
            and isinstance(api_request, ApiRequest)
            and not self._serves(api_request, api_request.model())
        ):
            try:
                return send()
            except Exception as error:
                return _unreachable(self.episode.routes, api_request, error)
        call = self.read(api_request)
        if isinstance(call, ApiResponse):
            if call.status >= 400:
                self.episode.refusals.hold_back_blocking(call.content.decode())
            return call
        try:
            with _failures_named(call):
                reply = self.episode.call_blocking(call.request)
            return call.answered(reply)
        except REFUSALS as error:
            return call.refused(error)

    async def reply_to(self, call: ApiCall, has_reader: Callable[[], bool] = lambda: True) -> Reply:
        """Wait for the reply to a call (see ``Episode.call``).

        Raises:
            openai.APIStatusError, EnvClosedError, EpisodeEndedError: The call was refused, or the
                frozen model failed (code ``model_failed``).
        """
        with _failures_named(call):
            return await self.episode.call(call.request, has_reader)

    def _serves(self, api_request: ApiRequest, model: object) -> bool:
        """Return whether the rollout answers calls to a model.

        Unknown names are recorded for error messages.
        """
        if "untrained" in vars(self) and self.untrained._is_own(api_request.url):
            return False  # forward it: the server uses the key to choose the API
        routes = self.episode.routes
        if isinstance(model, str) and not routes.knows(model) and not self._is_own(api_request.url):
            routes.strangers[model] = None
        return routes.knows(model)

    def _is_own(self, url: str) -> bool:
        """Whether a request is for this rollout's HTTP server, which may accept unknown models."""
        return any(url.startswith(f"{address.root_url}/") for address in self.addresses.values())


@contextmanager
def _failures_named(call: ApiCall) -> Iterator[None]:
    """Convert a frozen model's error to a 400 error that names the model. SDKs retry 500 errors."""
    try:
        yield
    except REFUSALS:
        raise
    except Exception as error:
        raise failed(call.request.model, f"failed: {type(error).__name__}: {error}") from error


def _unreachable(routes: Routes, api_request: ApiRequest, error: Exception) -> ApiResponse:
    """Return the response for a call to another model whose host is unknown or blocked."""
    model, host = api_request.model(), urlsplit(api_request.url).hostname
    if not isinstance(model, str) or not _is_final(error):
        raise error
    message = f"{routes.hint(model)} {host or 'Its host'} cannot be reached from here."
    return refusal(api_request.dialect, bad_request(message, param="model", code="model_not_found"))


def _is_final(error: BaseException | None) -> bool:
    while error is not None:
        unknown = isinstance(error, socket.gaierror) and error.errno == socket.EAI_NONAME
        if unknown or isinstance(error, EvertError):
            return True
        error = error.__cause__ or error.__context__
    return False
