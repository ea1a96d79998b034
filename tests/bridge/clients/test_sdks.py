"""The real OpenAI, Anthropic and Google SDKs, in this process, get what the real API would send.
``test_one_sdk.py`` tests features specific to one SDK."""

import asyncio
import typing
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Literal, get_args

import anthropic
import openai
import pytest
import tinker_cookbook.renderers as cookbook
from google.genai import errors, types
from pydantic import BaseModel
from tests.bridge.clients.conftest import (
    CONVERSATION,
    LONG,
    ONE_CALL,
    SAID,
    THOUGHT,
    assert_one_lineage,
)
from tests.bridge.clients.genai_calls import (
    CONVERSATIONS,
    assert_genai_typed,
    genai_blocking,
    genai_events,
    genai_whole,
    parts_of,
    said_by,
)
from tests.kit import as_agent, calling, play, play_without_a_call, system, user
from tests.kit.renderers import MakeRenderer
from tinker_cookbook.rl.rollout_limits import RolloutLimits

from evert import AgentClient, BlockingAgentClient, ChatAgentEnv

HELLO: Any = [user("Hello?")]
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
NAMES = ("add", "look")
FUNCTIONS: list[Any] = [{"name": name, "strict": True, "parameters": SCHEMA} for name in NAMES]
CLAUDES: list[Any] = [{"name": name, "description": "", "input_schema": SCHEMA} for name in NAMES]
FIELDS: dict[str, dict[str, Any]] = {
    "chat": {"messages": HELLO, "tools": [{"type": "function",
        "function": function} for function in FUNCTIONS]},
    "responses": {"input": HELLO, "tools": [{"type": "function",
        **function} for function in FUNCTIONS]},
    "anthropic": {"messages": HELLO, "tools": CLAUDES, "max_tokens": 500},
}  # fmt: skip
"""Default request fields."""

ALL = (*FIELDS, "genai")
FINAL = {"chat": "completion", "responses": "response", "anthropic": "message"}
EXTRA = {
    "ChatCompletionMessage": {"reasoning_content"},
    "ChoiceDelta": {"reasoning_content"},
    "ResponseFunctionCallArgumentsDoneEvent": {"name"},  # declared by the class before openai 3
}
"""Extra fields that we add on purpose, though the SDK's class does not declare them."""


def assert_typed(value: Any) -> None:
    """Assert that an SDK object only has fields declared by its class, with the declared types."""
    if isinstance(value, BaseModel):
        assert type(value).__module__.startswith(("openai.", "anthropic."))
        assert set(value.model_extra or ()) <= EXTRA.get(type(value).__name__, set()), value
        assert type(value).model_fields, value
        type(value).model_validate(value.model_dump(exclude_unset=True, warnings=False))
        for name in value.model_fields_set:
            assert_typed(getattr(value, name))
        assert_named(value)
    elif isinstance(value, (list, tuple)):
        for item in value:
            assert_typed(item)


def assert_named(value: BaseModel) -> None:
    """Assert that an object's `type` is one of the literals its class allows."""
    kind = type(value).model_fields.get("type")
    if kind is not None and typing.get_origin(kind.annotation) is Literal:
        assert value.type in get_args(kind.annotation)  # type: ignore[attr-defined]


def content(value: Any) -> Any:
    """Return an answer's content without ids and timestamps, which differ between answers."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True, warnings=False)
    if isinstance(value, dict):
        names = value.keys() - {"id", "call_id", "created", "created_at", "completed_at", "parsed"}
        names -= {"parsed_arguments", "parsed_output", "index"}  # added by the SDK helpers
        return {name: content(value[name]) for name in names}
    return [content(item) for item in value] if isinstance(value, list) else value


def usage_of(answer: Any) -> tuple[int, int]:
    """Return the prompt and completion token counts, whatever the SDK calls them."""
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


# -- making calls with each SDK ------------------------------------------------------------------


def calls_of(sdk: Any, api: str, kind: str = "") -> Any:
    if api == "anthropic":
        return getattr(sdk, f"anthropic{kind}").messages
    its = getattr(sdk, f"openai{kind}")
    return its.responses if api == "responses" else its.chat.completions


def fields_of(sdk: Any, api: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {"model": sdk.model, **FIELDS[api], **fields}


async def whole(sdk: AgentClient, api: str, **fields: Any) -> Any:
    if api == "genai":
        return await genai_whole(sdk, **fields)
    return await calls_of(sdk, api).create(**fields_of(sdk, api, fields))


async def events(sdk: AgentClient, api: str, **fields: Any) -> list[Any]:
    if api == "genai":
        return await genai_events(sdk, **fields)
    return [event async for event in await whole(sdk, api, stream=True, **fields)]


async def joined(sdk: AgentClient, api: str, **fields: Any) -> Any:
    """Stream a call and return the final answer assembled by the SDK's own helper."""
    if api == "chat":
        fields["stream_options"] = {"include_usage": True}
    async with calls_of(sdk, api).stream(**fields_of(sdk, api, fields)) as stream:
        async for event in stream:
            assert_named(event)
        return await getattr(stream, f"get_final_{FINAL[api]}")()


Way = Callable[..., Awaitable[Any]]


def by(api: str, *asks: Way, **fields: Any) -> list[Way]:
    return [partial(ask, api=api, **fields) for ask in asks]


async def ask_by(reply: str, *ways: Way, **options: Any) -> tuple[list[Any], Any]:
    """Make a call in each of these ways, all with the same reply. Return (answers, trajectory)."""
    answers: list[Any] = []

    async def agent(client: AgentClient) -> float:
        answers.extend([await way(client) for way in ways])
        return 1.0

    return answers, await play(agent, *[reply] * len(ways), **options)


# -- whole answers and streams -------------------------------------------------------------------


@pytest.mark.parametrize("said", SAID.values(), ids=SAID)
async def test_answers_have_the_sdks_types_and_streams_give_the_same_content(
    renderer: cookbook.Renderer | None, said: str
) -> None:
    ways = [way for api in FIELDS for way in by(api, whole, events, joined)]
    answers, trajectory = await ask_by(said, *ways, *by("genai", whole, events), renderer=renderer)

    for number, api in enumerate(FIELDS):
        answer, pieces, assembled = answers[3 * number : 3 * number + 3]
        assert_typed([answer, *pieces])
        assert len(pieces) >= 2, api
        assert content(assembled) == content(answer), api
    google, chunks = answers[-2:]
    for response in (google, *chunks):
        assert_genai_typed(response)
    assert all(map(parts_of, chunks))
    reasons = [chunk.candidates[0].finish_reason for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + [google.candidates[0].finish_reason]
    assert chunks[-1].usage_metadata == google.usage_metadata
    assert said_by(chunks) == said_by([google])
    for answer, transition in zip(answers, trajectory.transitions, strict=True):
        if not isinstance(answer, list):
            assert usage_of(answer) == (transition.ob.length, len(transition.ac.tokens))


async def test_a_truncated_reply_is_marked_as_truncated_streamed_or_not() -> None:
    cut = {"chat": "max_completion_tokens", "responses": "max_output_tokens"}
    cut |= {"anthropic": "max_tokens", "genai": "max_output_tokens"}
    ways = [way for api, cap in cut.items() for way in by(api, whole, events, **{cap: 5})]
    got, _ = await ask_by(LONG, *ways)

    assert [got[0].choices[0].finish_reason, got[1][-1].choices[0].finish_reason] == ["length"] * 2
    for response in (got[2], got[3][-1].response):
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
    assert [got[4].stop_reason, got[5][-2].delta.stop_reason] == ["max_tokens"] * 2
    reasons = [response.candidates[0].finish_reason for response in (got[6], got[7][-1])]
    assert reasons == ["MAX_TOKENS"] * 2


async def test_a_stream_includes_usage_only_on_request() -> None:
    with_usage = by("chat", events, stream_options={"include_usage": True})
    (answer, plain, counted), _ = await ask_by(LONG, *by("chat", whole, events), *with_usage)

    assert all(chunk.usage is None for chunk in [*plain, *counted[:-1]])
    assert counted[-1].usage == answer.usage
    assert counted[-1].choices == []


async def test_stream_events_come_in_each_apis_documented_order() -> None:
    reply = f"{THOUGHT}{LONG}\n{ONE_CALL}"
    (items, blocks), _ = await ask_by(reply, *by("responses", events), *by("anthropic", events))

    kinds = [event.type for event in items]
    assert [event.sequence_number for event in items] == [*range(len(items))]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_item.added") == 3
    assert kinds.count("response.output_item.done") == 3
    texts = [event.delta for event in items if event.type == "response.output_text.delta"]
    assert "".join(texts) == items[-1].response.output_text
    assert len(texts) > 3

    kinds = [event.type for event in blocks]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    opened = [event.content_block.type for event in blocks if event.type == "content_block_start"]
    assert opened == ["thinking", "text", "tool_use"]
    assert kinds.count("content_block_stop") == 3
    deltas = {event.delta.type for event in blocks if event.type == "content_block_delta"}
    assert deltas == {"thinking_delta", "signature_delta", "text_delta", "input_json_delta"}


async def test_text_reasoning_and_calls_are_in_each_sdks_own_fields() -> None:
    reply = f"{THOUGHT}So.\n{calling('add', x=1)}\n{calling('look', x=2)}"
    ways = [way for api in ALL for way in by(api, whole)]
    (chat, response, message, google), _ = await ask_by(reply, *ways)

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
    assert [text.strip() for text in said_by([google])[:2]] == ["So.", thought]
    assert [(call.name, call.args) for call in google.function_calls] == calls


async def test_ids_are_unique() -> None:
    ways = [way for api in FIELDS for way in by(api, whole, whole, joined)]
    answers, _ = await ask_by(SAID["parallel calls"], *ways, *by("genai", whole, whole))

    response_ids = {getattr(response, "id", None) or response.response_id for response in answers}
    assert len(response_ids) == len(answers)
    items = [item for response in answers[3:6] for item in response.output]
    calls = [item.call_id for item in items if item.type == "function_call"]
    assert len({item.id for item in items} | {*calls}) == len(items) + len(calls)
    ids = [call.id for response in answers[-2:] for call in response.function_calls]
    assert len({*ids}) == len(ids) == 6


class Sum(BaseModel):
    x: int
    why: str


FITS = '{"x": 7, "why": "so"}'


async def test_parse_and_the_streaming_helpers_return_the_agents_class() -> None:
    asks: dict[str, tuple[str, Callable[[Any], Any]]] = {
        "chat": ("response_format", lambda answer: answer.choices[0].message.parsed),
        "responses": ("text_format", lambda answer: answer.output_parsed),
        "anthropic": ("output_format", lambda answer: answer.parsed_output),
    }
    parsed_answers: list[Any] = []

    async def agent(client: AgentClient) -> float:
        for api, (name, parsed) in asks.items():
            fields = fields_of(client, api, {name: Sum})
            parsed_answers.append(parsed(await calls_of(client, api).parse(**fields)))
            parsed_answers.append(parsed(await joined(client, api, **{name: Sum})))
        return 1.0

    trajectory = await play(agent, FITS, f"```json\n{FITS}\n```", FITS, FITS, FITS, FITS)

    assert parsed_answers == [Sum(x=7, why="so")] * 6
    assert len(trajectory.transitions) == 6


async def test_counting_tokens_matches_the_length_of_the_sampled_prompt() -> None:
    counted: list[int | None] = []

    async def agent(client: AgentClient) -> float:
        fields: Any = {"model": client.model, "messages": HELLO, "tools": CLAUDES}
        counted.append((await client.anthropic.messages.count_tokens(**fields)).input_tokens)
        await whole(client, "anthropic")
        count = await client.genai.aio.models.count_tokens(model=client.model, contents="Hello?")
        counted.append(count.total_tokens)
        await genai_whole(client, tools=None)
        return 1.0

    trajectory = await play(agent, LONG, LONG)
    assert counted == [transition.ob.length for transition in trajectory.transitions]


# -- errors --------------------------------------------------------------------------------------

TOO_LONG = RolloutLimits(max_trajectory_tokens=40)


@pytest.mark.parametrize("ask", [whole, events], ids=["whole", "stream"])
async def test_a_prompt_that_is_too_long_raises_the_error_that_makes_agents_compact(
    ask: Way,
) -> None:
    caught: list[Any] = []

    async def agent(client: AgentClient) -> float:
        for api in ALL:
            try:
                await ask(client, api)
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


@pytest.mark.parametrize("api", ALL)
async def test_an_unhandled_long_prompt_error_ends_with_a_context_overflow(api: Any) -> None:

    async def agent(client: AgentClient, api: str = api) -> float:
        await whole(client, api)
        return 1.0

    end: Any = await ChatAgentEnv(agent, limits=TOO_LONG).initial_observation()
    assert end.reward == -0.1, api
    assert "prompt is too long" in end.logs["context_overflow"], api


@as_agent()
async def test_a_refused_field_raises_the_sdks_bad_request_error(client: AgentClient) -> None:
    google_search = [types.Tool(google_search=types.GoogleSearch())]
    refused: list[tuple[str, type[Exception], dict[str, Any], str]] = [
        ("chat", openai.BadRequestError, {"n": 2}, "Call again to get another"),
        ("responses", openai.BadRequestError, {"background": True}, "is not supported"),
        ("anthropic", anthropic.BadRequestError, {"container": "c"}, "is not supported"),
        ("genai", errors.ClientError, {"candidate_count": 2}, "Call again to get another"),
        ("genai", errors.ClientError, {"tools": google_search}, "Define functions"),
    ]
    for api, kind, fields, message in refused:
        for ask in (whole, events):
            with pytest.raises(kind, match=message):
                await ask(client, api, **fields)


@as_agent()
async def test_an_unknown_path_raises_the_sdks_not_found_error(client: AgentClient) -> None:
    with pytest.raises(openai.NotFoundError, match="Unknown endpoint: POST /v1/embeddings"):
        await client.openai.embeddings.create(model=client.model, input="Hi")
    with pytest.raises(anthropic.NotFoundError, match="Unknown endpoint: GET /v1/messages/batch"):
        await client.anthropic.messages.batches.retrieve("b")
    with pytest.raises(errors.ClientError, match="Unknown endpoint: POST") as caught:
        await client.genai.aio.models.embed_content(model=client.model, contents="Hi")
    assert (caught.value.code, caught.value.status) == (404, "NOT_FOUND")


@as_agent()
async def test_the_clients_never_retry_or_time_out(client: AgentClient) -> None:
    assert client.openai.max_retries == client.openai_sync.max_retries == 0
    assert client.anthropic.max_retries == client.anthropic_sync.max_retries == 0
    assert client.openai.timeout is None
    assert client.anthropic.timeout is None


def check_blocking(client: BlockingAgentClient | AgentClient) -> None:
    """Assert that the blocking SDKs give the same answers with and without streaming."""
    for api in FIELDS:
        calls = calls_of(client, api, "_sync")
        answer = calls.create(**fields_of(client, api, {}))
        usage = {"stream_options": {"include_usage": True}} if api == "chat" else {}
        with calls.stream(**fields_of(client, api, usage)) as stream:
            for event in stream:
                assert_named(event)
            assert content(getattr(stream, f"get_final_{FINAL[api]}")()) == content(answer)
        assert_typed(answer)
    google, chunks = genai_blocking(client)
    assert_genai_typed(google)
    assert said_by(chunks) == said_by([google])


async def test_blocking_clients_work_in_a_sync_agent_and_in_a_thread() -> None:
    def agent(client: BlockingAgentClient) -> float:
        check_blocking(client)
        return 1.0

    async def threaded(client: AgentClient) -> float:
        await asyncio.to_thread(check_blocking, client)
        return 1.0

    await play(agent, *[SAID["reasoning and calls"]] * 8)
    await play(threaded, *[SAID["parallel calls"]] * 8)


# -- conversations -------------------------------------------------------------------------------


async def answer_to(client: AgentClient, api: str, stream: bool, **fields: Any) -> Any:
    return await (joined if stream else whole)(client, api, **fields)


async def chat_conversation(client: AgentClient, rounds: int, *, stream: bool) -> None:
    messages: list[Any] = [system("You add."), *HELLO]
    for number in range(rounds):
        answer = await answer_to(client, "chat", stream, messages=messages)
        message = answer.choices[0].message
        results = [
            {"role": "tool", "tool_call_id": call.id, "content": f"{number}!"}
            for call in message.tool_calls or ()
        ]
        messages += [message, *(results or [user(f"Go on, {number}.")])]


async def responses_conversation(
    client: AgentClient, rounds: int, *, stream: bool, has_state: bool = False
) -> None:
    items, state = [*HELLO], {"instructions": "You add."}
    for number in range(rounds):
        response = await answer_to(client, "responses", stream, input=items, **state)
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": f"{number}!"}
            for item in response.output
            if item.type == "function_call"
        ]
        if has_state:
            state["previous_response_id"] = response.id
        items = [] if has_state else [*items, *response.output]
        items += results or [user(f"Go on, {number}.")]


async def anthropic_conversation(client: AgentClient, rounds: int, *, stream: bool) -> None:
    messages = [*HELLO]
    for number in range(rounds):
        message = await answer_to(client, "anthropic", stream, messages=messages, system="You add.")
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"{number}!"}
            for block in message.content
            if block.type == "tool_use"
        ]
        messages.append({"role": "assistant", "content": message.content})
        messages.append({"role": "user", "content": results or f"Go on, {number}."})


CONVERSATIONS = {
    "chat": chat_conversation,
    "responses": responses_conversation,
    "responses with state": partial(responses_conversation, has_state=True),
    "anthropic": anthropic_conversation,
    **CONVERSATIONS,
}
every_conversation = pytest.mark.parametrize("api", CONVERSATIONS)
whole_and_stream = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


async def converse(
    api: str, replies: list[str], *, stream: bool, drift: str | None = None, **options: Any
) -> None:
    """Assert that a conversation with these replies stays in a single lineage."""

    async def agent(client: AgentClient) -> float:
        await CONVERSATIONS[api](client, len(replies), stream=stream)
        return 1.0

    trajectory = await play(agent, *replies, **options)
    assert len(trajectory.transitions) == len(replies)
    assert_one_lineage(trajectory, drift=drift)


@whole_and_stream
@every_conversation
async def test_a_conversation_is_one_lineage_of_sampled_tokens(api: str, stream: bool) -> None:
    # One tool call violates the schema of its strict tool, and is delivered without a retry.
    await converse(api, CONVERSATION, stream=stream, format_retries=0)


@whole_and_stream
@every_conversation
async def test_thinking_kept_in_the_history_is_recognised_when_sent_back(
    make_renderer: MakeRenderer, api: str, stream: bool
) -> None:
    # no opening <think>, because it is part of the prompt
    thought, one, two = "Hm, let me think.\n</think>\n\n", _in_xml("add", 1), _in_xml("look", 2)
    texts = ["So be it.", one, f"{one}\n{two}", f"Let me see.\n\n{two}", "Bye."]
    replies = [f"{thought}{text}" for text in texts]

    await converse(api, replies, stream=stream, renderer=make_renderer("qwen3_5_preserve_thinking"))


def _in_xml(name: str, x: int) -> str:
    """Return a tool call in Qwen3.5's XML format."""
    parameter = f"<parameter=x>\n{x}\n</parameter>"
    return f"<tool_call>\n<function={name}>\n{parameter}\n</function>\n</tool_call>"


@pytest.mark.parametrize("said", [SAID["parallel calls"], SAID["text and call"]])
async def test_calls_with_qwens_whitespace_stay_in_one_lineage(said: Any) -> None:
    await converse("chat", [said, "Bye."], stream=False, drift="retokenised")
    await converse("ids dropped", [said, "Bye."], stream=True, drift="retokenised")
