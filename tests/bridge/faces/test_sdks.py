"""The real SDKs of OpenAI, Anthropic and Google, in process: what they get is what they would get.

Whole answers and streams are of their typed classes and say the same; refusals are the SDK's own
exceptions; a conversation that is sent back as each SDK's users do is one lineage. What is Google's
alone is in ``test_genai.py``.
"""

import asyncio
import typing
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, get_args

import anthropic
import openai
import pytest
import tinker_cookbook.renderers as cookbook
from google.genai import errors, types
from pydantic import BaseModel
from tests.bridge.faces.conftest import (
    CONVERSATION,
    LONG,
    ONE_CALL,
    SAID,
    THOUGHT,
    assert_one_lineage,
    calling,
    every_reply,
    play_without_a_call,
)
from tests.bridge.faces.genai_calls import (
    CONVERSATIONS,
    assert_genai_typed,
    genai_blocking,
    genai_events,
    genai_whole,
    parts_of,
    said_by,
)
from tests.kit import play, user
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv

HELLO: Any = [user("Hello?")]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
NAMES = ("add", "look")
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": name, "strict": True, "parameters": SCHEMA}}
    for name in NAMES
]
RESPONSES_TOOLS: Any = [
    {"type": "function", "name": name, "parameters": SCHEMA, "strict": True} for name in NAMES
]
ANTHROPIC_TOOLS: Any = [
    {"name": name, "description": "It.", "input_schema": SCHEMA} for name in NAMES
]

EXTRA = {
    "ChatCompletionMessage": {"reasoning_content"},
    "ChoiceDelta": {"reasoning_content"},
    "ResponseFunctionCallArgumentsDoneEvent": {"name"},  # a field until openai 3
}
"""What is no field of the SDK's class, on purpose."""


def assert_typed(value: Any) -> None:
    """All that an SDK object holds is as its class says, and nothing else is in it."""
    if isinstance(value, BaseModel):
        assert type(value).__module__.startswith(("openai.", "anthropic."))
        assert set(value.model_extra or ()) <= EXTRA.get(type(value).__name__, set()), value
        assert type(value).model_fields, value
        type(value).model_validate(value.model_dump(exclude_unset=True, warnings=False))
        for name in value.model_fields_set:
            assert_typed(getattr(value, name))
        assert_named(value)
    elif isinstance(value, (list, tuple)):
        for one in value:
            assert_typed(one)


def assert_named(value: BaseModel) -> None:
    """An object's type is the one that its class stands for."""
    kind = type(value).model_fields.get("type")
    if kind is not None and typing.get_origin(kind.annotation) is Literal:
        assert value.type in get_args(kind.annotation)  # type: ignore[attr-defined]


def content(value: Any) -> Any:
    """What an answer says: without the ids and times in which two answers differ."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True, warnings=False)
    if isinstance(value, dict):
        names = value.keys() - {"id", "call_id", "created", "created_at", "completed_at", "parsed"}
        names -= {"parsed_arguments", "parsed_output", "index"}  # which the helpers add
        return {name: content(value[name]) for name in names}
    if isinstance(value, list):
        return [content(one) for one in value]
    return value


# -- how each SDK asks ---------------------------------------------------------------------------


async def chat_whole(sdk: AgentClient, **fields: Any) -> Any:
    fields = {"messages": HELLO, "tools": CHAT_TOOLS, **fields}
    return await sdk.openai.chat.completions.create(model=sdk.model, **fields)


async def responses_whole(sdk: AgentClient, **fields: Any) -> Any:
    fields = {"input": HELLO, "tools": RESPONSES_TOOLS, **fields}
    return await sdk.openai.responses.create(model=sdk.model, **fields)


async def anthropic_whole(sdk: AgentClient, **fields: Any) -> Any:
    fields = {"messages": HELLO, "tools": ANTHROPIC_TOOLS, "max_tokens": 500, **fields}
    return await sdk.anthropic.messages.create(model=sdk.model, **fields)


async def chat_joined(sdk: AgentClient, **fields: Any) -> Any:
    """The chunks of a stream, put together by the SDK's own helper."""
    fields = {"messages": HELLO, "tools": CHAT_TOOLS, **fields}
    usage: Any = {"include_usage": True}
    async with sdk.openai.chat.completions.stream(
        model=sdk.model, stream_options=usage, **fields
    ) as stream:
        async for event in stream:
            assert_named(event)
        return await stream.get_final_completion()


async def responses_joined(sdk: AgentClient, **fields: Any) -> Any:
    fields = {"input": HELLO, "tools": RESPONSES_TOOLS, **fields}
    async with sdk.openai.responses.stream(model=sdk.model, **fields) as stream:
        async for event in stream:
            assert_named(event)
        return await stream.get_final_response()


async def anthropic_joined(sdk: AgentClient, **fields: Any) -> Any:
    fields = {"messages": HELLO, "tools": ANTHROPIC_TOOLS, "max_tokens": 500, **fields}
    async with sdk.anthropic.messages.stream(model=sdk.model, **fields) as stream:
        async for event in stream:
            assert_named(event)
        return await stream.get_final_message()


Way = Callable[..., Awaitable[Any]]
WHOLE: dict[str, Way] = {
    "chat": chat_whole,
    "responses": responses_whole,
    "anthropic": anthropic_whole,
}
JOINED: dict[str, Way] = {
    "chat": chat_joined,
    "responses": responses_joined,
    "anthropic": anthropic_joined,
}
ALL = {**WHOLE, "genai": genai_whole}


async def events(sdk: AgentClient, api: str, **fields: Any) -> list[Any]:
    if api == "genai":
        return await genai_events(sdk, **fields)
    return [event async for event in await WHOLE[api](sdk, stream=True, **fields)]


def streamed(api: str, **fields: Any) -> Way:
    """The way to ask for an API's events."""
    return lambda sdk: events(sdk, api, **fields)


async def asked(said: str, *ways: Way, **options: Any) -> tuple[list[Any], Any]:
    """What an agent gets that asks in some ways, for the same reply each; and its trajectory."""
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        got.extend([await way(client) for way in ways])
        return 1.0

    return got, await play(agent, *[said] * len(ways), **options)


# -- whole answers and streams -------------------------------------------------------------------


@every_reply
async def test_everything_has_its_type_and_a_stream_says_what_the_whole_answer_says(
    renderer: cookbook.Renderer | None, said: str
) -> None:
    ways = [way for api in WHOLE for way in (WHOLE[api], streamed(api), JOINED[api])]
    got, trajectory = await asked(said, *ways, genai_whole, streamed("genai"), renderer=renderer)

    for number, api in enumerate(WHOLE):
        whole, pieces, joined = got[3 * number : 3 * number + 3]
        assert_typed(whole)
        assert len(pieces) >= 2, api
        assert_typed(pieces)
        assert content(joined) == content(whole), api
    whole, chunks = got[-2:]
    for response in (whole, *chunks):
        assert_genai_typed(response)
    assert all(map(parts_of, chunks))
    reasons = [chunk.candidates[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [whole.candidates[0].finish_reason]
    assert chunks[-1].usage_metadata == whole.usage_metadata
    assert said_by(chunks) == said_by([whole])
    for answer, transition in zip(got, trajectory.transitions, strict=True):
        if not isinstance(answer, list):
            assert usage_of(answer) == (transition.ob.length, len(transition.ac.tokens))


def usage_of(answer: Any) -> tuple[int, int]:
    """The tokens of the observation and of the action, wherever the SDK has them."""
    usage = getattr(answer, "usage", None) or answer.usage_metadata
    for names in (
        ("prompt_tokens", "completion_tokens", "total_tokens"),
        ("prompt_token_count", "candidates_token_count", "total_token_count"),
        ("input_tokens", "output_tokens", "total_tokens"),
    ):
        if hasattr(usage, names[0]):
            prompt, reply = getattr(usage, names[0]), getattr(usage, names[1])
            assert getattr(usage, names[2], prompt + reply) == prompt + reply
            return prompt, reply
    raise AssertionError(usage)


async def test_the_chunks_of_a_stream_put_together_by_hand_are_the_whole_answer() -> None:
    said = f"{THOUGHT}{LONG}\n{calling('add', x=1)}\n{calling('look', x=2)}"
    (whole, chunks), _ = await asked(said, chat_whole, streamed("chat"))

    message = whole.choices[0].message
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == message.content
    thoughts = [getattr(delta, "reasoning_content", "") for delta in deltas]
    assert "".join(thoughts) == message.reasoning_content
    arguments = ["", ""]
    for one in [one for delta in deltas for one in delta.tool_calls or ()]:
        arguments[one.index] += one.function.arguments
    assert arguments == [call.function.arguments for call in message.tool_calls]
    names = [one.function.name for delta in deltas for one in delta.tool_calls or () if one.id]
    assert names == ["add", "look"]
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert [reason for reason in reasons if reason] == ["tool_calls"]
    assert len(chunks) > 8


async def test_a_chunk_with_the_usage_comes_last_and_only_when_it_is_asked_for() -> None:
    with_usage = streamed("chat", stream_options={"include_usage": True})
    (whole, plain, counted), _ = await asked(LONG, chat_whole, streamed("chat"), with_usage)

    assert all(chunk.usage is None for chunk in [*plain, *counted[:-1]])
    assert counted[-1].usage == whole.usage
    assert counted[-1].choices == []


async def test_the_events_of_responses_are_numbered_and_lead_from_created_to_completed() -> None:
    [[*events]], _ = await asked(f"{THOUGHT}{LONG}\n{ONE_CALL}", streamed("responses"))

    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == [*range(len(events))]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == 3
    assert kinds.count("response.output_item.done") == 3
    texts = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(texts) == events[-1].response.output_text
    assert len(texts) > 3
    thoughts = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert "".join(thoughts).strip() == "Hm, let me think about all of this."


async def test_the_events_of_anthropic_open_and_close_each_block() -> None:
    [[*events]], _ = await asked(f"{THOUGHT}{LONG}\n{ONE_CALL}", streamed("anthropic"))

    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    opened = [event.content_block.type for event in events if event.type == "content_block_start"]
    assert opened == ["thinking", "text", "tool_use"]
    assert kinds.count("content_block_stop") == 3
    deltas = {event.delta.type for event in events if event.type == "content_block_delta"}
    assert deltas == {"thinking_delta", "signature_delta", "text_delta", "input_json_delta"}


# -- what each answer says -----------------------------------------------------------------------


async def test_text_reasoning_and_calls_are_where_each_sdk_has_them() -> None:
    said = f"{THOUGHT}So.\n{calling('add', x=1)}\n{calling('look', x=2)}"
    (chat, response, message, google), _ = await asked(said, *ALL.values())

    thought, calls = "Hm, let me think about all of this.", [("add", {"x": 1}), ("look", {"x": 2})]
    own = chat.choices[0].message
    assert (own.reasoning_content.strip(), own.content.strip()) == (thought, "So.")
    texts = [(call.function.name, call.function.arguments) for call in own.tool_calls]
    assert texts == [("add", '{"x": 1}'), ("look", '{"x": 2}')]
    reasoning, _, *called = response.output
    assert [part.text.strip() for part in reasoning.content] == [thought]
    assert response.output_text.strip() == "So."
    assert [(item.name, item.arguments) for item in called] == texts
    thinking, text, *used = message.content
    assert (thinking.thinking.strip(), text.text.strip()) == (thought, "So.")
    assert [(block.name, block.input) for block in used] == calls
    assert [part.thought for part in parts_of(google)] == [True, None, None, None]
    assert [one.strip() for one in said_by([google])[:2]] == ["So.", thought]
    assert [(call.name, call.args) for call in google.function_calls] == calls


async def test_ids_are_never_used_twice() -> None:
    ways = [*ALL.values(), *ALL.values(), *JOINED.values()]
    got, _ = await asked(SAID["parallel calls"], *ways)

    assert len({getattr(one, "id", None) or one.response_id for one in got}) == len(got)
    items = [item for response in (got[1], got[5], got[9]) for item in response.output]
    calls = [item.call_id for item in items if item.type == "function_call"]
    assert len({item.id for item in items} | {*calls}) == len(items) + len(calls)
    ids = [call.id for response in (got[3], got[7]) for call in response.function_calls]
    assert len({*ids}) == len(ids) == 6


CAPS = {"chat": "max_completion_tokens", "genai": "max_output_tokens"}
CAPS |= {"responses": "max_output_tokens", "anthropic": "max_tokens"}
INCOMPLETE = ("incomplete", "max_output_tokens")


@pytest.mark.parametrize(
    ("said", "cap", "ends"),
    [
        ("A whole reply.", None, ("stop", ("completed", None), "end_turn", "STOP")),
        (LONG, 5, ("length", INCOMPLETE, "max_tokens", "MAX_TOKENS")),
        (ONE_CALL, None, ("tool_calls", ("completed", None), "tool_use", "STOP")),
        (ONE_CALL, 9, ("length", INCOMPLETE, "max_tokens", "MAX_TOKENS")),
    ],
    ids=["stop", "length", "tool", "cut tool"],
)
async def test_the_reason_of_the_end_is_each_sdks_own(
    said: str, cap: int | None, ends: tuple[Any, ...]
) -> None:
    got: dict[str, list[Any]] = {}

    async def agent(client: AgentClient) -> float:
        for api, ask in ALL.items():
            fields = {CAPS[api]: cap} if cap else {}
            got[api] = [await ask(client, **fields), (await events(client, api, **fields))[-1]]
        return 1.0

    await play(agent, *[said] * 8)

    responses = [got["responses"][0], got["responses"][1].response]
    details = [(one.status, getattr(one.incomplete_details, "reason", None)) for one in responses]
    assert [one.choices[0].finish_reason for one in got["chat"]] == [ends[0]] * 2
    assert details == [ends[1]] * 2
    assert got["anthropic"][0].stop_reason == ends[2]
    assert [one.candidates[0].finish_reason for one in got["genai"]] == [ends[3]] * 2


async def test_a_stop_sequence_that_cut_the_reply_is_named() -> None:
    async def agent(client: AgentClient) -> float:
        for ask in (anthropic_whole, anthropic_joined):
            message = await ask(client, stop_sequences=["Two", "Ten"])
            assert message.content[0].text == "One. "
            assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Two")
        stopped = await genai_whole(client, stop_sequences=["Two"])
        assert (stopped.text, stopped.candidates[0].finish_reason) == ("One. ", "STOP")
        return 1.0

    await play(agent, *["One. Two."] * 3)


# -- raw, streaming and parsed -------------------------------------------------------------------


class Sum(BaseModel):
    x: int
    why: str


FITS = '{"x": 7, "why": "so"}'


async def test_raw_responses_have_status_headers_and_the_parsed_answer() -> None:
    async def agent(client: AgentClient) -> float:
        model, chats = client.model, client.openai.chat.completions
        raw: Any = await chats.with_raw_response.create(model=model, messages=HELLO)
        assert raw.parse().choices[0].message.content == LONG
        raw = await client.openai.responses.with_raw_response.create(model=model, input="Hello?")
        assert raw.parse().output_text == LONG
        raw = await client.anthropic.messages.with_raw_response.create(
            model=model, messages=HELLO, max_tokens=100
        )
        assert (await raw.parse()).content[0].text == LONG
        assert raw.status_code == 200
        assert raw.headers["content-type"] == "application/json"
        async with chats.with_streaming_response.create(
            model=model, messages=HELLO, stream=True
        ) as response:
            assert response.headers["content-type"] == "text/event-stream"
            lines = [line async for line in response.iter_lines() if line]
        assert lines[0].startswith("data: {")
        assert lines[-1] == "data: [DONE]"
        return 1.0

    await play(agent, LONG, LONG, LONG, LONG)


async def test_parse_and_the_streaming_helpers_give_the_agents_own_class() -> None:
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        sdk, claude, model = client.openai, client.anthropic, client.model
        chats, asked = sdk.chat.completions, {"model": model, "messages": HELLO}
        chat = await chats.parse(**asked, response_format=Sum)
        got.append(chat.choices[0].message.parsed)
        response = await sdk.responses.parse(model=model, input=HELLO, text_format=Sum)
        got.append(response.output_parsed)
        message = await claude.messages.parse(**asked, max_tokens=100, output_format=Sum)
        got.append(message.parsed_output)
        async with chats.stream(**asked, response_format=Sum) as chunks:
            got.append((await chunks.get_final_completion()).choices[0].message.parsed)
        async with sdk.responses.stream(model=model, input=HELLO, text_format=Sum) as items:
            got.append((await items.get_final_response()).output_parsed)
        async with claude.messages.stream(**asked, max_tokens=100, output_format=Sum) as blocks:
            got.append((await blocks.get_final_message()).parsed_output)
        return 1.0

    trajectory = await play(agent, FITS, f"```json\n{FITS}\n```", FITS, FITS, FITS, FITS)

    assert got == [Sum(x=7, why="so")] * 6
    assert len(trajectory.transitions) == 6


async def test_a_reply_that_does_not_fit_is_asked_for_again_behind_the_sdk() -> None:
    json_mode: Any = {"response_mime_type": "application/json", "response_schema": Sum}

    async def agent(client: AgentClient) -> float:
        response = await client.openai.responses.parse(
            model=client.model, input=HELLO, text_format=Sum
        )
        assert response.output_parsed == Sum(x=7, why="so")
        other = await genai_whole(client, **json_mode, tools=None)
        assert other.parsed == Sum(x=7, why="so")
        return 1.0

    trajectory = await play(agent, *["Seven.", '{"x": "seven"}', FITS] * 2)

    marks = [transition.metrics.get("format_error") for transition in trajectory.transitions]
    assert marks == [1.0, 1.0, None] * 2


async def test_tokens_of_a_prompt_are_counted_as_they_would_be_sampled() -> None:
    counted: list[int | None] = []

    async def agent(client: AgentClient) -> float:
        fields: Any = {"model": client.model, "messages": HELLO}
        count = await client.anthropic.messages.count_tokens(**fields, tools=ANTHROPIC_TOOLS)
        counted.append(count.input_tokens)
        await anthropic_whole(client)
        other = await client.genai.aio.models.count_tokens(model=client.model, contents="Hello?")
        counted.append(other.total_tokens)
        await genai_whole(client, tools=None)
        return 1.0

    trajectory = await play(agent, LONG, LONG)
    assert counted == [transition.ob.length for transition in trajectory.transitions]


async def test_the_models_are_listed() -> None:
    async def agent(client: AgentClient) -> float:
        models = client.openai.models
        assert [model.id async for model in models.list()] == ["org/policy"]
        assert (await models.retrieve(client.model)).id == "org/policy"
        assert (await models.retrieve("gpt-4o")).id == "gpt-4o"  # as calls to it are answered
        listed = [model.name async for model in await client.genai.aio.models.list()]
        assert listed == ["models/org/policy"]
        return 1.0

    await play_without_a_call(agent, policy_names="org/policy")


# -- refusals ------------------------------------------------------------------------------------

TOO_LONG = RolloutLimits(max_trajectory_tokens=40)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_prompt_that_is_too_long_is_the_error_on_which_agents_compact(stream: bool) -> None:
    caught: list[Any] = []

    async def agent(client: AgentClient) -> float:
        for api, ask in ALL.items():
            try:
                await (events(client, api) if stream else ask(client))
            except (openai.OpenAIError, anthropic.AnthropicError, errors.ClientError) as error:
                caught.append(error)
        return 1.0

    await play_without_a_call(agent, limits=TOO_LONG)

    chat, response, message, google = caught
    for error in (chat, response):
        assert type(error) is openai.BadRequestError
        assert (error.status_code, error.code) == (400, "context_length_exceeded")
        assert error.param == "messages"
    assert type(message) is anthropic.BadRequestError
    assert message.status_code == 400
    body: Any = message.body
    assert (body["type"], body["error"]["type"]) == ("error", "invalid_request_error")
    assert (google.code, google.status) == (400, "INVALID_ARGUMENT")
    assert google.message.startswith("prompt is too long: ")
    [detail] = google.details["error"]["details"]
    assert detail["reason"] == "context_length_exceeded"
    assert all("prompt is too long" in str(error) for error in caught)


async def test_an_agent_that_does_not_cope_with_it_ends_with_a_context_overflow() -> None:
    for api, ask in ALL.items():

        async def agent(client: AgentClient, ask: Way = ask) -> float:
            await ask(client)
            return 1.0

        end: Any = await ChatAgentEnv(agent, limits=TOO_LONG).initial_observation()
        assert end.reward == -0.1, api
        assert "prompt is too long" in end.logs["context_overflow"], api


async def test_a_refused_field_is_the_sdks_bad_request_error() -> None:
    google_search = [types.Tool(google_search=types.GoogleSearch())]
    refused: list[tuple[str, type[Exception], dict[str, Any], str]] = [
        ("chat", openai.BadRequestError, {"n": 2}, "make the call again"),
        ("responses", openai.BadRequestError, {"background": True}, "is not supported"),
        ("anthropic", anthropic.BadRequestError, {"container": "c"}, "is not supported"),
        ("genai", errors.ClientError, {"candidate_count": 2}, "make the call again"),
        ("genai", errors.ClientError, {"tools": google_search}, "offer functions"),
    ]

    async def agent(client: AgentClient) -> float:
        for api, kind, fields, said in refused:
            with pytest.raises(kind, match=said):
                await ALL[api](client, **fields)
            with pytest.raises(kind, match=said):
                await events(client, api, **fields)
        return 1.0

    await play_without_a_call(agent)


async def test_another_path_is_the_sdks_not_found_error() -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.NotFoundError, match="Nothing answers POST /v1/embeddings here"):
            await client.openai.embeddings.create(model=client.model, input="Hi")
        with pytest.raises(anthropic.NotFoundError, match="Nothing answers GET /v1/messages/batch"):
            await client.anthropic.messages.batches.retrieve("b")
        with pytest.raises(errors.ClientError, match="Nothing answers POST") as caught:
            await client.genai.aio.models.embed_content(model=client.model, contents="Hi")
        assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")
        return 1.0

    await play_without_a_call(agent)


async def test_a_call_is_never_made_twice() -> None:
    async def agent(client: AgentClient) -> float:
        assert client.openai.max_retries == client.openai_sync.max_retries == 0
        assert client.anthropic.max_retries == client.anthropic_sync.max_retries == 0
        assert client.openai.timeout is None
        assert client.anthropic.timeout is None
        return 1.0

    await play_without_a_call(agent)


# -- blocking clients ----------------------------------------------------------------------------


def blocking_answers(client: BlockingAgentClient | AgentClient) -> list[Any]:
    """What the blocking SDKs say, whole and put together from streams."""
    sdk, claude, model = client.openai_sync, client.anthropic_sync, client.model
    asked: Any = {"model": model, "messages": HELLO, "tools": CHAT_TOOLS}
    got: list[Any] = [sdk.chat.completions.create(**asked)]
    with sdk.chat.completions.stream(**asked, stream_options={"include_usage": True}) as chat:
        assert_named_all(chat)
        got.append(chat.get_final_completion())
    asked = {"model": model, "input": HELLO, "tools": RESPONSES_TOOLS}
    got.append(sdk.responses.create(**asked))
    with sdk.responses.stream(**asked) as response:
        assert_named_all(response)
        got.append(response.get_final_response())
    asked = {"model": model, "messages": HELLO, "tools": ANTHROPIC_TOOLS, "max_tokens": 500}
    got.append(claude.messages.create(**asked))
    with claude.messages.stream(**asked) as message:
        assert_named_all(message)
        got.append(message.get_final_message())
    return [*got, *genai_blocking(client)]


def assert_named_all(stream: Iterable[Any]) -> None:
    for event in stream:
        assert_named(event)


def assert_alike(got: list[Any]) -> None:
    assert len(got) == 8
    for whole, joined in zip(got[:6:2], got[1:6:2], strict=True):
        assert_typed(whole)
        assert content(whole) == content(joined)
    whole, chunks = got[6:]
    assert_genai_typed(whole)
    assert said_by(chunks) == said_by([whole])


async def test_blocking_clients_get_the_same_in_a_plain_agent_and_in_a_thread() -> None:
    def agent(client: BlockingAgentClient) -> float:
        for _ in SAID:
            assert_alike(blocking_answers(client))
        return 1.0

    async def threaded(client: AgentClient) -> float:
        assert_alike(await asyncio.to_thread(blocking_answers, client))
        return 1.0

    await play(agent, *[said for said in SAID.values() for _ in range(8)])
    await play(threaded, *[SAID["parallel calls"]] * 8)


async def test_a_blocking_client_on_the_envs_loop_is_told_instead_of_waiting_for_ever() -> None:
    async def agent(client: AgentClient) -> float:
        model = client.model
        with pytest.raises(openai.BadRequestError, match="asyncio.to_thread") as caught:
            client.openai_sync.chat.completions.create(model=model, messages=HELLO)
        assert caught.value.code == "blocking_call"
        with pytest.raises(anthropic.BadRequestError, match="asyncio.to_thread"):
            client.anthropic_sync.messages.create(model=model, messages=HELLO, max_tokens=10)
        with pytest.raises(errors.ClientError, match="asyncio.to_thread"):
            client.genai.models.generate_content(model=model, contents="Hi")
        return 1.0

    await play_without_a_call(agent)


# -- conversations -------------------------------------------------------------------------------


async def chat_conversation(client: AgentClient, rounds: int, *, stream: bool) -> None:
    messages: list[Any] = [{"role": "system", "content": "You add."}, *HELLO]
    for number in range(rounds):
        completion = await (chat_joined if stream else chat_whole)(client, messages=messages)
        message = completion.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{number}!"})
        if not message.tool_calls:
            messages.append(user(f"Go on, {number}."))


async def responses_conversation(client: AgentClient, rounds: int, *, stream: bool) -> None:
    ask, items = responses_joined if stream else responses_whole, [*HELLO]
    for number in range(rounds):
        response = await ask(client, input=items, instructions="You add.")
        items += response.output
        items += _what_follows(response, number)


async def responses_with_state(client: AgentClient, rounds: int, *, stream: bool) -> None:
    ask, items = responses_joined if stream else responses_whole, [*HELLO]
    state: dict[str, str] = {}
    for number in range(rounds):
        response = await ask(client, input=items, instructions="You add.", **state)
        state = {"previous_response_id": response.id}
        items = _what_follows(response, number)


def _what_follows(response: Any, number: int) -> list[Any]:
    calls = [item.call_id for item in response.output if item.type == "function_call"]
    if not calls:
        return [user(f"Go on, {number}.")]
    return [
        {"type": "function_call_output", "call_id": call, "output": f"{number}!"} for call in calls
    ]


async def anthropic_conversation(client: AgentClient, rounds: int, *, stream: bool) -> None:
    ask, messages = anthropic_joined if stream else anthropic_whole, [*HELLO]
    for number in range(rounds):
        message = await ask(client, messages=messages, system="You add.")
        messages.append({"role": "assistant", "content": message.content})
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"{number}!"}
            for block in message.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "user", "content": results or f"Go on, {number}."})


CONVERSATIONS = {
    "chat": chat_conversation,
    "responses": responses_conversation,
    "responses with state": responses_with_state,
    "anthropic": anthropic_conversation,
    **CONVERSATIONS,
}
every_conversation = pytest.mark.parametrize("api", CONVERSATIONS)
whole_and_stream = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def converse(
    api: str, said: list[str], *, stream: bool, drift: str | None = None, **options: Any
) -> None:
    """A conversation of these replies is one lineage."""

    async def agent(client: AgentClient) -> float:
        await CONVERSATIONS[api](client, len(said), stream=stream)
        return 1.0

    trajectory = await play(agent, *said, **options)
    assert len(trajectory.transitions) == len(said)
    assert_one_lineage(trajectory, drift=drift)


@whole_and_stream
@every_conversation
async def test_a_conversation_is_one_lineage_of_the_sampled_tokens(api: str, stream: bool) -> None:
    await converse(api, CONVERSATION, stream=stream)


@whole_and_stream
@every_conversation
async def test_thinking_that_stays_in_the_history_is_sent_back_and_recognised(
    make_renderer: Callable[[str], cookbook.Renderer], api: str, stream: bool
) -> None:
    # the prompt has opened the thinking
    thought, one, two = "Hm, let me think.\n</think>\n\n", _in_xml("add", 1), _in_xml("look", 2)
    said = [
        f"{thought}So be it.",
        f"{thought}{one}",
        f"{thought}{one}\n{two}",
        f"{thought}Let me see.\n\n{two}",
        f"{thought}Bye.",
    ]

    await converse(api, said, stream=stream, renderer=make_renderer("qwen3_5_preserve_thinking"))


def _in_xml(name: str, x: int) -> str:
    """A call of a tool as Qwen3.5 writes it."""
    parameter = f"<parameter=x>\n{x}\n</parameter>"
    return f"<tool_call>\n<function={name}>\n{parameter}\n</function>\n</tool_call>"


async def test_calls_in_the_white_space_that_qwen_writes_stay_in_one_lineage() -> None:
    for said in (SAID["parallel calls"], SAID["text and call"]):  # the sampled ids are kept
        await converse("chat", [said, "Bye."], stream=False, drift="retokenised")
        await converse("ids dropped", [said, "Bye."], stream=True, drift="retokenised")
