"""The real OpenAI and Anthropic SDKs, in process: what they get is what they would get.

1. Whole answers: text, reasoning, tool calls, stop reasons and usage are where each SDK has them,
   and every object passes its own class's validation, with no field that the class does not know.
2. Streams: every event is of its typed class; what is put together from them, by hand or by the
   SDK's own helper, is the whole answer.
3. Raw and streaming responses, ``parse`` and structured outputs work.
4. Refusals are the SDK's own exceptions, with the code or the sentence on which agents compact.
5. A conversation sent back as each SDK's users do is one lineage: the next prompt begins with the
   last one and the very tokens that were sampled.
"""

import asyncio
import typing
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal, get_args

import anthropic
import openai
import pytest
import tinker_cookbook.renderers as cookbook
from pydantic import BaseModel
from tests.bridge.faces.conftest import LONG, ONE_CALL, SAID, THOUGHT, Play, calling, every_reply
from tinker_cookbook.rl.data_processing import trajectory_to_data
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv, ScriptedPolicy

HELLO: Any = [{"role": "user", "content": "Hello?"}]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": name, "strict": True, "parameters": SCHEMA}}
    for name in ("add", "look")
]
RESPONSES_TOOLS: Any = [
    {"type": "function", "name": name, "parameters": SCHEMA, "strict": True}
    for name in ("add", "look")
]
ANTHROPIC_TOOLS: Any = [
    {"name": name, "description": "It.", "input_schema": SCHEMA} for name in ("add", "look")
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

Ask = Callable[[Any], Awaitable[Any]]


async def chat_whole(sdk: AgentClient, **fields: Any) -> Any:
    return await sdk.openai.chat.completions.create(
        model=sdk.model, messages=HELLO, tools=CHAT_TOOLS, **fields
    )


async def chat_joined(sdk: AgentClient, **fields: Any) -> Any:
    """The chunks of a stream, put together by the SDK's own helper."""
    asked = sdk.openai.chat.completions.stream(
        model=sdk.model,
        messages=HELLO,
        tools=CHAT_TOOLS,
        stream_options={"include_usage": True},
        **fields,
    )
    async with asked as stream:
        async for event in stream:
            assert_named(event)
        return await stream.get_final_completion()


async def chat_events(sdk: AgentClient, **fields: Any) -> list[Any]:
    stream: Any = await chat_whole(sdk, stream=True, **fields)
    return [event async for event in stream]


async def responses_whole(sdk: AgentClient, **fields: Any) -> Any:
    return await sdk.openai.responses.create(
        model=sdk.model, input=HELLO, tools=RESPONSES_TOOLS, **fields
    )


async def responses_joined(sdk: AgentClient, **fields: Any) -> Any:
    asked = sdk.openai.responses.stream(
        model=sdk.model, input=HELLO, tools=RESPONSES_TOOLS, **fields
    )
    async with asked as stream:
        async for event in stream:
            assert_named(event)
        return await stream.get_final_response()


async def responses_events(sdk: AgentClient, **fields: Any) -> list[Any]:
    stream: Any = await responses_whole(sdk, stream=True, **fields)
    return [event async for event in stream]


async def anthropic_whole(sdk: AgentClient, *, max_tokens: int = 500, **fields: Any) -> Any:
    return await sdk.anthropic.messages.create(
        model=sdk.model, messages=HELLO, tools=ANTHROPIC_TOOLS, max_tokens=max_tokens, **fields
    )


async def anthropic_joined(sdk: AgentClient, *, max_tokens: int = 500, **fields: Any) -> Any:
    asked = sdk.anthropic.messages.stream(
        model=sdk.model, messages=HELLO, tools=ANTHROPIC_TOOLS, max_tokens=max_tokens, **fields
    )
    async with asked as stream:
        async for event in stream:
            assert_named(event)
        return await stream.get_final_message()


async def anthropic_events(sdk: AgentClient, **fields: Any) -> list[Any]:
    stream: Any = await anthropic_whole(sdk, stream=True, **fields)
    return [event async for event in stream]


WHOLE = {"chat": chat_whole, "responses": responses_whole, "anthropic": anthropic_whole}
JOINED = {"chat": chat_joined, "responses": responses_joined, "anthropic": anthropic_joined}
EVENTS = {"chat": chat_events, "responses": responses_events, "anthropic": anthropic_events}
every_api = pytest.mark.parametrize("api", WHOLE)


async def asked(play: Play, said: str, *ways: Callable[..., Awaitable[Any]], **fields: Any) -> Any:
    """What an agent gets that asks in some ways, for the same reply each."""
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        got.extend([await way(client, **fields) for way in ways])
        return 1.0

    await play(agent, *[said] * len(ways))
    return got


# -- 1., 2. whole answers and streams ------------------------------------------------------------


@every_api
@every_reply
async def test_everything_has_its_type_and_a_stream_says_what_the_whole_answer_says(
    play: Play, api: str, said: str
) -> None:
    whole, events, joined = await asked(play, said, WHOLE[api], EVENTS[api], JOINED[api])

    assert_typed(whole)
    assert len(events) >= 2
    assert_typed(events)
    assert content(joined) == content(whole)


async def test_the_chunks_of_a_stream_put_together_by_hand_are_the_whole_answer(play: Play) -> None:
    said = f"{THOUGHT}{LONG}\n{calling('add', x=1)}\n{calling('look', x=2)}"
    whole, chunks = await asked(play, said, chat_whole, chat_events)

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
    assert [
        chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason
    ] == ["tool_calls"]
    assert len(chunks) > 8


async def test_a_chunk_with_the_usage_comes_last_and_only_when_it_is_asked_for(play: Play) -> None:
    async def with_usage(client: AgentClient) -> Any:
        return await chat_events(client, stream_options={"include_usage": True})

    whole, plain, counted = await asked(play, LONG, chat_whole, chat_events, with_usage)

    assert all(chunk.usage is None for chunk in [*plain, *counted[:-1]])
    assert counted[-1].usage == whole.usage
    assert counted[-1].choices == []


async def test_the_events_of_responses_are_numbered_and_lead_from_created_to_completed(
    play: Play,
) -> None:
    [events] = await asked(play, f"{THOUGHT}{LONG}\n{ONE_CALL}", responses_events)

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


async def test_the_events_of_anthropic_open_and_close_each_block(play: Play) -> None:
    [events] = await asked(play, f"{THOUGHT}{LONG}\n{ONE_CALL}", anthropic_events)

    kinds = [event.type for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    opened = [event.content_block.type for event in events if event.type == "content_block_start"]
    assert opened == ["thinking", "text", "tool_use"]
    assert kinds.count("content_block_stop") == 3
    deltas = {event.delta.type for event in events if event.type == "content_block_delta"}
    assert deltas == {"thinking_delta", "signature_delta", "text_delta", "input_json_delta"}


# -- what each answer says -----------------------------------------------------------------------


async def test_text_is_where_each_sdk_has_it(play: Play) -> None:
    chat, response, message = await asked(play, LONG, *WHOLE.values())

    assert chat.choices[0].message.content == LONG
    assert response.output_text == LONG
    assert [block.text for block in message.content] == [LONG]


async def test_reasoning_is_where_each_sdk_has_it(play: Play) -> None:
    chat, response, message = await asked(play, SAID["reasoning"], *WHOLE.values())

    thought = "Hm, let me think about all of this."
    assert chat.choices[0].message.reasoning_content.strip() == thought
    assert [part.text.strip() for part in response.output[0].content] == [thought]
    assert message.content[0].thinking.strip() == thought
    assert chat.choices[0].message.content == response.output_text == message.content[1].text


async def test_tool_calls_are_where_each_sdk_has_them(play: Play) -> None:
    chat, response, message = await asked(play, SAID["reasoning and calls"], *WHOLE.values())

    calls = chat.choices[0].message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in calls] == [
        ("add", '{"x": 1}'),
        ("look", '{"x": 2}'),
    ]
    calls = [item for item in response.output if item.type == "function_call"]
    assert [(c.name, c.arguments) for c in calls] == [("add", '{"x": 1}'), ("look", '{"x": 2}')]
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(c.name, c.input) for c in calls] == [("add", {"x": 1}), ("look", {"x": 2})]


async def test_ids_are_never_used_twice(play: Play) -> None:
    ways = [*WHOLE.values(), *WHOLE.values(), *JOINED.values()]
    got = await asked(play, SAID["parallel calls"], *ways)

    assert len({one.id for one in got}) == len(got)
    items = [item for response in got[1::3] for item in response.output]
    calls = [item.call_id for item in items if item.type == "function_call"]
    assert len({item.id for item in items} | {*calls}) == len(items) + len(calls)


@every_api
async def test_usage_counts_the_tokens_of_the_transition(play: Play, api: str) -> None:
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        got.append(await WHOLE[api](client))
        got.append(await JOINED[api](client))
        return 1.0

    trajectory = await play(agent, SAID["one call"], SAID["text"])

    for answer, transition in zip(got, trajectory.transitions, strict=True):
        prompt, reply = transition.ob.length, len(transition.ac.tokens)
        if api == "chat":
            usage = (answer.usage.prompt_tokens, answer.usage.completion_tokens)
            assert answer.usage.total_tokens == prompt + reply
        else:
            usage = (answer.usage.input_tokens, answer.usage.output_tokens)
        assert usage == (prompt, reply)


STOPS = {
    "stop": ("A whole reply.", {}, "stop", ("completed", None), "end_turn"),
    "length": (LONG, {"cap": 5}, "length", ("incomplete", "max_output_tokens"), "max_tokens"),
    "tool": (ONE_CALL, {}, "tool_calls", ("completed", None), "tool_use"),
    "cut tool": (ONE_CALL, {"cap": 9}, "length", ("incomplete", "max_output_tokens"), "max_tokens"),
}


@pytest.mark.parametrize(
    ("said", "options", "chat", "responses", "message"), STOPS.values(), ids=STOPS
)
async def test_the_reason_of_the_end_is_each_sdks_own(
    play: Play, said: str, options: Any, chat: str, responses: Any, message: str
) -> None:
    caps = {"chat": "max_completion_tokens", "responses": "max_output_tokens"}
    got: dict[str, list[Any]] = {}

    async def agent(client: AgentClient) -> float:
        for api in WHOLE:
            fields = {caps.get(api, "max_tokens"): options["cap"]} if options else {}
            got[api] = [await way[api](client, **fields) for way in (WHOLE, ENDS)]
        return 1.0

    await play(agent, *[said] * 6)

    assert [one.choices[0].finish_reason for one in got["chat"]] == [chat] * 2
    details = [one.incomplete_details and one.incomplete_details.reason for one in got["responses"]]
    assert [one.status for one in got["responses"]] == [responses[0]] * 2
    assert details == [responses[1]] * 2
    assert [one.stop_reason for one in got["anthropic"]] == [message] * 2


async def chat_last(sdk: AgentClient, **fields: Any) -> Any:
    """The last chunk: the SDK's helper raises when a reply was cut."""
    return (await chat_events(sdk, **fields))[-1]


async def responses_last(sdk: AgentClient, **fields: Any) -> Any:
    """The last event's response: the SDK's helper knows no other than a completed one."""
    return (await responses_events(sdk, **fields))[-1].response


ENDS = {"chat": chat_last, "responses": responses_last, "anthropic": anthropic_joined}


async def test_the_helpers_for_chat_raise_the_sdks_error_for_a_reply_that_was_cut(
    play: Play,
) -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.LengthFinishReasonError):
            await chat_joined(client, max_completion_tokens=5)
        return 1.0

    await play(agent, LONG)


async def test_a_stop_sequence_that_cut_the_reply_is_named(play: Play) -> None:
    whole, joined = await asked(
        play, "One. Two.", anthropic_whole, anthropic_joined, stop_sequences=["Two", "Ten"]
    )

    for message in (whole, joined):
        assert message.content[0].text == "One. "
        assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", "Two")


# -- 3. raw, streaming and parsed ----------------------------------------------------------------


class Sum(BaseModel):
    x: int
    why: str


FITS = '{"x": 7, "why": "so"}'


async def test_raw_responses_have_status_headers_and_the_parsed_answer(play: Play) -> None:
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        raw: Any = await client.openai.chat.completions.with_raw_response.create(
            model=client.model, messages=HELLO
        )
        got.append(raw.parse().choices[0].message.content)
        raw = await client.openai.responses.with_raw_response.create(
            model=client.model, input="Hello?"
        )
        got.append(raw.parse().output_text)
        raw = await client.anthropic.messages.with_raw_response.create(
            model=client.model, messages=HELLO, max_tokens=100
        )
        got.append((await raw.parse()).content[0].text)
        assert raw.status_code == 200
        assert raw.headers["content-type"] == "application/json"
        return 1.0

    await play(agent, LONG, LONG, LONG)
    assert got == [LONG] * 3


async def test_streaming_responses_can_be_read_line_by_line(play: Play) -> None:
    lines: list[str] = []

    async def agent(client: AgentClient) -> float:
        asked = client.openai.chat.completions.with_streaming_response.create(
            model=client.model, messages=HELLO, stream=True
        )
        async with asked as response:
            assert response.headers["content-type"] == "text/event-stream"
            lines.extend([line async for line in response.iter_lines()])
        return 1.0

    await play(agent, LONG)
    assert lines[0].startswith("data: {")
    assert [line for line in lines if line][-1] == "data: [DONE]"


async def test_parse_gives_the_agents_own_class(play: Play) -> None:
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        sdk = client.openai
        chat = await sdk.chat.completions.parse(
            model=client.model, messages=HELLO, response_format=Sum
        )
        got.append(chat.choices[0].message.parsed)
        response = await sdk.responses.parse(model=client.model, input=HELLO, text_format=Sum)
        got.append(response.output_parsed)
        message = await client.anthropic.messages.parse(
            model=client.model, messages=HELLO, max_tokens=100, output_format=Sum
        )
        got.append(message.parsed_output)
        return 1.0

    trajectory = await play(agent, FITS, f"```json\n{FITS}\n```", FITS)

    assert got == [Sum(x=7, why="so")] * 3
    assert len(trajectory.transitions) == 3


async def test_the_streaming_helpers_parse_as_well(play: Play) -> None:
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        sdk, model = client.openai, client.model
        async with sdk.chat.completions.stream(
            model=model, messages=HELLO, response_format=Sum
        ) as chat:
            got.append((await chat.get_final_completion()).choices[0].message.parsed)
        async with sdk.responses.stream(model=model, input=HELLO, text_format=Sum) as response:
            got.append((await response.get_final_response()).output_parsed)
        async with client.anthropic.messages.stream(
            model=model, messages=HELLO, max_tokens=100, output_format=Sum
        ) as message:
            got.append((await message.get_final_message()).parsed_output)
        return 1.0

    await play(agent, FITS, FITS, FITS)
    assert got == [Sum(x=7, why="so")] * 3


async def test_a_reply_that_does_not_fit_is_asked_for_again_behind_the_sdk(play: Play) -> None:
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        response = await client.openai.responses.parse(
            model=client.model, input=HELLO, text_format=Sum
        )
        got.append(response.output_parsed)
        return 1.0

    trajectory = await play(agent, "Seven.", '{"x": "seven"}', FITS)

    assert got == [Sum(x=7, why="so")]
    errors = [transition.metrics.get("format_error") for transition in trajectory.transitions]
    assert errors == [1.0, 1.0, None]


async def test_tokens_of_a_prompt_are_counted_as_they_would_be_sampled(play: Play) -> None:
    counted: list[int] = []

    async def agent(client: AgentClient) -> float:
        count = await client.anthropic.messages.count_tokens(
            model=client.model, messages=HELLO, tools=ANTHROPIC_TOOLS
        )
        counted.append(count.input_tokens)
        await anthropic_whole(client)
        return 1.0

    trajectory = await play(agent, LONG)
    assert counted == [trajectory.transitions[0].ob.length]


async def test_the_models_are_listed(play: Play) -> None:
    listed: list[Any] = []

    async def agent(client: AgentClient) -> float:
        listed.append([model.id async for model in client.openai.models.list()])
        listed.append((await client.openai.models.retrieve(client.model)).id)
        listed.append((await client.openai.models.retrieve("gpt-4o")).id)  # as calls to it are
        return 1.0

    trajectory: Any = await ChatAgentEnv(agent, policy_names="org/policy").initial_observation()
    assert listed == [["org/policy"], "org/policy", "gpt-4o"]
    assert trajectory.reward == 1.0


# -- 4. refusals ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_prompt_that_is_too_long_is_the_error_on_which_agents_compact(
    play: Play, stream: bool
) -> None:
    errors: list[Any] = []

    async def agent(client: AgentClient) -> float:
        for ask in WHOLE.values():
            with pytest.raises((openai.OpenAIError, anthropic.AnthropicError)) as caught:
                await ask(client, stream=stream)
            errors.append(caught.value)
        return 1.0

    limits = RolloutLimits(max_trajectory_tokens=40)
    await ChatAgentEnv(agent, limits=limits).initial_observation()

    chat, response, message = errors
    for error in (chat, response):
        assert type(error) is openai.BadRequestError
        assert (error.status_code, error.code) == (400, "context_length_exceeded")
        assert error.param == "messages"
    assert type(message) is anthropic.BadRequestError
    assert message.status_code == 400
    body: Any = message.body
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert all("prompt is too long" in str(error) for error in errors)


@every_api
async def test_an_agent_that_does_not_cope_with_it_ends_with_a_context_overflow(api: str) -> None:
    async def agent(client: AgentClient) -> float:
        await WHOLE[api](client)
        return 1.0

    env = ChatAgentEnv(agent, limits=RolloutLimits(max_trajectory_tokens=40))
    end: Any = await env.initial_observation()

    assert end.reward == -0.1
    assert "prompt is too long" in end.logs["context_overflow"]


async def test_a_refused_field_is_the_sdks_bad_request_error() -> None:
    errors: list[Any] = []

    async def agent(client: AgentClient) -> float:
        refused: list[tuple[Any, dict[str, Any]]] = [
            (chat_whole, {"n": 2}),
            (responses_whole, {"background": True}),
            (anthropic_whole, {"container": "c"}),
        ]
        for ask, fields in refused:
            with pytest.raises((openai.BadRequestError, anthropic.BadRequestError)) as caught:
                await ask(client, **fields)
            errors.append(caught.value)
        return 1.0

    await ChatAgentEnv(agent).initial_observation()
    assert [type(error) for error in errors] == [
        openai.BadRequestError,
        openai.BadRequestError,
        anthropic.BadRequestError,
    ]
    assert errors[0].param == "n"
    assert "is not supported. " in str(errors[2])


async def test_another_path_is_the_sdks_not_found_error() -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.NotFoundError, match="Nothing answers POST /v1/embeddings here"):
            await client.openai.embeddings.create(model=client.model, input="Hi")
        with pytest.raises(anthropic.NotFoundError, match="Nothing answers GET /v1/messages/batch"):
            await client.anthropic.messages.batches.retrieve("b")
        return 1.0

    await ChatAgentEnv(agent).initial_observation()


async def test_a_call_is_never_made_twice() -> None:
    async def agent(client: AgentClient) -> float:
        assert client.openai.max_retries == client.openai_sync.max_retries == 0
        assert client.anthropic.max_retries == client.anthropic_sync.max_retries == 0
        assert client.openai.timeout is None
        assert client.anthropic.timeout is None
        return 1.0

    await ChatAgentEnv(agent).initial_observation()


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
    return got


def assert_named_all(stream: Iterable[Any]) -> None:
    for event in stream:
        assert_named(event)


def assert_alike(got: list[Any]) -> None:
    assert len(got) == 6
    for whole, joined in zip(got[::2], got[1::2], strict=True):
        assert_typed(whole)
        assert content(whole) == content(joined)


@every_reply
async def test_blocking_clients_get_the_same_in_a_plain_agent(play: Play, said: str) -> None:
    got: list[Any] = []

    def agent(client: BlockingAgentClient) -> float:
        got.extend(blocking_answers(client))
        return 1.0

    await play(agent, *[said] * 6)
    assert_alike(got)


async def test_blocking_clients_get_the_same_in_an_async_agents_thread(play: Play) -> None:
    got: list[Any] = []

    async def agent(client: AgentClient) -> float:
        got.extend(await asyncio.to_thread(blocking_answers, client))
        return 1.0

    await play(agent, *[SAID["parallel calls"]] * 6)
    assert_alike(got)


async def test_a_blocking_client_on_the_envs_loop_is_told_instead_of_waiting_for_ever() -> None:
    async def agent(client: AgentClient) -> float:
        with pytest.raises(openai.BadRequestError, match="asyncio.to_thread") as caught:
            client.openai_sync.chat.completions.create(model=client.model, messages=HELLO)
        assert caught.value.code == "blocking_call"
        with pytest.raises(anthropic.BadRequestError, match="asyncio.to_thread"):
            client.anthropic_sync.messages.create(model=client.model, messages=HELLO, max_tokens=10)
        return 1.0

    await ChatAgentEnv(agent).initial_observation()


# -- 5. conversations ----------------------------------------------------------------------------


async def chat_conversation(client: AgentClient, rounds: int, *, stream: bool) -> None:
    messages: list[Any] = [{"role": "system", "content": "You add."}, *HELLO]
    for number in range(rounds):
        fields: Any = {"model": client.model, "messages": messages, "tools": CHAT_TOOLS}
        if stream:
            async with client.openai.chat.completions.stream(**fields) as events:
                completion: Any = await events.get_final_completion()
        else:
            completion = await client.openai.chat.completions.create(**fields)
        message = completion.choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": f"{number}!"})
        if not message.tool_calls:
            messages.append({"role": "user", "content": f"Go on, {number}."})


async def responses_conversation(client: AgentClient, rounds: int, *, stream: bool) -> None:
    items: list[Any] = [*HELLO]
    for number in range(rounds):
        response = await _response(client, stream, input=items)
        items += response.output
        items += _what_follows(response, number)


async def responses_with_state(client: AgentClient, rounds: int, *, stream: bool) -> None:
    items, previous = [*HELLO], openai.omit
    for number in range(rounds):
        response = await _response(client, stream, input=items, previous_response_id=previous)
        previous = response.id
        items = _what_follows(response, number)


async def _response(client: AgentClient, stream: bool, **fields: Any) -> Any:
    fields |= {"model": client.model, "instructions": "You add.", "tools": RESPONSES_TOOLS}
    if not stream:
        return await client.openai.responses.create(**fields)
    async with client.openai.responses.stream(**fields) as events:
        return await events.get_final_response()


def _what_follows(response: Any, number: int) -> list[Any]:
    calls = [item.call_id for item in response.output if item.type == "function_call"]
    if not calls:
        return [{"role": "user", "content": f"Go on, {number}."}]
    return [
        {"type": "function_call_output", "call_id": call, "output": f"{number}!"} for call in calls
    ]


async def anthropic_conversation(client: AgentClient, rounds: int, *, stream: bool) -> None:
    messages: list[Any] = [*HELLO]
    for number in range(rounds):
        fields: Any = {
            "model": client.model,
            "system": "You add.",
            "messages": messages,
            "tools": ANTHROPIC_TOOLS,
            "max_tokens": 500,
        }
        if stream:
            async with client.anthropic.messages.stream(**fields) as events:
                message: Any = await events.get_final_message()
        else:
            message = await client.anthropic.messages.create(**fields)
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
}


def assert_one_lineage(trajectory: Trajectory, *, drift: str | None = None) -> None:
    assert {t.logs["drift"] for t in trajectory.transitions if "drift" in t.logs} <= {drift}
    assert trajectory.transitions[-1].metrics["lineages"] == 1
    for before, after in zip(trajectory.transitions, trajectory.transitions[1:], strict=False):
        known = before.ob.to_ints() + before.ac.tokens
        assert after.ob.to_ints()[: len(known)] == known
    [datum] = trajectory_to_data(trajectory, 1.0)
    last = trajectory.transitions[-1]
    assert datum.model_input.length == last.ob.length + len(last.ac.tokens) - 1


async def converse(
    api: str, renderer: cookbook.Renderer | None, said: list[str], *, stream: bool
) -> Trajectory:
    async def agent(client: AgentClient) -> float:
        await CONVERSATIONS[api](client, len(said), stream=stream)
        return 1.0

    script = ScriptedPolicy(said, renderer)
    return await do_single_rollout(script, ChatAgentEnv(agent, renderer=renderer))


every_conversation = pytest.mark.parametrize("api", CONVERSATIONS)
whole_and_stream = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@whole_and_stream
@every_conversation
async def test_a_conversation_is_one_lineage_of_the_sampled_tokens(api: str, stream: bool) -> None:
    odd = calling("look", q="ü\n\"'\\ 🐕", x=[1, {"y": None}], z=1.50)
    said = [LONG, ONE_CALL, ONE_CALL, "Well.", odd, "", calling("look"), "  Bye.\n"]

    trajectory = await converse(api, None, said, stream=stream)

    assert len(trajectory.transitions) == len(said)
    assert_one_lineage(trajectory)


@whole_and_stream
@every_conversation
async def test_thinking_that_stays_in_the_history_is_sent_back_and_recognised(
    make_renderer: Callable[[str], cookbook.Renderer], api: str, stream: bool
) -> None:
    renderer = make_renderer("qwen3_5_preserve_thinking")
    # the prompt has opened the thinking
    thought, one, two = "Hm, let me think.\n</think>\n\n", _in_xml("add", 1), _in_xml("look", 2)
    said = [
        f"{thought}So be it.",
        f"{thought}{one}",
        f"{thought}{one}\n{two}",
        f"{thought}Let me see.\n\n{two}",
        f"{thought}Bye.",
    ]

    trajectory = await converse(api, renderer, said, stream=stream)

    assert len(trajectory.transitions) == len(said)
    assert_one_lineage(trajectory)


def _in_xml(name: str, x: int) -> str:
    """A call of a tool as Qwen3.5 writes it."""
    parameter = f"<parameter=x>\n{x}\n</parameter>"
    return f"<tool_call>\n<function={name}>\n{parameter}\n</function>\n</tool_call>"


@pytest.mark.parametrize("name", ["parallel calls", "text and call"])
async def test_calls_in_the_white_space_that_qwen_writes_stay_in_one_lineage(name: str) -> None:
    trajectory = await converse("chat", None, [SAID[name], "Bye."], stream=False)

    assert_one_lineage(trajectory, drift="retokenised")  # and the sampled ids are kept
