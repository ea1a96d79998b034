"""Server-sent events, and a reply's text cut into the deltas of a stream.

The policy's reply is whole when it reaches an agent, so a stream is written from it afterwards:
the agents' code that puts deltas together runs as it would in production.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

DELTA_LENGTH = 16
"""Characters of a delta: several a sentence, so that code which joins them is put to use."""


def deltas(text: str) -> Iterator[str]:
    """``text`` in pieces."""
    for start in range(0, len(text), DELTA_LENGTH):
        yield text[start : start + DELTA_LENGTH]


def named_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Events whose name is their ``type``, as Anthropic and OpenAI's responses write them."""
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
    ).encode()


def bare_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Events without names, as Gemini's API writes them."""
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()


def unnamed_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Chunks, then ``[DONE]``, as OpenAI's chat completions write them."""
    return bare_events(events) + b"data: [DONE]\n\n"
