"""``Dialect``: what every API has to say of itself, and what all of them share."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.events import named_events


class Dialect(ABC):
    """One API of one rollout."""

    ping = b": waiting\n\n"
    framed = staticmethod(named_events)  # events as they go over the wire

    def __init__(self, default_model: str) -> None:
        self._default_model = default_model

    def addressed(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The body with what the path says of the call; most APIs say it all in the body."""
        return body

    @abstractmethod
    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """The request of a body."""

    @abstractmethod
    def write(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The JSON object of a whole answer; ``number`` tells it from the rollout's others."""

    @abstractmethod
    def events(self, whole: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """What ``write`` made of a reply to ``body``, as the events of a stream."""

    def stream(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> bytes:
        """The same as ``write``, as server-sent events."""
        return self.framed(self.events(self.write(reply, request, number, body), body))

    def counted(self, count: int) -> dict[str, Any]:
        """The JSON object that says how many tokens a prompt has."""
        return {"input_tokens": count}

    def error(self, error: Mapping[str, Any], status: int) -> dict[str, Any]:
        """The JSON object of a refusal, from the OpenAI SDK's ``error.body`` and HTTP's status."""
        return {"error": dict(error)}

    def error_event(self, error: Mapping[str, Any], status: int) -> bytes:
        """A refusal in the middle of a stream."""
        return self.framed([self.error(error, status)])
