"""Server-sent events, and a reply's text cut into the deltas of a stream.

A whole reply is written as a stream of deltas, so that agents' code that joins deltas is used.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

DELTA_LENGTH = 16
"""Characters of a delta: a sentence has several, so that code which joins them is used."""


def deltas(text: str) -> Iterator[str]:
    """Yield ``text`` in pieces of ``DELTA_LENGTH``."""
    for start in range(0, len(text), DELTA_LENGTH):
        yield text[start : start + DELTA_LENGTH]


def named_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode events named by their ``type``, as in Anthropic's API and OpenAI's responses."""
    return "".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events
    ).encode()


def bare_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode events without names, as in Gemini's API."""
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()


def unnamed_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Encode chunks and a final ``[DONE]``, as in OpenAI's chat completions."""
    return bare_events(events) + b"data: [DONE]\n\n"
