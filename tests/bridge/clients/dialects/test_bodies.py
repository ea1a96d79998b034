"""Request bodies are parsed as the standard library would parse them, unless they exceed a limit.
Long bodies are parsed off the event loop. Server-sent events arrive unchanged, whichever client
reads them."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from openai._streaming import SSEDecoder
from tests.kit import Patch, as_agent
from tests.nightly import draws

from evert import AgentClient
from evert.bridge.clients.dialects import bodies
from evert.bridge.clients.dialects.bodies import LONG_BODY, MAX_VALUES, read_body
from evert.bridge.clients.dialects.events import DELTA_LENGTH, bare_events, deltas, named_events

TEXTS = st.text(st.sampled_from('ab"\\\n\x7fé🐕\ud83d\u2028/u'), max_size=40)
OBJECTS = st.dictionaries(
    TEXTS,
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
        max_leaves=12,
    ),
    max_size=4,
)


@pytest.fixture
def all_are_long(monkeypatch: Patch) -> None:
    monkeypatch.setattr(bodies, "LONG_BODY", 0)


@pytest.mark.usefixtures("all_are_long")
@settings(max_examples=draws(1000), deadline=None, derandomize=True)
@given(body=OBJECTS, ascii_only=st.booleans(), encoding=st.sampled_from(["utf-8", "utf-16"]))
def test_a_long_body_is_parsed_like_the_standard_library_would(
    body: dict[str, Any], ascii_only: bool, encoding: str
) -> None:
    text = json.dumps(body, ensure_ascii=ascii_only)

    assert read_body(text.encode(encoding, "surrogatepass")) == json.loads(text)


@pytest.mark.usefixtures("all_are_long")
@settings(max_examples=draws(1000), deadline=None, derandomize=True)
@given(body=OBJECTS, place=st.integers(0, 200), byte=st.integers(0, 255), cut=st.booleans())
def test_a_broken_body_is_rejected_if_the_standard_library_rejects_it(
    body: dict[str, Any], place: int, byte: int, cut: bool
) -> None:
    content = json.dumps(body).encode()
    place %= len(content)
    broken = content[:place] if cut else content[:place] + bytes([byte]) + content[place + 1 :]
    try:
        expected = json.loads(broken)
    except (ValueError, RecursionError):
        expected = None
    if isinstance(expected, dict):
        assert repr(read_body(broken)) == repr(expected)
    else:
        with pytest.raises(openai.BadRequestError):
            read_body(broken)


@pytest.mark.parametrize("value", ["[]", "{}", "1", '""', "null"])
def test_a_body_with_too_many_values_is_rejected(value: str) -> None:
    body = f'{{"messages": [{f"{value}," * MAX_VALUES}1]}}'
    with pytest.raises(openai.BadRequestError, match="The body has more than 262144 values"):
        read_body(body.encode())


def test_a_long_string_counts_as_one_value_and_an_unterminated_one_is_rejected() -> None:
    for text in ("," * MAX_VALUES, '\\"[],' * MAX_VALUES):
        assert read_body(f'{{"x": "{text}"}}'.encode()) == {"x": text.replace("\\", "")}
    with pytest.raises(openai.BadRequestError, match="The body is not valid JSON"):
        read_body(b'{"x": ' + b'"\\,' * MAX_VALUES)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"x":', "}")])
def test_a_long_body_that_is_nested_too_deeply_is_rejected(opening: str, closing: str) -> None:
    with pytest.raises(openai.BadRequestError, match=r"nested more than 100|recursion depth"):
        read_body(opening.encode() * LONG_BODY)
    deep = opening * 101 + "1" + closing * 101
    with pytest.raises(openai.BadRequestError, match="nested more than 100"):
        read_body(f'{{"text": "{"x" * LONG_BODY}", "deep": {deep}}}'.encode())


@asynccontextmanager
async def turns_of_the_loop() -> AsyncIterator[list[int]]:
    """Count event loop iterations while the block runs."""
    turns = [0]

    async def run() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    turns[0] = 0
    yield turns
    task.cancel()


LONG = "word " * 60_000
QUESTION = {"role": "user", "content": LONG}


@pytest.mark.parametrize("served", [True, False], ids=["over HTTP", "in process"])
@as_agent()
async def test_counting_the_tokens_of_a_long_text_does_not_block_the_loop(
    client: AgentClient, served: bool
) -> None:
    sdk, claude = client.openai, client.anthropic
    if served:
        address = client.serve()
        options: Any = {"api_key": address.api_key, "timeout": 600}
        sdk = openai.AsyncOpenAI(base_url=address.base_url, **options)
        claude = anthropic.AsyncAnthropic(base_url=address.root_url, **options)
    fields: Any = {"model": "other", "messages": [QUESTION]}
    async with sdk, claude:
        for counted in (
            sdk.responses.input_tokens.count(model="other", input=LONG),
            claude.messages.count_tokens(**fields),
        ):
            async with turns_of_the_loop() as turns:
                assert (await counted).input_tokens > 60_000
            assert turns[0] > 20


@as_agent()
async def test_reading_a_long_body_does_not_block_the_loop(client: AgentClient) -> None:
    body = json.dumps({"messages": [QUESTION], "metadata": {"x": [[]] * 200_000}}).encode()
    async with turns_of_the_loop() as turns:
        endpoint = client._endpoint
        await endpoint.read_soon(endpoint.route("POST", "/v1/chat/completions", body))
    assert turns[0] > 10


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=100)


@given(ANY_TEXT)
@example("The quick brown fox jumps over the lazy dog.")
def test_the_deltas_concatenate_to_the_text(text: str) -> None:
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


def test_server_sent_events_survive_any_chunking() -> None:
    for cut in (1, 7, 10_000):
        named_chunks, unnamed = (
            decoded(named_events(EVENTS), cut),
            decoded(bare_events(EVENTS), cut),
        )
        for events, names in [(named_chunks, ["one", "two"]), (unnamed, [None, None])]:
            assert [event.event for event in events] == names
            assert [event.json() for event in events] == EVENTS
    assert named_events([]) == b""
    assert bare_events([]) == b""


@pytest.mark.parametrize("library", [httpx, httpx2])
def test_reading_line_by_line_gives_whole_events(library: Any) -> None:
    """Some clients split lines at every Unicode line break."""
    response: Any = library.Response(200, content=bare_events(EVENTS))
    lines = [line for line in response.iter_lines() if line]
    assert [json.loads(line.removeprefix("data: ")) for line in lines] == EVENTS
