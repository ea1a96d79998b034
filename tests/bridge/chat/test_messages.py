"""Messages sent by agents, and the replies they receive.

Dicts and SDK objects are read the same way. A malformed message gets a 400 whose ``param`` and text
point to the error. A reply is recognised in whatever form an agent sends it back, as long as its
content is unchanged. ``clients/dialects/test_contract.py`` tests the request fields.
"""

import json
import logging
from typing import Any

import openai
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)
from tests.bridge.conversations.sent_back import is_sent_back
from tests.kit import Logs, Patch, as_agent, ask, assistant, tool, user
from tinker_cookbook.renderers.base import Message, ToolCall, UnparsedToolCall

from evert.bridge.chat.bad_requests import bad_request, context_length_exceeded
from evert.bridge.chat.fields import MOST_WARNED, FieldPolicy
from evert.bridge.chat.messages import ROLES, as_fields, read_message, read_tools
from evert.bridge.chat.reply import Reply, call_id, read_reply
from evert.bridge.clients.dialects.chat_completions import completion

CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
DATA = "data:image/png;base64,AA=="
HM, SO = {"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So."}
HELLO, AND = {"type": "text", "text": "Hello."}, {"type": "text", "text": "And?"}
IMAGE = {"type": "image_url", "image_url": {"url": DATA}}
DEEP = "[" * 5000
"""Nested too deeply for Python to parse."""


def read(message: object, **tool_names: str) -> Message:
    return read_message(message, 3, {id.replace("_", "-"): name for id, name in tool_names.items()})


def message(role: str, content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **fields}


def turn(content: Any, **fields: Any) -> dict[str, Any]:
    return message("assistant", content, **fields)


def called(*changes: dict[str, Any]) -> dict[str, Any]:
    return turn("", tool_calls=[{**CALL, **change} for change in changes])


def tool_call(id: str | None = "call-1", arguments: str = '{"x": 1}') -> ToolCall:
    return ToolCall(id=id, function=ToolCall.FunctionBody(name="add", arguments=arguments))


def reply_of(content: Any = "Hello.", *, truncated: bool = False, **fields: Any) -> Reply:
    parsed: Any = turn(content, **fields)
    return read_reply(
        parsed, truncated=truncated, call_ids="call-7", prompt_tokens=11, completion_tokens=3
    )


def sdk_message(reply: Reply) -> ChatCompletionMessage:
    return completion(reply, id="chatcmpl-evert-0", model="policy").choices[0].message


# -- reading messages ------------------------------------------------------------------------------

RESULT = message("tool", "2", tool_call_id="call-1")
SPACED = {"function": {"name": "add", "arguments": '{ "x":1 }'}}
SDK_CALL = ChatCompletionMessageFunctionToolCall(
    id="call-1", type="function", function=Function(name="add", arguments='{"x": 1}')
)
CALLED = turn("", tool_calls=[tool_call()])
NO_CALLS: list[Any] = [None, [], ()]
NOTHING: list[Any] = [{}, {"content": None}, {"content": ""}]
IMAGES: list[Any] = [
    IMAGE,
    {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}},
    {"type": "image_url", "image_url": DATA},
    {"type": "image", "image": DATA},
]
SHOWN = {"type": "image", "image": DATA}

READ: list[tuple[dict[str, Any], dict[str, Any]]] = [
    (message("developer", "Hi"), message("system", "Hi")),
    (message("user", "Hi", name="Ada"), message("user", "Hi", name="Ada")),
    *((message("user", "Hi", name=none), user("Hi")) for none in (None, "")),
    (message("user", "Hi", reasoning_content="Hm.", tool_calls=[CALL]), user("Hi")),
    (message("tool", "2"), message("tool", "2")),
    *((message("user", [{**HELLO, "type": kind}, {**SO, "type": kind}]),
        user("Hello.So.")) for kind in ("text", "input_text", "output_text")),
    *((message("user", [HELLO, i, SO]), message("user", [HELLO, SHOWN, SO])) for i in IMAGES),
    (message("user", [IMAGE]), message("user", [SHOWN])),
    *(({"role": "assistant", **nothing}, assistant("")) for nothing in NOTHING),
    *(({"role": "assistant", "tool_calls": [call], **nothing},
        CALLED) for nothing in NOTHING for call in (CALL, SDK_CALL)),
    *((turn("Hi", tool_calls=none), assistant("Hi")) for none in NO_CALLS),
    (called(SPACED), turn("", tool_calls=[tool_call(arguments='{ "x":1 }')])),
    (turn([HM, SO]), turn([HM, SO])),
    *((turn("So.", **{f: "Hm."}), turn([HM, SO])) for f in ("reasoning_content", "reasoning")),
    (turn([SO, SO], reasoning="Hm."), turn([HM, {"type": "text", "text": "So.So."}])),
    *((turn("So.", reasoning_content=none), turn("So.")) for none in (None, "", {"effort": "low"})),
]  # fmt: skip


def test_messages_are_read() -> None:
    for messages, expected in READ:
        assert read(messages) == expected, messages
    message = user("Hi")
    assert as_fields(message, 0) is message


@given(st.text(), st.sampled_from(sorted(ROLES)))
def test_text_is_kept_exactly(text: str, role: str) -> None:
    for content in (text, [{"type": "text", "text": text}]):
        assert read(message(role, content))["content"] == text


def test_a_tool_result_without_a_name_takes_it_from_its_call() -> None:
    assert read(RESULT, call_1="add") == {**RESULT, "name": "add"}
    assert read(RESULT, call_2="add") == RESULT
    assert read({**RESULT, "name": "sum"}, call_1="add").get("name") == "sum"


def test_tools_are_read_with_name_description_and_schema() -> None:
    class Add(pydantic.BaseModel):
        x: int

    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    dumped = {**schema, "properties": {"x": {"title": "X", "type": "integer"}}, "title": "Add"}
    nothing = {"type": "object", "properties": {}}
    tools: list[tuple[Any, dict[str, Any]]] = [
        (tool("add", description="Adds.", parameters=schema, strict=True), schema),
        (tool("add", description="Adds.", parameters={}), nothing),
        (tool("add", description="Adds.", parameters=None), nothing),
        (tool("add", description="Adds.", parameters={"properties": {}}), {"properties": {}}),
        (
            openai.pydantic_function_tool(Add, name="add", description="Adds."),
            {**dumped, "additionalProperties": False},
        ),
    ]
    for sent, parameters in tools:
        expected = {"name": "add", "description": "Adds.", "parameters": parameters}
        assert read_tools([sent]) == [expected]
    assert read_tools([{"function": {"name": "now"}}])[0]["description"] == ""


ROLE = "messages[3] has role {!r}; expected one of system, developer, user, assistant, tool."
MESSAGE = "messages[3] must be a dict with 'role' and 'content', got {}: {!r}."
PART = "messages[3].content[1] is {!r}; expected a part of type 'text' or 'image_url'."
CONTENT = "messages[3].content must be a string or a list of parts, got {}: {!r}."
CALL_FORM = "messages[3].tool_calls[1] is {!r}; expected {{'id': "
CALL_LIST = "messages[3].tool_calls must be a list of calls, got {!r}."
ARGUMENTS = "messages[3].tool_calls[0].function.arguments is not JSON ("

NO_ROLES: list[Any] = [None, "", "function", "User", 5, ["user"], {"name": "user"}]
NO_MESSAGES: list[Any] = ["Hi", None, 5, ["user", "Hi"]]
NO_PARTS: list[Any] = [
    *("Hi", None, {}, {"text": "Hi"}, {"type": "text"}, {"type": "text", "text": None}),
    *({"type": "text", "text": ["Hi"]}, {"type": "thinking"}, {"type": "image_url"}),
    *({"type": "image_url", "image_url": wrong} for wrong in ({}, {"url": 5})),
    *({"type": "image"}, {"type": "refusal"}),
    {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
]
NO_FUNCTIONS: list[Any] = [
    *(None, "add", {"arguments": "{}"}),
    *({"name": 5, "arguments": "{}"}, {"name": "add", "arguments": {"x": 1}}),
]
NO_CALL: list[Any] = [
    *("add", None, {}, {"id": "call-1"}),
    {"id": "call-1", "type": "custom", "custom": {"name": "add", "input": "1"}},
    {"id": 5, "function": {"name": "add", "arguments": "{}"}},
    *({"id": "call-1", "function": function} for function in NO_FUNCTIONS),
]
REFUSED: list[tuple[object, str]] = [
    *((message(role, "Hi"), ROLE.format(role)) for role in NO_ROLES),
    ({"content": "Hi"}, ROLE.format(None)),
    *((value, MESSAGE.format(type(value).__name__, value)) for value in NO_MESSAGES),
    *((message("user", [HELLO, part]), PART.format(part)) for part in NO_PARTS),
    *((message(role, content), CONTENT.format(type(content).__name__, content)) for role in ("user",
        "assistant", "tool") for content in (5, HELLO, b"Hi", None) if (role,
        content) != ("assistant", None)),
    *((turn("", tool_calls=[CALL, call]), CALL_FORM.format(call)) for call in NO_CALL),
    *((turn("", tool_calls=no), CALL_LIST.format(no)) for no in (5, True, "add", {"id": "call-1"})),
    *((called({"function": {"name": "add", "arguments": arguments}}),
        ARGUMENTS) for arguments in ("{", "x=1", "{'x': 1}", DEEP)),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "told"), REFUSED)
def test_the_error_for_a_malformed_message_names_its_location(sent: Any, told: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        read(sent)
    place = told.partition(" ")[0].removesuffix(".function.arguments")
    where = f"{place}.role" if " has role " in told else place
    assert (caught.value.status_code, caught.value.param) == (400, where), sent
    assert caught.value.message.startswith(told), sent


CIRCULAR: dict[str, Any] = {"type": "object", "properties": {}}
CIRCULAR["properties"]["self"] = CIRCULAR
TOOL_FORM = "tools[1] is {!r}; expected {{'type': 'function', 'function': "
SCHEMA = "tools[1].function.parameters must be a JSON schema of type 'object', got {!r}."
NO_TOOLS: list[Any] = [
    *("add", None, {}, {"type": "function"}, {"type": "web_search"}),
    *({"type": "function", "function": function} for function in ("add", {}, {"name": 5})),
    {"type": "function", "name": "add", "parameters": {}},
]
NO_SCHEMAS: list[Any] = ["object", [1], *({"type": t} for t in ("string", "array", ["object"]))]
NO_JSON: list[Any] = [{"x": int}, {"x": {"enum": {1, 2}}}, {(1, 2): {}}, CIRCULAR]


def test_the_error_for_a_malformed_tool_names_its_location() -> None:
    refused: list[tuple[Any, str, str]] = [
        *((value, TOOL_FORM.format(value), "") for value in NO_TOOLS),
        *(
            (tool("add", parameters=no), SCHEMA.format(no), ".function.parameters")
            for no in NO_SCHEMAS
        ),
        *(
            (
                tool("add", parameters={"properties": no}),
                "cannot be serialized to JSON: ",
                ".function.parameters",
            )
            for no in NO_JSON
        ),
    ]
    for wrong, message, field in refused:
        with pytest.raises(openai.BadRequestError) as caught:
            read_tools([tool("now"), wrong])
        assert message in caught.value.message, wrong
        assert caught.value.param == f"tools[1]{field}", wrong


# -- replies ---------------------------------------------------------------------------------------


def test_a_reply_is_split_into_text_reasoning_and_calls() -> None:
    reply = reply_of("Hello.")
    assert (reply.parsed, reply.text, reply.reasoning) == (assistant("Hello."), "Hello.", None)
    assert (reply.prompt_tokens, reply.completion_tokens) == (11, 3)
    both = reply_of([HM, SO, {"type": "thinking", "thinking": "And?"}, HELLO])
    assert (both.text, both.reasoning) == ("So.Hello.", "Hm.\nAnd?")
    assert (reply_of([SO]).reasoning, reply_of([]).text) == (None, "")
    assert reply_of("\n So. \n", tool_calls=[tool_call()]).text == "So."
    for tool_calls, expected in ((None, "stop"), ([], "stop"), ([tool_call()], "tool_calls")):
        assert reply_of("Hi", tool_calls=tool_calls).finish_reason == expected
        assert reply_of("Hi", tool_calls=tool_calls, truncated=True).finish_reason == "length"


def test_calls_without_an_id_get_one_but_the_parsed_message_is_not_changed() -> None:
    reply = reply_of("", tool_calls=[tool_call(None), tool_call("own"), tool_call(None)])
    ids = [call.id for call in reply.tool_calls]
    assert ids == [call_id("call-7-0"), "own", call_id("call-7-2")]
    assert [call.id for call in reply.parsed.get("tool_calls", [])] == [None, "own", None]


def test_an_unparsed_call_appears_once_in_the_text() -> None:
    lost = UnparsedToolCall(raw_text="<tool_call>{</tool_call>", error="Invalid JSON")
    for text in ("Hi.", "Hi.<tool_call>{</tool_call>"):
        reply = reply_of(text, unparsed_tool_calls=[lost])
        assert (reply.text, reply.unparsed) == ("Hi.<tool_call>{</tool_call>", (lost,))


# -- recognising replies that agents send back -----------------------------------------------------

TEXT, EMPTY, THOUGHT = reply_of("Hello."), reply_of(""), reply_of([HM, SO])
CALLS = reply_of("", tool_calls=[tool_call("a", '{"x": 1, "y": [2]}'), tool_call("b")])
EVERYTHING = reply_of([HM, SO], tool_calls=[tool_call("a")])


def test_a_reply_is_recognised_in_all_sdk_forms_and_without_its_reasoning() -> None:
    for reply in (TEXT, EMPTY, CALLS, THOUGHT, EVERYTHING):
        sdks = sdk_message(reply)
        fields = sdks.model_dump()
        fields.pop("reasoning_content", None)
        for message in (
            *(sdks, sdks.model_copy(deep=True), sdks.model_dump(), fields),
            *(sdks.model_dump(exclude_none=True), sdks.model_dump(exclude_unset=True)),
            json.loads(sdks.model_dump_json()),
            *({**fields, "reasoning_content": none} for none in (None, "")),
            {**fields, "reasoning": None},
        ):
            assert is_sent_back(reply, message), (reply, message)
    assert read(sdk_message(EVERYTHING)) == turn([HM, SO], tool_calls=[tool_call("a")])


def call_a(**changes: Any) -> dict[str, Any]:
    return {**CALL, "id": "a", **changes}


REWRITTEN_CALLS = [call_a(function={"name": "add", "arguments": '{"y":[2],"x":1}'}), call_a(id="b")]
OTHER_FUNCTIONS: list[Any] = [
    *(None, "add", {"name": "add"}, {"name": "sum", "arguments": '{"x": 1}'}),
    *({"name": "add", "arguments": arguments} for arguments in ('{"x": 2}', "{", None)),
]
OTHER_CALLS: list[Any] = [
    *(None, [], ["add"], [None], 5, {"a": call_a()}),
    *([call_a(), call_a(id="b")], [call_a(id="b")], [call_a(id=None)]),
    *([call_a(function=function)] for function in OTHER_FUNCTIONS),
]
OTHER_TEXTS: list[Any] = [
    *(None, "", "hello.", "Hello .", "Hel lo.", [], ["Hello."], 5),
    *([{"type": "text", "text": "Hello"}], [HELLO, AND], [HELLO, IMAGE]),
]

SAME: list[tuple[Reply, object]] = [
    *((TEXT, turn(form)) for form in ([HELLO], (HELLO,), [{**HELLO, "type": "output_text"}])),
    (TEXT, turn([{"type": "text", "text": text} for text in ("Hel", "lo.")])),
    *((EMPTY, {"role": "assistant", **nothing}) for nothing in (*NOTHING, {"content": []})),
    (CALLS, turn("", tool_calls=REWRITTEN_CALLS)),
    *((THOUGHT, turn("So.", **{field: "Hm."})) for field in ("reasoning_content", "reasoning")),
    (EVERYTHING, turn("So.", tool_calls=[call_a()])),
]
ANOTHER: list[tuple[Reply, object]] = [
    *((reply, turn(reply.text, **{field: "Well."})) for reply in (THOUGHT,
        TEXT) for field in ("reasoning_content", "reasoning")),
    (THOUGHT, sdk_message(THOUGHT).model_copy(update={"reasoning_content": "Well."})),
    *((TEXT, turn(content)) for content in OTHER_TEXTS),
    (reply_of("None"), turn([IMAGE])),
    *((TEXT, {**turn("Hello."), "role": role}) for role in ("user", "system", "tool", None)),
    *((TEXT, thing) for thing in ("Hello.", None, 5, object(), [])),
    *((EVERYTHING, turn("So.", tool_calls=tool_calls)) for tool_calls in OTHER_CALLS),
    (CALLS, turn("", tool_calls=REWRITTEN_CALLS[::-1])),
    (TEXT, turn("Hello.", tool_calls=[call_a()])),
    (reply_of("", tool_calls=[tool_call("a", DEEP)]), turn("",
        tool_calls=[call_a(function={"name": "add", "arguments": f"{DEEP} "})])),
]  # fmt: skip


def test_a_reply_is_recognised_if_and_only_if_its_content_is_equal() -> None:
    for reply, message in SAME:
        assert is_sent_back(reply, message), (reply, message)
    for reply, message in ANOTHER:
        assert not is_sent_back(reply, message), (reply, message)


@given(st.text(), st.text())
def test_surrounding_whitespace_does_not_matter_when_recognising_text(
    text: str, other: str
) -> None:
    reply = reply_of(text)
    assert is_sent_back(reply, turn(text))
    assert is_sent_back(reply, turn(f"\n {text.strip()} "))
    assert is_sent_back(reply, turn(other)) == (text.strip() == other.strip())


# -- requests --------------------------------------------------------------------------------------


POLICY = FieldPolicy(honoured=frozenset(), ignored=frozenset(), refused={})


def test_unknown_fields_over_http_are_ignored_with_a_limited_number_of_warnings(
    caplog: Logs, monkeypatch: Patch
) -> None:
    monkeypatch.setattr("evert.bridge.chat.fields._warned_names", set())
    with caplog.at_level(logging.WARNING, "evert.bridge.chat.fields"):
        for _ in range(3):
            POLICY.check({"brand_new": 1, "other": 2}, strict=False)
        for number in range(1_000):
            POLICY.check({f"made_up_{number}{'x' * 1_000}": 1}, strict=False)

    assert caplog.messages[:2] == [
        f"An agent sent the unknown field {name!r}; it will be ignored."
        for name in ("brand_new", "other")
    ]
    assert len(caplog.messages) == MOST_WARNED
    assert caplog.messages[-1].endswith("it will be ignored. No more names will be reported.")
    assert max(map(len, caplog.messages)) < 250


def test_a_400_is_the_sdks_error_class_with_status_body_and_request() -> None:
    error = bad_request("No.", param="messages[0]", code="some_code")

    assert type(error) is openai.BadRequestError
    assert (error.status_code, error.message, str(error)) == (400, "No.", "No.")
    facts = (error.param, error.code, error.type)
    assert facts == ("messages[0]", "some_code", "invalid_request_error")
    assert error.response.status_code == 400
    assert error.request.url.path == "/v1/chat/completions"
    assert error.request.url.host.endswith(".invalid")  # a reserved domain that never resolves
    library = openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]
    assert type(error.response).__module__.partition(".")[0] == library
    assert (bad_request("No.").param, bad_request("No.").code) == (None, None)


def test_a_prompt_that_is_too_long_gets_the_error_that_makes_agents_compact() -> None:
    error = context_length_exceeded(5000, 4096)

    assert (error.code, error.param) == ("context_length_exceeded", "messages")
    assert error.message == (
        "prompt is too long: 5000 tokens > 4096 maximum. This model's maximum context length is "
        "4096 tokens, however your messages resulted in 5000 tokens. Please reduce the length of "
        "the messages."
    )


@as_agent()
async def test_the_native_client_rejects_unknown_fields_and_streaming(client: Any) -> None:
    rows: list[tuple[str, Any, str]] = [
        ("temprature", 1, "Unknown field 'temprature'. See docs/requests.md for the fields"),
        ("stream", True, "use client.openai"),
        ("n", [*range(1000)], "is not supported"),
    ]
    for name, value, advice in rows:
        with pytest.raises(openai.BadRequestError, match=advice) as caught:
            await ask(client, **{name: value})
        assert caught.value.param == name
        assert len(caught.value.message) < 500
