"""Unchanged programs use a served model: SDKs, exact tokens, streams, stored conversations."""

import asyncio
import contextlib
import itertools
import random
import threading
from typing import Any

import httpx
import openai
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.kit import Patch
from tests.trainers.kit import spied
from tests.trainers.serving.conftest import prompt, sdks
from tinker import types

from evert.bridge.chat.request import ChatRequest
from evert.bridge.tokens.actions import read_action
from evert.bridge.tokens.bases import model_renderer
from evert.bridge.tokens.renderer import PromptRenderer, prompt_renderer
from evert.trainers.serving import chat
from evert.trainers.serving.chat import BYTES, CONVERSATION, ChatModel
from evert.trainers.serving.service import PolicyService
from evert.trainers.serving.streaming import LiveReply

SAY = [{"role": "user", "content": "Let's play a game. Say you are 7."}]
TOOL = {"name": "look_up", "parameters": {"type": "object", "properties": {"order": {}}}}


def chat_model(service: PolicyService, client: Any, **options: Any) -> ChatModel:
    settings: dict[str, Any] = {"context": 8192, "max_tokens": 16, **options}
    return ChatModel(service.sample(client), prompt_renderer(None), **settings)


@pytest.fixture
def served(client: Any, service: PolicyService) -> PolicyService:
    """Serve the bundled base model, both by token ids and as a chat model."""
    service.offer(client, "tiny")
    service.chat({"tiny": chat_model(service, client)})
    return service


def test_every_sdk_gets_the_same_greedy_reply_with_and_without_streaming(served: Any) -> None:
    with sdks(served) as clients:
        texts, counts = _replies(*clients)
    assert set(texts.values()) == {"I am not 7."}, texts
    assert len(counts) == 1


def _replies(open_ai: Any, claude: Any, gemini: Any) -> tuple[dict[str, Any], set[int]]:
    """Return the reply texts, keyed by API, and the prompt token counts."""
    greedy: dict[str, Any] = {"model": "tiny", "temperature": 0}
    text = SAY[0]["content"]

    chat = open_ai.chat.completions.create(messages=SAY, **greedy)
    chunks = open_ai.chat.completions.create(messages=SAY, stream=True, **greedy)
    response = open_ai.responses.create(input=text, **greedy)
    events = [*open_ai.responses.create(input=text, stream=True, **greedy)]
    asking: Any = {"messages": SAY, "model": "tiny", "extra_body": {"temperature": 0}}
    message: Any = claude.messages.create(max_tokens=16, **asking)
    with claude.messages.stream(max_tokens=16, **asking) as stream:
        last: Any = stream.get_final_message()
    request: Any = {"model": "tiny", "contents": text, "config": {"temperature": 0}}
    content = gemini.models.generate_content(**request)
    pieces = gemini.models.generate_content_stream(**request)

    texts = {
        "chat": chat.choices[0].message.content,
        "chat stream": "".join(chunk.choices[0].delta.content or "" for chunk in chunks),
        "responses": response.output_text,
        "responses stream": events[-1].response.output_text,
        "responses deltas": "".join(e.delta for e in events if e.type.endswith("text.delta")),
        "messages": message.content[0].text,
        "messages stream": last.content[0].text,
        "gemini": content.text,
        "gemini stream": "".join(piece.text or "" for piece in pieces),
    }
    assert [event.sequence_number for event in events] == [*range(len(events))]
    usages = chat.usage.prompt_tokens, message.usage.input_tokens, last.usage.input_tokens
    return texts, {*usages, response.usage.input_tokens}


REFUSED: list[tuple[dict[str, Any], int, str]] = [
    ({"temperature": -1}, 400, "temperature"),
    ({"top_p": 2}, 400, "top_p"),
    ({"temperature": "warm"}, 400, "temperature"),
    ({"messages": []}, 400, "messages"),
    ({"messages": [{"role": "user", "content": "word " * 9000}]}, 400, "8191"),
    ({"n": 2}, 400, "'n'"),
    ({"logit_bias": {"5": 9}}, 400, "logit_bias"),
    ({"model": "gpt-4o"}, 404, "tiny"),
]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unsupported_request_is_refused_with_its_field(
    client: Any, service: PolicyService, *, stream: bool
) -> None:
    model = chat_model(service, client)
    service.chat({"tiny": model, "other": model})
    async with openai.AsyncOpenAI(base_url=service.url, api_key=service.key) as sdk:
        for fields, status, words in REFUSED:
            body: Any = {"model": "tiny", "messages": SAY, "stream": stream, **fields}
            with pytest.raises(openai.APIStatusError) as raised:
                await sdk.chat.completions.create(**body)
            assert raised.value.status_code == status, fields
            assert words in raised.value.message
            for word in ("episode", "rollout", "transition", "Env"):
                assert word not in raised.value.message


def test_every_sdk_lists_the_models_in_its_own_format(served: Any) -> None:
    with sdks(served) as (open_ai, claude, gemini):
        for model in (*open_ai.models.list(), open_ai.models.retrieve("tiny")):
            assert (model.id, model.object, model.created) == ("tiny", "model", 0)
        for info in (*claude.models.list(), claude.models.retrieve("tiny")):
            assert (info.id, info.type, info.display_name) == ("tiny", "model", "tiny")
            assert info.created_at.year == 1970
        assert [model.name for model in gemini.models.list()] == ["models/tiny"]


async def test_a_single_model_answers_to_any_name_with_fixed_sampling(
    client: Any, service: PolicyService
) -> None:
    service.chat({"tiny": chat_model(service, client, sampling={"temperature": 0})})
    async with openai.AsyncOpenAI(base_url=service.url, api_key=service.key) as sdk:
        asking: Any = {"model": "gpt-4o", "messages": SAY, "temperature": 2}
        replies = [await sdk.chat.completions.create(**asking) for _ in range(3)]
    assert {reply.choices[0].message.content for reply in replies} == {"I am not 7."}


async def test_later_prompts_contain_the_sampled_ids(client: Any, service: PolicyService) -> None:
    sample, prompts = service.sample(client), list[tuple[list[int], list[int]]]()

    async def logged(prompt: Any, params: Any, watch: Any = None) -> Any:
        sampled = await sample(prompt, params, watch)
        prompts.append((prompt.to_ints(), [*sampled.tokens]))
        return sampled

    service.chat({"tiny": ChatModel(logged, prompt_renderer(None), context=8192, max_tokens=12)})
    tools: Any = [{"type": "function", "function": TOOL}]
    async with openai.AsyncOpenAI(base_url=service.url, api_key=service.key) as sdk:
        messages: list[Any] = [*SAY]
        for turn in range(12):
            asking: Any = {"model": "tiny", "messages": messages, "temperature": 2, "seed": turn}
            reply = await sdk.chat.completions.create(tools=tools, **asking)
            message = reply.choices[0].message
            messages += [message, {"role": "user", "content": f"And {turn}?"}]
    for (before, sampled), (after, _) in itertools.pairwise(prompts):
        assert after[: len(before) + len(sampled)] == before + sampled


async def test_conversations_are_kept_up_to_a_limit(client: Any, service: PolicyService) -> None:
    model = chat_model(service, client, keep=4 * CONVERSATION)
    for opening in range(12):
        messages = [{"role": "user", "content": f"Say {opening % 8}."}]
        await model_reply(service, model, ChatRequest("tiny", messages))
        assert model.kept_tokens <= 4 * CONVERSATION
    assert 0 < len(model._books) <= 4
    assert model.kept_tokens == sum(book.tokens for book in model._books.values())


async def test_an_unreadable_request_leaves_only_an_empty_conversation_book(
    client: Any, service: PolicyService
) -> None:
    model = chat_model(service, client, keep=4 * CONVERSATION)
    for opening in range(12):
        messages = [{"role": "user", "content": f"Say {opening}."}, {"role": "robot"}]
        with pytest.raises(openai.BadRequestError):
            await model_reply(service, model, ChatRequest("tiny", messages))
    assert len(model._books) <= 4
    assert model.kept_tokens == sum(book.tokens for book in model._books.values())


async def test_hidden_fields_count_towards_the_limit(client: Any, service: PolicyService) -> None:
    service.chat({"tiny": chat_model(service, client, keep=2**14)})
    assert service._chat is not None
    padding = "x" * (BYTES * 2**12)
    async with openai.AsyncOpenAI(base_url=service.url, api_key=service.key) as sdk:
        for opening in range(6):
            message: Any = {"role": "user", "content": f"Say {opening}.", "padding": padding}
            await sdk.chat.completions.create(model="tiny", messages=[message])
    assert 0 < len(service._chat._models["tiny"]._books) <= 3


async def test_a_long_prompt_is_rendered_and_counted_even_if_its_client_disconnects(
    client: Any, service: PolicyService
) -> None:
    model = chat_model(service, client, context=None)
    messages = [{"role": "user", "content": "word " * 40_000}]

    async def left() -> None:
        asking = asyncio.ensure_future(model.reply(ChatRequest("tiny", messages), {}))
        while not any(book.lock.locked() for book in model._books.values()):
            await asyncio.wait([asking], timeout=0.001)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert not any(book.lock.locked() for book in model._books.values())

    await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(left(), service._loop))
    assert model.kept_tokens > 40_000


async def test_the_first_messages_are_hashed_in_a_thread_if_they_are_long(
    client: Any, service: PolicyService, monkeypatch: Patch
) -> None:
    threads = spied(monkeypatch, chat, "blake2b", lambda *_: threading.current_thread())
    model = chat_model(service, client)
    for text in ("Hi", "word " * 2**20):
        request = ChatRequest("tiny", [{"role": "user", "content": text}])
        with contextlib.suppress(openai.BadRequestError):
            await model_reply(service, model, request)
    assert [thread is service._thread for thread in threads] == [True, False]


async def model_reply(service: PolicyService, model: ChatModel, request: ChatRequest) -> Any:
    future = asyncio.run_coroutine_threadsafe(model.reply(request, {}), service._loop)
    return await asyncio.wrap_future(future)


@pytest.mark.parametrize("stream", [False, True])
async def test_sampling_stops_when_the_client_disconnects(
    client: Any, service: PolicyService, *, stream: bool
) -> None:
    sampling, left, loop = asyncio.Event(), asyncio.Event(), asyncio.get_running_loop()

    async def endless(prompt: Any, params: Any, watch: Any = None) -> Any:
        loop.call_soon_threadsafe(sampling.set)
        try:
            await asyncio.sleep(600)
        finally:
            loop.call_soon_threadsafe(left.set)

    service.chat({"tiny": ChatModel(endless, prompt_renderer(None), context=None, max_tokens=9)})
    body = {"model": "tiny", "messages": SAY, "stream": stream}
    headers = {"authorization": f"Bearer {service.key}"}
    async with httpx.AsyncClient() as http:
        url = f"{service.url}/chat/completions"
        asking = asyncio.create_task(http.post(url, json=body, headers=headers, timeout=600))
        await sampling.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    async with asyncio.timeout(60):
        await left.wait()


def test_a_failing_stream_ends_with_a_numbered_error(client: Any, service: PolicyService) -> None:
    has_begun = threading.Event()

    async def failing(prompt: Any, params: Any, watch: Any = None) -> Any:
        watch(client.get_tokenizer().encode("Hello there."))
        await asyncio.to_thread(has_begun.wait, 60)
        raise RuntimeError("out of memory")

    service.chat({"tiny": ChatModel(failing, prompt_renderer(None), context=None, max_tokens=9)})
    with openai.OpenAI(base_url=service.url, api_key=service.key, max_retries=0) as sdk:
        stream = sdk.responses.create(model="tiny", input="Hello?", stream=True)
        first = next(stream)
        has_begun.set()
        events: list[Any] = [first, *stream]
    assert events[-1].type == "error"
    assert "out of memory" in events[-1].message
    assert [event.sequence_number for event in events] == [*range(len(events))]


def test_the_tokens_of_a_reply_can_be_followed_during_sampling(client: Any) -> None:
    seen: list[list[int]] = []
    params = types.SamplingParams(max_tokens=6, temperature=0)
    response = client.watch(prompt("Say you are 7."), params, lambda so_far: seen.append([*so_far]))
    tokens = [*response.result().sequences[0].tokens]
    assert seen == [tokens[:count] for count in range(1, len(tokens) + 1)]


# -- streams ---------------------------------------------------------------------------------------

PIECES = [
    "Hello", " ", "\n\n", "<think>", "</think>", "a < b", "é", "😀", "<tool_call>", "</tool_call>",
    '{"name": "look_up", "arguments": {"order": 1}}', "END", "EN", "<", "`", "[1]", "word " * 9,
]  # fmt: skip


@example("qwen3", ["Hello", "<think>", "Hello", "</think>"], False, (), 0)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(["qwen3", "qwen3_instruct", "role_colon", "template"]),
    st.lists(st.sampled_from(PIECES), max_size=8),
    st.booleans(),
    st.sampled_from([(), ("END",), ("\n\n", "END")]),
    st.integers(0, 2**16),
)
def test_the_pieces_of_a_stream_add_up_to_the_reply(
    name: str, pieces: list[str], with_tools: bool, stop: tuple[str, ...], seed: int
) -> None:
    renderer = prompt_renderer(model_renderer("evert-tiny", name))
    tools: Any = [{"type": "function", "function": TOOL}] if with_tools else None
    request = ChatRequest("tiny", SAY, tools, stop=stop)
    tokens = renderer.encode("".join(pieces)) + renderer.end_tokens[:1]

    thoughts, text, reply = asyncio.run(streamed(renderer, request, tokens, random.Random(seed)))

    reasoning = reply.reasoning or ""
    begins_with_text = "".join(pieces).partition("<think>")[0].strip() != ""
    # Thoughts that come after the start of the text are not streamed.
    assert "".join(thoughts) in ({"", reasoning} if begins_with_text else {reasoning})
    assert "".join(text) == reply.text


async def streamed(
    renderer: PromptRenderer, request: ChatRequest, tokens: list[int], order: random.Random
) -> tuple[list[str], list[str], Any]:
    """Stream a reply whose tokens arrive in bursts; return its pieces and the whole reply."""

    def read(so_far: list[int], *, is_cut: bool = True) -> Any:
        options: dict[str, Any] = {"call_ids": "c", "prompt_tokens": 1, "truncated": is_cut}
        return read_action(so_far, renderer, request, **options)[0]

    live = LiveReply(request)
    live.begin(read, 1, is_thought=False)

    async def sampling() -> Any:
        at = 0
        while at < len(tokens):
            at += order.randint(1, 8)
            live.add(tokens[:at])
            await asyncio.sleep(order.choice([0, 0.021]) if at < 24 else 0)
        return read(tokens, is_cut=False)

    task = asyncio.ensure_future(sampling())
    await live.wait_for_begin(task)
    thoughts = [piece async for piece in live.thoughts()]
    text = [piece async for piece in live.text()]
    return thoughts, text, await task
