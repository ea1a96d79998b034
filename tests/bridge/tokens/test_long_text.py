"""Long texts anywhere in a request are rendered in threads."""

import json
import threading
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from tests.kit import Patch, ask, assistant, play, reward, start, tool, user
from tests.kit.renderers import MakeRenderer
from tinker_cookbook.renderers import Message
from tinker_cookbook.rl.types import InitialObservationOverflow

from evert import AgentClient, ChatAgentEnv
from evert.bridge.tokens.bases import default_renderer
from evert.bridge.tokens.escaping import MarkedTokenizer
from evert.bridge.tokens.loop_budget import (
    LONG_TEXT,
    LongTextError,
    check_text,
    check_tokens,
    least_tokens,
)
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer, with_tokenizer

Encoded = dict[bool, list[int]]


@pytest.fixture
def encoded(monkeypatch: Patch) -> Encoded:
    """Record the lengths of texts encoded on the event loop (True) and in threads (False)."""
    lengths: Encoded = {True: [0], False: [0]}
    encode = MarkedTokenizer.encode

    def counting(tokenizer: MarkedTokenizer, text: str, **options: Any) -> list[int]:
        lengths[threading.current_thread() is threading.main_thread()].append(len(text))
        return encode(tokenizer, text, **options)

    monkeypatch.setattr(MarkedTokenizer, "encode", counting)
    return lengths


LONG = "A long text. " * 5000
LONG_CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "f", "arguments": json.dumps({"x": LONG})},
}
LONG_SCHEMA = {"type": "object", "description": LONG}
LONG_FORMAT = {"type": "json_schema", "json_schema": {"name": "s", "schema": LONG_SCHEMA}}


REQUESTS: dict[str, dict[str, Any]] = {
    "content": {"messages": [user(LONG)]},
    "messages": {"messages": [user("x" * 9000)] * 3},
    "part": {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]},
    "thinking": {"messages": [user("a"), {**assistant("b"), "reasoning": LONG}]},
    "arguments": {"messages": [user("a"), {**assistant(""), "tool_calls": [LONG_CALL]}]},
    "description": {"messages": [user("a")], "tools": [tool("f", description=LONG)]},
    "schema": {"messages": [user("a")], "tools": [tool("f", parameters=LONG_SCHEMA)]},
    "format": {"messages": [user("a")], "response_format": LONG_FORMAT},
}


@pytest.mark.parametrize("place", REQUESTS)
async def test_long_texts_are_not_tokenised_on_the_event_loop(place: str, encoded: Encoded) -> None:
    async def agent(client: AgentClient) -> float:
        await client.chat.completions.create(**REQUESTS[place])
        return 1.0

    env = await start(agent)
    await env.close()
    assert sum(encoded[False]) > LONG_TEXT > sum(encoded[True])


async def test_rerendering_a_long_history_does_not_block_the_event_loop(
    make_renderer: MakeRenderer, encoded: Encoded
) -> None:
    async def agent(client: AgentClient) -> float:
        messages = [user(LONG)]
        for _ in range(3):
            messages += [assistant(await ask(client, *messages)), user("Go on.")]
        return 1.0

    env = await start(agent, renderer=make_renderer("qwen3"))
    in_threads = len(encoded[False])
    for _ in range(2):
        await env.step(prompt_renderer(env.renderer).encode("Fine.<|im_end|>"))
    await env.close()
    assert len(encoded[False]) > in_threads
    assert max(encoded[True]) < LONG_TEXT


@pytest.mark.parametrize("words", [10, 8_000])
async def test_only_long_replies_are_parsed_off_the_event_loop(
    words: int, monkeypatch: Patch
) -> None:
    on_loop: set[bool] = set()
    parse = PromptRenderer.parse

    def noting(renderer: PromptRenderer, *arguments: Any) -> Any:
        on_loop.add(threading.current_thread() is threading.main_thread())
        return parse(renderer, *arguments)

    monkeypatch.setattr(PromptRenderer, "parse", noting)
    text = "word " * words + "end"

    async def agent(client: AgentClient) -> float:
        return float(await ask(client) == text)

    assert reward(await play(agent, text)) == 1.0
    assert on_loop == {words == 10}


async def test_long_corrections_are_tokenised_off_the_event_loop(encoded: Encoded) -> None:
    async def agent(client: AgentClient) -> float:
        await ask(client, response_format=LONG_FORMAT)
        return 1.0

    env = await start(agent)
    counts = [len(encoded[False])]
    result = await env.step(prompt_renderer(env.renderer).encode("No JSON.<|im_end|>"))
    counts.append(len(encoded[False]))
    await env.inject_messages([Message(role="user", content=LONG)])
    counts.append(len(encoded[False]))
    await env.close()
    assert not result.episode_done
    assert counts == sorted({*counts}), "each step encodes something in a thread"
    assert max(encoded[True]) < LONG_TEXT


class Said(BaseModel, extra="allow"):
    content: str


def test_long_text_is_detected_at_any_depth_of_a_request() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for value in (
        *("x" * 11, ["x" * 6, "x" * 6], {"x" * 11: 1}, {"a": [{"b": "x" * 11}]}),
        *(Said(content="x" * 11), Said(content="", reasoning="x" * 11)),  # type: ignore[call-arg]
    ):
        check_text(value, None)
        check_text(value, 1_000)
        with pytest.raises(LongTextError):
            check_text(value, 10)
    with pytest.raises(LongTextError):
        check_text(endless, 10)
    check_text([None, 1, 2.5, True, object()], 10)
    check_tokens(5, 20)
    check_tokens(5, None)
    with pytest.raises(LongTextError):
        check_tokens(6, 20)


@given(
    st.text(
        st.one_of(st.sampled_from("  aeZ0.\u0301\u1100\u1161\n\t"), st.characters(codec="utf-8")),
        max_size=400,
    )
)
def test_least_tokens_is_a_lower_bound_for_the_prompt_length(text: str) -> None:
    renderer = prompt_renderer(None)
    message = Message(role="user", content=text)
    assert least_tokens([message], renderer) <= len(renderer.full([renderer.escape(message)]))
    for long, least in (("word " * 1000, 999), ("x" * 1600, 100)):
        assert least_tokens([user(long)], renderer) >= least


def test_least_tokens_is_zero_for_replies_and_unknown_renderers() -> None:
    class Hiding(type(default_renderer())):  # type: ignore[misc]
        """A renderer class unknown to evert."""

    hiding = with_tokenizer(default_renderer(), default_renderer().tokenizer)
    hiding.__class__ = Hiding
    assert least_tokens([user("word " * 1000)], PromptRenderer(hiding)) == 0
    assert least_tokens([assistant("word " * 1000)], prompt_renderer(None)) == 0


async def test_a_text_that_is_certainly_too_long_is_rejected_without_encoding_it(
    encoded: Encoded,
) -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError) as refused:
            await ask(client, "word " * 100_000)
        assert refused.value.code == "context_length_exceeded"
        return 1.0

    env = ChatAgentEnv(agent, context_length=4096)
    assert isinstance(await env.initial_observation(), InitialObservationOverflow)
    assert max(map(max, encoded.values())) < 100_000
