"""Server-sent events, and ``Stream``, which the dialects convert to events.

Even complete replies are streamed as deltas, to exercise the agent's code for joining deltas.
"""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

DELTA_LENGTH = 16
"""Characters per delta. This is small enough to split a single sentence into several deltas."""


def deltas(text: str) -> Iterator[str]:
    """Split ``text`` into pieces of ``DELTA_LENGTH`` characters."""
    for start in range(0, len(text), DELTA_LENGTH):
        yield text[start : start + DELTA_LENGTH]


async def _pieces(text: str) -> AsyncIterator[str]:
    for piece in deltas(text):
        yield piece


@dataclass
class Stream:
    """A reply to stream, either complete or still being sampled."""

    head: Mapping[str, Any]  # the response's JSON object, possibly with an empty reply
    thoughts: AsyncIterator[str]  # pieces of the reasoning, which comes first
    text: AsyncIterator[str]  # pieces of the text
    answer: Mapping[str, Any]  # the complete response, available once ``text`` is exhausted

    @classmethod
    def of(cls, answer: Mapping[str, Any], thoughts: str | None, text: str) -> "Stream":
        """Create a stream from a complete reply. Its iterators never block."""
        return cls(answer, _pieces(thoughts or ""), _pieces(text), answer)


def as_list(events: AsyncIterator[T]) -> list[T]:
    """Collect the items of an async iterator without an event loop. The iterator must not block."""

    async def listing() -> list[T]:
        return [event async for event in events]

    try:
        listing().send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("Streaming a complete reply must not block.")


def named_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode events with their ``type`` as the event name (Anthropic, OpenAI Responses)."""
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
    ).encode()


def bare_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode events without event names (Gemini, OpenAI Chat Completions)."""
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
