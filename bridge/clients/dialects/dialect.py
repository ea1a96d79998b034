"""``Dialect``: the base class for all APIs."""

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import Any

from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.events import Stream, named_events

SAMPLING = ("temperature", "top_p", "top_k", "seed")
"""Request fields that contain sampling parameters."""


class Dialect(ABC):
    """An API, as used by one rollout."""

    ping = b": waiting\n\n"
    framed = staticmethod(named_events)  # encodes events
    ending = b""  # sent at the end of a stream

    def __init__(self, default_model: str) -> None:
        self._default_model = default_model

    def addressed(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add fields from the path to the body, for APIs that need it."""
        return body

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Parse a request body. Raises a 400 error if it is malformed."""

    @abstractmethod
    def write(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Build the JSON object for a complete reply. ``number`` is unique within the rollout."""

    @abstractmethod
    def events(self, stream: Stream, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield a stream's events. ``write`` built its ``head`` and ``answer`` from ``body``."""

    def counted(self, count: int) -> dict[str, Any]:
        """Build the JSON object for a token count."""
        return {"input_tokens": count}

    def sampling(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's sampling parameters, which are only used by served models."""
        return {name: body[name] for name in SAMPLING if body.get(name) is not None}

    def error(self, error: Mapping[str, Any], status: int) -> dict[str, Any]:
        """Return the JSON object for an error, given the ``body`` of the OpenAI SDK's exception."""
        return {"error": dict(error)}

    def error_event(self, error: Mapping[str, Any], status: int, number: int = 0) -> bytes:
        """Return the event that reports an error in a stream after the first ``number`` events."""
        return self.framed([self.error(error, status)]) + self.ending
