"""``Dialect``: the base class of all APIs."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.events import Stream, named_events

SAMPLING = ("temperature", "top_p", "top_k", "seed")
"""The request fields with sampling parameters."""


class Dialect(ABC):
    """One API, as one rollout uses it."""

    ping = b": waiting\n\n"
    framed = staticmethod(named_events)  # encodes events
    ending = b""  # ends a stream

    def __init__(self, default_model: str) -> None:
        self._default_model = default_model

    def addressed(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body with the fields that the path contains; most APIs have no such fields."""
        return body

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Return the request in a body; raise the 400 if it is malformed."""

    @abstractmethod
    def write(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the JSON object of a complete answer; ``number`` is unique in the rollout."""

    @abstractmethod
    def events(self, stream: Stream, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a stream, which has JSON objects that ``write`` made for ``body``."""

    def counted(self, count: int) -> dict[str, Any]:
        """Return the JSON object of a prompt's token count."""
        return {"input_tokens": count}

    def sampling(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's sampling parameters. Only a served model uses them."""
        return {name: body[name] for name in SAMPLING if body.get(name) is not None}

    def error(self, error: Mapping[str, Any], status: int) -> dict[str, Any]:
        """Return a refusal's JSON; ``error`` is the ``body`` of the OpenAI SDK's exception."""
        return {"error": dict(error)}

    def error_event(self, error: Mapping[str, Any], status: int, number: int = 0) -> bytes:
        """Return the event of a refusal, for a stream that has begun with ``number`` events."""
        return self.framed([self.error(error, status)]) + self.ending
