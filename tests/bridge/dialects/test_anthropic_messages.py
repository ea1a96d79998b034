"""Anthropic's messages.

1. Every parameter of the SDK's ``create`` (and of its beta) has exactly one policy: honoured,
   ignored, or refused.
2. Blocks become messages of chat completions; results of tools become messages of their own.
3. What is written passes the SDK's own classes, and is recognised when it is sent back.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from anthropic.resources.beta.messages import Messages as BetaMessages
from anthropic.resources.messages import AsyncMessages, Messages
from anthropic.types import Message
from tests.bridge.sent_back import is_sent_back

from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.anthropic_messages import FIELDS, AnthropicMessages

MakeReply = Callable[..., Reply]

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ADD = {"name": "add", "description": "It.", "input_schema": SCHEMA}
ADD_READ = {
    "type": "function",
    "function": {"name": "add", "description": "It.", "parameters": SCHEMA},
}
HI = {"role": "user", "content": "Hi"}


@pytest.fixture
def dialect() -> AnthropicMessages:
    return AnthropicMessages("policy")


def request(**fields: Any) -> ChatRequest:
    return AnthropicMessages("policy").read({"messages": [HI], "max_tokens": 9, **fields})


def messages(*sent: Any, **fields: Any) -> list[Any]:
    return [*request(messages=[*sent], **fields).messages]


def refusal(**fields: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        request(**fields)
    return caught.value


# -- 1. the policies -----------------------------------------------------------------------------


def test_every_parameter_of_the_sdk_has_exactly_one_policy(
    parameters_of: Callable[..., set[str]],
) -> None:
    creates = (Messages.create, AsyncMessages.create, BetaMessages.create)
    for name in sorted(parameters_of(*creates)):
        policies = [name in names for names in (FIELDS.honoured, FIELDS.ignored, FIELDS.refused)]
        assert sum(policies) == 1, f"{name} has {sum(policies)} policies"


@pytest.mark.parametrize("name", sorted(FIELDS.ignored))
def test_an_ignored_field_changes_nothing(name: str) -> None:
    assert request(**{name: {"some": "thing"}}) == request()


REFUSED: dict[str, list[Any]] = {
    "compaction": [{"type": "auto"}],
    "container": ["c", {}],
    "mcp_servers": [[{"type": "url"}]],
    "thread": [{"type": "create"}],
}


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
    "name", sorted((FIELDS.honoured | {*FIELDS.refused}) - {"messages", "max_tokens"})
)
def test_null_is_the_same_as_an_absent_field(name: str) -> None:
    assert request(**{name: None}) == request()


def test_an_empty_list_of_servers_asks_for_nothing() -> None:
    assert request(mcp_servers=[]) == request()


def test_the_honoured_fields_reach_the_request() -> None:
    assert request(
        model="judge", system="Add.", tools=[ADD], max_tokens=5, stop_sequences=["END"], stream=True
    ) == ChatRequest("judge", [{"role": "system", "content": "Add."}, HI], [ADD_READ], 5, ("END",))


# -- 2. reading ----------------------------------------------------------------------------------


def test_a_system_of_blocks_is_one_message() -> None:
    blocks = [
        {"type": "text", "text": "Add."},
        {"type": "text", "text": "Well.", "cache_control": {"type": "ephemeral"}},
    ]

    assert messages(HI, system=blocks) == [{"role": "system", "content": "Add.\n\nWell."}, HI]


def test_a_system_message_in_between_stays_where_it_is() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "Now subtract."}]}

    assert messages(HI, system, HI)[1]["role"] == "system"


def test_a_reply_of_blocks_is_one_message() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "Let me "},
        {"type": "text", "text": "see."},
        {"type": "tool_use", "id": "c", "name": "add", "input": {"x": 1}},
    ]

    assert messages(HI, {"role": "assistant", "content": blocks})[1] == {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_content": "Hm.",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
        ],
    }


def test_the_results_of_tools_come_before_what_the_user_says() -> None:
    content = [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "2"}] * 2},
        {"type": "tool_result", "tool_use_id": "c"},
        {"type": "text", "text": "So?"},
    ]

    assert messages({"role": "user", "content": content}) == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "2\n2"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": [{"type": "text", "text": "So?"}]},
    ]


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "url", "url": "https://example.com/a.png"}, "https://example.com/a.png"),
        (
            {"type": "base64", "media_type": "image/png", "data": "AA"},
            "data:image/png;base64,AA",
        ),
    ],
)
def test_images_are_read(source: Any, url: str) -> None:
    block = {"type": "image", "source": source}

    assert messages({"role": "user", "content": [block]}) == [
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}
    ]


def test_images_that_a_tool_returned_are_read_beside_its_text() -> None:
    image = {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}}
    content = [{"type": "text", "text": "Seen:"}, image]
    result = {"type": "tool_result", "tool_use_id": "c", "content": content}

    [message] = request(messages=[{"role": "user", "content": [result]}]).messages
    assert message == {
        "role": "tool",
        "tool_call_id": "c",
        "content": [
            {"type": "text", "text": "Seen:"},
            {"type": "image_url", "image_url": {"url": "https://x/y.png"}},
        ],
    }


@pytest.mark.parametrize(
    "content",
    [
        None,
        5,
        [None],
        ["Hi"],
        [{}],
        [{"type": ["text"]}],
        [{"type": "text"}],
        [{"type": "document", "source": {}}],
        [{"type": "image", "source": {"type": "file"}}],
        [{"type": "tool_result", "tool_use_id": "c", "content": 5}],
        [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}],
    ],
)
def test_another_content_is_refused_with_its_place(content: Any) -> None:
    error = refusal(messages=[HI, {"role": "user", "content": content}])

    assert str(error.param).startswith("messages[1]")


@pytest.mark.parametrize(
    "message", [None, "Hi", {}, {"role": "tool", "content": "5"}, {"role": []}]
)
def test_another_message_is_refused_with_its_place(message: Any) -> None:
    assert refusal(messages=[HI, message]).param == "messages[1]"


@pytest.mark.parametrize("given", [None, "x", [], 5])
def test_the_input_of_a_call_must_be_an_object(given: Any) -> None:
    block = {"type": "tool_use", "id": "c", "name": "add", "input": given}
    error = refusal(messages=[HI, {"role": "assistant", "content": [block]}])

    assert error.message.startswith("messages[1].content[0].input must be an object, got ")


@pytest.mark.parametrize(
    "tool", [None, "add", {"type": "bash_20250124", "name": "bash"}, {"type": ["custom"]}]
)
def test_another_tool_is_refused_with_its_place(tool: Any) -> None:
    assert refusal(tools=[ADD, tool]).param == "tools[1]"


def test_tool_choice_none_hides_the_tools() -> None:
    assert request(tools=[ADD], tool_choice={"type": "none"}) == replace(request(), may_call=False)
    assert request(tools=[ADD], tool_choice={"type": "auto"}) == request(tools=[ADD])


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "add"}])
def test_a_forced_tool_is_a_format(choice: Any) -> None:
    assert request(tools=[ADD], tool_choice=choice).format == ReplyFormat(must_call=("add",))


@pytest.mark.parametrize(
    "choice",
    ["auto", 5, {}, {"type": "required"}, {"type": "tool"}, {"type": "tool", "name": "look"}],
)
def test_another_tool_choice_is_refused(choice: Any) -> None:
    assert refusal(tools=[ADD], tool_choice=choice).param == "tool_choice"


def test_formats_are_read_from_either_field() -> None:
    schema = {"type": "json_schema", "schema": SCHEMA}
    wanted = ReplyFormat(json.dumps(SCHEMA))

    assert request(output_config={"format": schema, "effort": "low"}).format == wanted
    assert request(output_format=schema).format == wanted
    assert request(output_config={"effort": "low"}).format is None


@pytest.mark.parametrize("value", [5, "json", {}, {"type": "json_schema"}, {"type": "xml"}])
def test_another_format_is_refused(value: Any) -> None:
    assert refusal(output_format=value).param == "output_config"
    assert refusal(output_config={"format": value}).param == "output_config"


@pytest.mark.parametrize("value", [5, "json", []])
def test_another_output_config_is_refused(value: Any) -> None:
    assert "'output_config' must be an object" in refusal(output_config=value).message


# -- 3. writing ----------------------------------------------------------------------------------

REPLIES: dict[str, dict[str, Any]] = {
    "text": {},
    "empty": {"text": ""},
    "cut": {"finish_reason": "length"},
    "reasoning": {"reasoning": "Hm."},
    "empty reasoning": {"reasoning": ""},
    "call": {"text": "", "calls": (("add", '{"x": 1}'),), "finish_reason": "tool_calls"},
    "everything": {"reasoning": "Hm.", "calls": (("add", '{ "x":1 }'), ("look", "{}"))},
}


@pytest.mark.parametrize("said", REPLIES.values(), ids=REPLIES)
def test_it_is_the_sdks_own_class_and_is_recognised_when_it_is_sent_back(
    dialect: AnthropicMessages, reply: MakeReply, said: dict[str, Any]
) -> None:
    answer = reply(**said)
    written = dialect.write(answer, request(), "1", {})

    message = Message.model_validate(written)
    assert message.id == "msg_1"
    for content in (written["content"], [block.to_dict() for block in message.content]):
        _, sent_back, _ = messages(HI, {"role": "assistant", "content": content}, HI)
        assert is_sent_back(answer, sent_back)


@pytest.mark.parametrize(
    ("said", "reason", "sequence"),
    [
        ({}, "end_turn", None),
        ({"finish_reason": "length"}, "max_tokens", None),
        ({"finish_reason": "tool_calls", "calls": (("add", "{}"),)}, "tool_use", None),
        ({"stop_string": "END"}, "stop_sequence", "END"),
        ({"stop_string": "END", "finish_reason": "length"}, "max_tokens", None),
    ],
)
def test_the_stop_reason_is_the_apis_own(
    dialect: AnthropicMessages,
    reply: MakeReply,
    said: dict[str, Any],
    reason: str,
    sequence: str | None,
) -> None:
    written = dialect.write(reply(**said), request(), "1", {})

    assert (written["stop_reason"], written["stop_sequence"]) == (reason, sequence)


@pytest.mark.parametrize("arguments", ["no JSON", "[1]", "5", "[" * 3000])
def test_arguments_that_are_no_object_are_given_whole(
    dialect: AnthropicMessages, reply: MakeReply, arguments: str
) -> None:
    [block] = dialect.write(reply("", calls=(("add", arguments),)), request(), "1", {})["content"]

    assert block["input"] == {"arguments": arguments}


def test_a_refusal_has_the_apis_form(dialect: AnthropicMessages) -> None:
    error = {"message": "No.", "type": "invalid_request_error", "param": "p", "code": "c"}
    written = {"type": "error", "error": {"type": "invalid_request_error", "message": "No."}}

    assert dialect.error(error, 400) == written
    event = dialect.error_event(error, 400).decode()
    assert event.startswith("event: error\n")
    assert json.loads(event.partition("data: ")[2]) == written


def test_a_refusal_without_a_type_is_an_invalid_request(dialect: AnthropicMessages) -> None:
    assert dialect.error({"message": "No."}, 400)["error"]["type"] == "invalid_request_error"
