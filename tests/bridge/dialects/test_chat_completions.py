"""A reply is a real ``ChatCompletion``: one that the SDK's own model accepts, and gives back."""

import time
from typing import Any

import pytest
from openai.types.chat import ChatCompletion
from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.dialects.chat_completions import completion
from evert.bridge.messages import FinishReason, Reply


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

    assert said.is_sent_back_as(message)
    assert said.is_sent_back_as(message.model_dump())
    assert said.is_sent_back_as(message.model_dump(exclude_none=True))
    assert said.is_sent_back_as(message.to_dict())


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
