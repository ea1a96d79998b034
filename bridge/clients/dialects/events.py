"""Server-sent events, and the ``Stream`` from which every dialect makes the events of a reply.

Even a complete reply is streamed in deltas, so that agents run their own code for joining deltas.
"""

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

DELTA_LENGTH = 16
"""Characters per delta: few enough that even one sentence is split into several deltas."""


def deltas(text: str) -> Iterator[str]:
    """Yield ``text`` in pieces of ``DELTA_LENGTH``."""
    for start in range(0, len(text), DELTA_LENGTH):
        yield text[start : start + DELTA_LENGTH]


async def _pieces(text: str) -> AsyncIterator[str]:
    for piece in deltas(text):
        yield piece


@dataclass
class Stream:
    """A reply to write as events, when it is complete or while it is sampled."""

    head: Mapping[str, Any]  # the answer's JSON object, perhaps with a reply that is still empty
    thoughts: AsyncIterator[str]  # pieces of the reply's reasoning, which come first
    text: AsyncIterator[str]  # pieces of the reply's text
    answer: Mapping[str, Any]  # the JSON object of the complete answer, once ``text`` has ended

    @classmethod
    def of(cls, answer: Mapping[str, Any], thoughts: str | None, text: str) -> "Stream":
        """Return the stream of a complete reply. Its iterators never wait."""
        return cls(answer, _pieces(thoughts or ""), _pieces(text), answer)


def as_list(events: AsyncIterator[T]) -> list[T]:
    """Return all items of an iterator that never waits, without an event loop."""

    async def listing() -> list[T]:
        return [event async for event in events]

    try:
        listing().send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise RuntimeError("The events of a complete reply must not wait.")


def named_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode events named by their ``type``, as in Anthropic's API and OpenAI's responses."""
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
    ).encode()


def bare_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode events without names, as in Gemini's API and OpenAI's chat completions."""
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
