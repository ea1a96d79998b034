"""OpenAI's chat completions.

1. Every parameter of the SDK's ``create`` has exactly one policy: honoured, ignored, or refused.
2. Honoured fields reach the ``ChatRequest``; ignored ones change nothing; refused ones are a 400
   that says what to do instead; null and the SDK's markers are the same as an absent field.
3. A reply is a real ``ChatCompletion``: one that the SDK's own model accepts, and gives back.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.resources.chat.completions import AsyncCompletions, Completions
from openai.types.chat import ChatCompletion
from tests.bridge.sent_back import is_sent_back
from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.chat.formats import ANY_OBJECT, ReplyFormat
from evert.bridge.chat.reply import FinishReason, Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.chat_completions import FIELDS, ChatCompletions, completion, read

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
NAMED = {"type": "function", "function": {"name": "add"}}
SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ABSENT = [None, openai.NOT_GIVEN, openai.omit]


def request(**fields: Any) -> ChatRequest:
    return read({"messages": MESSAGES, **fields}, "policy", strict=True)


def refusal(**fields: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        request(**fields)
    return caught.value


# -- 1. the policies -----------------------------------------------------------------------------


def test_every_parameter_of_the_sdk_has_exactly_one_policy(
    parameters_of: Callable[..., set[str]],
) -> None:
    parameters = parameters_of(Completions.create, AsyncCompletions.create)

    assert {"messages", "stream", "extra_body", "timeout"} <= parameters
    for name in sorted(parameters):
        policies = [name in names for names in (FIELDS.honoured, FIELDS.ignored, FIELDS.refused)]
        assert sum(policies) == 1, f"{name} has {sum(policies)} policies"


# -- 2. reading ----------------------------------------------------------------------------------


def test_a_request_of_messages_alone_has_the_policys_name_and_no_more() -> None:
    assert request() == ChatRequest("policy", MESSAGES)
    assert request().messages is MESSAGES


def test_the_honoured_fields_reach_the_request() -> None:
    assert request(
        model="judge", tools=[TOOL], max_tokens=5, max_completion_tokens=4, stop="END", stream=False
    ) == ChatRequest("judge", MESSAGES, [TOOL], 4, ("END",))


@pytest.mark.parametrize("name", sorted(FIELDS.ignored))
def test_an_ignored_field_changes_nothing(name: str) -> None:
    assert request(**{name: object()}) == request()


REFUSED: dict[str, list[Any]] = {
    "n": [2, 0, "1"],
    "top_logprobs": [1, 5],
    "logit_bias": [{"50256": -100}],
    "modalities": [["text", "audio"], ["audio"], [], "text", 5],
    "audio": [{"voice": "alloy", "format": "wav"}],
    "functions": [[], [{"name": "add"}]],
    "function_call": ["auto", {"name": "add"}],
    "web_search_options": [{}],
    "moderation": [{"model": "omni-moderation-latest"}],
}


def test_log_probabilities_are_asked_for_by_a_flag() -> None:
    assert request(logprobs=True) == ChatRequest("policy", MESSAGES, logprobs=True)
    assert request(logprobs=True, top_logprobs=0).logprobs
    assert refusal(logprobs=5).message == "'logprobs' must be true or false, got 5."


def test_every_refused_field_has_a_value_here() -> None:
    assert set(REFUSED) == set(FIELDS.refused)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_a_refused_field_is_a_400_that_says_what_to_do(name: str, value: Any) -> None:
    error = refusal(**{name: value})

    assert error.message == f"'{name}'={value!r} is not supported. {FIELDS.refused[name][1]}"
    assert error.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1),
        ("stream", False),
        ("logprobs", False),
        ("top_logprobs", 0),
        ("tool_choice", "auto"),
        ("response_format", {"type": "text"}),
        ("logit_bias", {}),
        ("modalities", ["text"]),
        ("modalities", ("text",)),
    ],
)
def test_a_value_that_asks_for_nothing_special_passes(name: str, value: Any) -> None:
    assert request(**{name: value}) == request()


@pytest.mark.parametrize(
    "name", sorted((FIELDS.honoured | FIELDS.ignored | {*FIELDS.refused}) - {"messages"})
)
@pytest.mark.parametrize("absent", ABSENT, ids=["null", "NOT_GIVEN", "omit"])
def test_an_absent_field_is_absent_in_every_spelling(name: str, absent: object) -> None:
    assert request(**{name: absent}) == request()


def test_an_unknown_field_is_an_error_for_arguments_and_passes_over_the_wire() -> None:
    assert refusal(max_output_tokens=5).param == "max_output_tokens"
    body = {"messages": MESSAGES, "max_output_tokens": 5}
    assert ChatCompletions("policy").read(body) == request()


def test_tool_choice_none_hides_the_tools() -> None:
    assert request(tools=[TOOL], tool_choice="auto") == request(tools=[TOOL])
    assert request(tools=[TOOL], tool_choice="none") == replace(request(), may_call=False)


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_forced_tool_is_a_format(choice: Any) -> None:
    assert request(tools=[TOOL], tool_choice=choice).format == ReplyFormat(must_call=("add",))


@pytest.mark.parametrize("choice", ["any", 5, [], {}, {"type": "allowed_tools"}, {"function": 5}])
def test_another_tool_choice_is_refused(choice: Any) -> None:
    error = refusal(tools=[TOOL], tool_choice=choice)

    assert error.param == "tool_choice"
    assert error.message.startswith(f"'tool_choice'={choice!r}; expected 'auto', 'none', ")


@pytest.mark.parametrize("choice", ["required", NAMED])
def test_a_tool_that_is_not_offered_cannot_be_forced(choice: Any) -> None:
    assert refusal(tool_choice=choice).param == "tool_choice"


def test_response_formats_are_read() -> None:
    wrapped = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}

    assert request(response_format={"type": "json_object"}).format == ReplyFormat(ANY_OBJECT)
    assert request(response_format=wrapped).format == ReplyFormat(json.dumps(SCHEMA))


@pytest.mark.parametrize(
    "value",
    [
        "text",
        5,
        {},
        {"type": "xml"},
        {"type": "json_schema"},
        {"type": "json_schema", "schema": {}},
    ],
)
def test_another_response_format_is_refused(value: Any) -> None:
    assert refusal(response_format=value).param == "response_format"


@pytest.mark.parametrize("value", [1, "true", []])
def test_stream_must_be_a_flag_over_the_wire(value: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="'stream' must be true or false"):
        ChatCompletions("policy").read({"messages": MESSAGES, "stream": value})


@pytest.mark.parametrize("value", [True, "usage", []])
def test_stream_options_must_be_an_object(value: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="'stream_options' must be an object"):
        ChatCompletions("policy").read({"messages": MESSAGES, "stream_options": value})


@pytest.mark.parametrize("body", [{}, {"messages": []}, {"messages": "Hi"}])
def test_a_request_without_messages_says_so(body: Mapping[str, Any]) -> None:
    with pytest.raises(openai.BadRequestError, match="'messages' must be a non-empty list"):
        read(body, "policy")


# -- 3. writing ----------------------------------------------------------------------------------


def reply(
    text: str = "Hello.",
    *,
    reasoning: str | None = None,
    tool_calls: tuple[ToolCall, ...] = (),
    finish_reason: FinishReason = "stop",
) -> Reply:
    parsed = Message(role="assistant", content=text)
    return Reply(parsed, text, reasoning, tool_calls, (), finish_reason, 11, 3)


def call(id: str | None = "call-1", arguments: str = '{"x": 1}') -> ToolCall:
    return ToolCall(id=id, function=ToolCall.FunctionBody(name="add", arguments=arguments))


def complete(said: Reply) -> ChatCompletion:
    return completion(said, id="chatcmpl-evert-0", model="policy")


REPLIES = {
    "text": reply(),
    "empty": reply(""),
    "cut": reply("Hel", finish_reason="length"),
    "reasoning": reply(reasoning="Hm."),
    "empty reasoning": reply(reasoning=""),
    "tool call": reply("", tool_calls=(call(),), finish_reason="tool_calls"),
    "text and tool calls": reply(
        "Both.", tool_calls=(call(), call("call-2")), finish_reason="tool_calls"
    ),
    "everything": reply("So.", reasoning="Hm.", tool_calls=(call(),), finish_reason="length"),
}


@pytest.mark.parametrize("said", REPLIES.values(), ids=REPLIES)
def test_it_round_trips_through_the_sdks_model(said: Reply) -> None:
    completion = complete(said)

    assert type(completion) is ChatCompletion
    assert ChatCompletion.model_validate(completion.model_dump()) == completion
    assert ChatCompletion.model_validate_json(completion.model_dump_json()) == completion


@pytest.mark.parametrize("said", REPLIES.values(), ids=REPLIES)
def test_its_message_is_recognised_when_it_is_sent_back(said: Reply) -> None:
    message = complete(said).choices[0].message

    assert is_sent_back(said, message)
    assert is_sent_back(said, message.model_dump())
    assert is_sent_back(said, message.model_dump(exclude_none=True))
    assert is_sent_back(said, message.to_dict())


def test_there_is_one_choice_by_the_assistant() -> None:
    completion = complete(reply())

    assert completion.object == "chat.completion"
    assert completion.id == "chatcmpl-evert-0"
    assert completion.model == "policy"
    [choice] = completion.choices
    assert choice.index == 0
    assert choice.logprobs is None
    assert choice.message.role == "assistant"
    assert choice.message.content == "Hello."
    assert choice.message.tool_calls is None
    assert choice.message.refusal is None


def test_it_says_when_it_was_made_in_whole_seconds() -> None:
    before = int(time.time())
    created = complete(reply()).created
    after = int(time.time())

    assert type(created) is int
    assert before <= created <= after


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls"])
def test_the_finish_reason_is_the_replys(reason: FinishReason) -> None:
    assert complete(reply(finish_reason=reason)).choices[0].finish_reason == reason


def test_usage_counts_the_tokens_of_observation_and_action() -> None:
    usage = complete(reply()).usage

    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (11, 3, 14)


def test_reasoning_has_a_field_of_its_own_and_is_absent_when_there_is_none() -> None:
    thoughtful: Any = complete(reply(reasoning="Hm.")).choices[0].message
    plain = complete(reply()).choices[0].message

    assert thoughtful.reasoning_content == "Hm."
    assert thoughtful.content == "Hello."
    assert thoughtful.model_dump()["reasoning_content"] == "Hm."
    assert not hasattr(plain, "reasoning_content")


def test_tool_calls_keep_their_ids_names_and_arguments_to_the_letter() -> None:
    spaced = '{ "x":1 }'
    said = reply("", tool_calls=(call("a", spaced), call("b")), finish_reason="tool_calls")
    message = complete(said).choices[0].message

    assert message.tool_calls is not None
    assert [one.model_dump() for one in message.tool_calls] == [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": spaced}},
        {"id": "b", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
    ]


def test_empty_text_is_null_beside_tool_calls_and_an_empty_string_alone() -> None:
    with_call = complete(reply("", tool_calls=(call(),))).choices[0].message

    assert with_call.content is None
    assert complete(reply("")).choices[0].message.content == ""
    assert complete(reply("Hi", tool_calls=(call(),))).choices[0].message.content == "Hi"
