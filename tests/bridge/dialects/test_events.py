"""Server-sent events: what any reader of streams gets from them is what was written."""

import json
from typing import Any

import httpx
import httpx2
from hypothesis import example, given
from hypothesis import strategies as st
from openai._streaming import SSEDecoder

from evert.bridge.clients.dialects.events import DELTA_LENGTH, deltas, named_events, unnamed_events

TEXTS = st.text(st.characters(exclude_categories=()), max_size=100)


@given(TEXTS)
@example("The quick brown fox jumps over the lazy dog.")
def test_the_deltas_put_together_are_the_text(text: str) -> None:
    pieces = [*deltas(text)]
    assert "".join(pieces) == text
    assert all(0 < len(piece) <= DELTA_LENGTH for piece in pieces)
    assert not text.startswith("The quick") or len(pieces) == 3


EVENTS: list[dict[str, Any]] = [
    {"type": "one", "text": "a\nb\r\n\u2028\x85"},
    {"type": "two", "x": [1, None]},
]


def decoded(stream: bytes, cut: int) -> list[Any]:
    pieces = [stream[start : start + cut] for start in range(0, len(stream), cut)]
    return [*SSEDecoder().iter_bytes(iter(pieces))]


def test_events_are_read_as_they_were_written_however_they_are_cut() -> None:
    for cut in (1, 7, 10_000):
        named, unnamed = decoded(named_events(EVENTS), cut), decoded(unnamed_events(EVENTS), cut)
        assert unnamed.pop().data == "[DONE]"
        for events, names in [(named, ["one", "two"]), (unnamed, [None, None])]:
            assert [event.event for event in events] == names
            assert [event.json() for event in events] == EVENTS
    assert named_events([]) == b""
    assert unnamed_events([]) == b"data: [DONE]\n\n"


def test_a_reader_of_lines_gets_whole_events() -> None:
    """Some split at every kind of line break that Unicode knows."""
    for library in (httpx, httpx2):
        response: Any = library.Response(200, content=unnamed_events(EVENTS))
        lines = [line for line in response.iter_lines() if line]
        assert [json.loads(line.removeprefix("data: ")) for line in lines[:-1]] == EVENTS
