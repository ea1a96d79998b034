"""Messages that agents send, and replies that they get.

A message is read the same from a dict and from an SDK object; what we cannot read is a 400 whose
``param`` and text name the place. A reply is recognised in every form in which agents send it back,
and in no other, and nothing the policy said is lost.
"""

import json
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
from tests.bridge.sent_back import is_sent_back
from tests.kit import assistant, user
from tinker_cookbook.renderers.base import Message, ToolCall, UnparsedToolCall

from evert.bridge.chat.messages import ROLES, as_fields, read_message, read_tools
from evert.bridge.chat.reply import Reply, call_id, read_reply
from evert.bridge.clients.dialects.chat_completions import completion
from evert.bridge.tokens.bases import default_renderer

CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
DATA = "data:image/png;base64,AA=="
HELLO = {"type": "text", "text": "Hello."}
HM, SO = {"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So."}
IMAGE = {"type": "image_url", "image_url": {"url": DATA}}
DEEP = "[" * 5000
"""Nesting that Python cannot follow."""


def read(message: object, **tool_names: str) -> Message:
    return read_message(message, 3, {id.replace("_", "-"): name for id, name in tool_names.items()})


def tool_call(id: str | None = "call-1", arguments: str = '{"x": 1}') -> ToolCall:
    return ToolCall(id=id, function=ToolCall.FunctionBody(name="add", arguments=arguments))


def replied(content: Any = "Hello.", *, truncated: bool = False, **fields: Any) -> Reply:
    parsed: Any = {"role": "assistant", "content": content, **fields}
    return read_reply(
        parsed, truncated=truncated, call_ids="call-7", prompt_tokens=11, completion_tokens=3
    )


def sdk_message(reply: Reply) -> ChatCompletionMessage:
    return completion(reply, id="chatcmpl-evert-0", model="policy").choices[0].message


# -- what is read ----------------------------------------------------------------------------------


def calls(*changes: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": [{**CALL, **change} for change in changes]}


RESULT = {"role": "tool", "content": "2", "tool_call_id": "call-1"}
SPACED = {"function": {"name": "add", "arguments": '{ "x":1 }'}}
SDK_CALL = ChatCompletionMessageFunctionToolCall(
    id="call-1", type="function", function=Function(name="add", arguments='{"x": 1}')
)
CALLED = {**assistant(""), "tool_calls": [tool_call()]}
NO_CALLS: list[Any] = [None, [], ()]
NOTHING: list[Any] = [{}, {"content": None}, {"content": ""}]

READ: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"role": "developer", "content": "Hi"}, {"role": "system", "content": "Hi"}),
    ({**user("Hi"), "name": "Ada"}, {**user("Hi"), "name": "Ada"}),
    ({**user("Hi"), "name": None}, user("Hi")),
    ({**user("Hi"), "name": ""}, user("Hi")),
    ({**user("Hi"), "reasoning_content": "Hm.", "tool_calls": [CALL]}, user("Hi")),
    (RESULT, RESULT),
    ({"role": "tool", "content": "2"}, {"role": "tool", "content": "2"}),
    *(
        (
            {
                "role": "user",
                "content": [{"type": kind, "text": text} for text in ("One.", "Two.")],
            },
            user("One.Two."),
        )
        for kind in ("text", "input_text", "output_text")
    ),
    *(
        (
            {"role": "user", "content": [HELLO, part, SO]},
            {"role": "user", "content": [HELLO, {"type": "image", "image": DATA}, SO]},
        )
        for part in (
            IMAGE,
            {"type": "image_url", "image_url": {"url": DATA, "detail": "low"}},
            {"type": "image_url", "image_url": DATA},
            {"type": "image", "image": DATA},
        )
    ),
    (
        {"role": "user", "content": [IMAGE]},
        {"role": "user", "content": [{"type": "image", "image": DATA}]},
    ),
    *(({"role": "assistant", **nothing}, assistant("")) for nothing in NOTHING),
    *(({**calls({}), **nothing}, CALLED) for nothing in NOTHING),
    *(({**assistant("Hi"), "tool_calls": none}, assistant("Hi")) for none in NO_CALLS),
    (calls(SPACED), {**assistant(""), "tool_calls": [tool_call(arguments='{ "x":1 }')]}),
    ({**assistant(""), "tool_calls": [SDK_CALL]}, CALLED),
    ({"role": "assistant", "content": [HM, SO]}, {"role": "assistant", "content": [HM, SO]}),
    *(
        ({**assistant("So."), field: "Hm."}, {"role": "assistant", "content": [HM, SO]})
        for field in ("reasoning_content", "reasoning")
    ),
    (
        {"role": "assistant", "content": [SO, SO], "reasoning_content": "Hm."},
        {"role": "assistant", "content": [HM, {"type": "text", "text": "So.So."}]},
    ),
    *(
        ({**assistant("So."), "reasoning_content": none}, assistant("So."))
        for none in (None, "", {"effort": "low"})
    ),
]


def test_messages_are_read() -> None:
    for message, expected in READ:
        assert read(message) == expected, message


@given(st.text(), st.sampled_from(sorted(ROLES)))
def test_text_is_kept_to_the_letter(text: str, role: str) -> None:
    assert read({"role": role, "content": text})["content"] == text
    parts = [{"type": "text", "text": text}]
    assert read({"role": role, "content": parts})["content"] == text


def test_fields_of_a_dict_are_the_dict_itself() -> None:
    message = user("Hi")
    assert as_fields(message, 0) is message


def test_a_tool_result_finds_its_name_unless_one_was_sent() -> None:
    assert read(RESULT, call_1="add") == {**RESULT, "name": "add"}
    assert read(RESULT, call_2="add") == RESULT
    assert read({**RESULT, "name": "sum"}, call_1="add").get("name") == "sum"


def test_an_sdk_message_reads_like_its_dict() -> None:
    message = sdk_message(replied([HM, SO], tool_calls=[tool_call()]))
    assert read(message) == read(message.model_dump())
    assert read(message) == {
        "role": "assistant",
        "content": [HM, SO],
        "tool_calls": [tool_call()],
    }


def test_tools_are_read_with_name_description_and_schema() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    function = {"name": "add", "description": "Adds.", "parameters": schema, "strict": True}
    assert read_tools([{"type": "function", "function": function}]) == [
        {"name": "add", "description": "Adds.", "parameters": schema}
    ]
    for sent_, read_as in (
        ({}, {"type": "object", "properties": {}}),
        (None, {"type": "object", "properties": {}}),
        ({"properties": {}}, {"properties": {}}),
    ):
        assert read_tools([{"function": {"name": "now", "parameters": sent_}}]) == [
            {"name": "now", "description": "", "parameters": read_as}
        ]

    class Add(pydantic.BaseModel):
        x: int

    [tool] = read_tools([openai.pydantic_function_tool(Add)])
    assert tool["name"] == "Add"
    assert tool["parameters"]["properties"] == {"x": {"title": "X", "type": "integer"}}


# -- what is refused -------------------------------------------------------------------------------

ROLE = "messages[3] has role {!r}; expected one of system, developer, user, assistant, tool."
MESSAGE = "messages[3] must be a dict with 'role' and 'content', got {}: {!r}."
PART = "messages[3].content[1] is {!r}; expected a part of type 'text' or 'image_url'."
CONTENT = "messages[3].content must be a string or a list of parts, got {}: {!r}."
CALL_FORM = "messages[3].tool_calls[1] is {!r}; expected {{'id': "
CALL_LIST = "messages[3].tool_calls must be a list of calls, got {!r}."
ARGUMENTS = "messages[3].tool_calls[0].function.arguments is no JSON ("

FUNCTIONS: list[Any] = [
    *(None, "add", {"name": "add"}, {"arguments": "{}"}),
    *({"name": 5, "arguments": "{}"}, {"name": "add", "arguments": {"x": 1}}),
]
REFUSED: list[tuple[object, str]] = [
    *(
        ({"role": role, "content": "Hi"}, ROLE.format(role))
        for role in (None, "", "function", "User", 5, ["user"], {"name": "user"})
    ),
    ({"content": "Hi"}, ROLE.format(None)),
    *(
        (message, MESSAGE.format(type(message).__name__, message))
        for message in ("Hi", None, 5, ["user", "Hi"])
    ),
    *(
        ({"role": "user", "content": [HELLO, part]}, PART.format(part))
        for part in (
            *("Hi", None, {}, {"text": "Hi"}, {"type": "text"}, {"type": "text", "text": None}),
            *({"type": "text", "text": ["Hi"]}, {"type": "thinking"}, {"type": "image_url"}),
            {"type": "image_url", "image_url": {}},
            {"type": "image_url", "image_url": {"url": 5}},
            {"type": "image"},
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
            *({"type": "file", "file": {"file_id": "f"}}, {"type": "refusal", "refusal": "No."}),
        )
    ),
    *(
        ({"role": role, "content": content}, CONTENT.format(type(content).__name__, content))
        for role in ("user", "assistant", "tool")
        for content in (5, HELLO, b"Hi", None)
        if (role, content) != ("assistant", None)
    ),
    *(
        ({**assistant(""), "tool_calls": [CALL, call]}, CALL_FORM.format(call))
        for call in (
            *("add", None, {}, {"id": "call-1"}),
            {"id": "call-1", "type": "custom", "custom": {"name": "add", "input": "1"}},
            {"id": 5, "function": {"name": "add", "arguments": "{}"}},
            *({"id": "call-1", "function": function} for function in FUNCTIONS),
        )
    ),
    *(
        ({**assistant(""), "tool_calls": none}, CALL_LIST.format(none))
        for none in (5, True, "add", {"id": "call-1"})
    ),
    *(
        (calls({"function": {"name": "add", "arguments": arguments}}), ARGUMENTS)
        for arguments in ("", "{", "x=1", "{'x': 1}", DEEP)
    ),
]


def test_what_cannot_be_read_is_refused_with_its_place() -> None:
    for message, told in REFUSED:
        with pytest.raises(openai.BadRequestError) as caught:
            read(message)
        place = told.partition(" ")[0].removesuffix(".function.arguments")
        where = f"{place}.role" if " has role " in told else place
        assert (caught.value.status_code, caught.value.param) == (400, where), message
        assert caught.value.message.startswith(told), message


def circular() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"self": schema}
    return schema


TOOL_FORM = "tools[1] is {!r}; expected {{'type': 'function', 'function': "
SCHEMA = "tools[1].function.parameters must be a JSON schema of type 'object', got {!r}."
NO_JSON = "cannot be written as JSON: "

REFUSED_TOOLS: list[tuple[Any, str]] = [
    *(
        (tool, TOOL_FORM.format(tool))
        for tool in (
            *("add", None, {}, {"type": "function"}, {"type": "web_search"}),
            *({"type": "function", "function": function} for function in ("add", {}, {"name": 5})),
            {"type": "function", "name": "add", "parameters": {}},
            {"type": "custom", "custom": {"name": "add"}},
        )
    ),
    *(
        ({"function": {"name": "add", "parameters": parameters}}, SCHEMA.format(parameters))
        for parameters in (
            "object",
            [1],
            *({"type": kind} for kind in ("string", "array", ["object"])),
        )
    ),
    *(
        ({"function": {"name": "add", "parameters": parameters}}, NO_JSON)
        for parameters in (
            {"type": "object", "properties": {"x": int}},
            {"type": "object", "properties": {"x": {"enum": {1, 2}}}},
            {"type": "object", "properties": {(1, 2): {}}},
            circular(),
        )
    ),
]


def test_a_tool_that_cannot_be_read_is_refused_with_its_place() -> None:
    for tool, told in REFUSED_TOOLS:
        with pytest.raises(openai.BadRequestError) as caught:
            read_tools([{"type": "function", "function": {"name": "now"}}, tool])
        assert told in caught.value.message, tool
        field = "" if told.startswith("tools[1] is") else ".function.parameters"
        assert caught.value.param == f"tools[1]{field}", tool


# -- replies ---------------------------------------------------------------------------------------


def test_a_reply_is_told_apart_into_text_and_reasoning() -> None:
    reply = replied("Hello.")
    assert reply.parsed == assistant("Hello.")
    assert (reply.text, reply.reasoning, reply.tool_calls) == ("Hello.", None, ())
    assert (reply.prompt_tokens, reply.completion_tokens) == (11, 3)
    both = replied([HM, SO, {"type": "thinking", "thinking": "And?"}, HELLO])
    assert (both.text, both.reasoning) == ("So.Hello.", "Hm.\nAnd?")
    assert replied([SO]).reasoning is None
    assert replied([]).text == ""


def test_calls_without_an_id_get_one_each() -> None:
    """The model's view stays as it was."""
    reply = replied("", tool_calls=[tool_call(None), tool_call("own"), tool_call(None)])
    sent_ = [call.id for call in reply.tool_calls]
    assert sent_ == [call_id("call-7-0"), "own", call_id("call-7-2")]
    assert [call.id for call in reply.parsed.get("tool_calls", [])] == [None, "own", None]


def test_the_finish_reason_says_why_it_ended() -> None:
    for made, expected in ((None, "stop"), ([], "stop"), ([tool_call()], "tool_calls")):
        assert replied("Hi", tool_calls=made).finish_reason == expected
        assert replied("Hi", tool_calls=made, truncated=True).finish_reason == "length"


def test_a_call_that_does_not_parse_stays_visible_once() -> None:
    lost = UnparsedToolCall(raw_text="<tool_call>{</tool_call>", error="Invalid JSON")
    for text in ("Hi.", "Hi.<tool_call>{</tool_call>"):
        reply = replied(text, unparsed_tool_calls=[lost])
        assert (reply.text, reply.unparsed) == ("Hi.<tool_call>{</tool_call>", (lost,))


def test_a_broken_call_of_the_default_renderer_reaches_the_agent_as_text() -> None:
    renderer = default_renderer()
    said = 'Wait.\n<tool_call>\n{"name": \n</tool_call>'
    tokens = renderer.tokenizer.encode(f"{said}<|im_end|>", add_special_tokens=False)
    reply = replied(**renderer.parse_response(tokens)[0])
    assert len(reply.unparsed) == 1
    assert reply.text.startswith("Wait.")
    assert reply.text.count("<tool_call>") == 1
    assert reply.finish_reason == "stop"


# -- sent back -------------------------------------------------------------------------------------

TEXT = replied("Hello.")
EMPTY = replied("")
CALLS = replied("", tool_calls=[tool_call("a", '{"x": 1, "y": [2]}'), tool_call("b")])
THOUGHT = replied([HM, SO])
EVERYTHING = replied([HM, SO], tool_calls=[tool_call("a")])


def test_a_reply_is_recognised_in_the_sdks_forms_and_without_its_reasoning() -> None:
    for reply in (TEXT, EMPTY, CALLS, THOUGHT, EVERYTHING):
        message = sdk_message(reply)
        fields = message.model_dump()
        fields.pop("reasoning_content", None)
        for sent in (
            message,
            message.model_copy(deep=True),
            message.model_dump(),
            message.model_dump(exclude_none=True),
            message.model_dump(exclude_unset=True),
            json.loads(message.model_dump_json()),
            fields,
            {**fields, "reasoning_content": None},
            {**fields, "reasoning_content": ""},
            {**fields, "reasoning": None},
        ):
            assert is_sent_back(reply, sent), (reply, sent)


def sent(content: Any, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content, **fields}


def call_a(**changes: Any) -> dict[str, Any]:
    return {**CALL, "id": "a", **changes}


REWRITTEN_CALLS = [
    call_a(function={"name": "add", "arguments": '{"y":[2],"x":1}'}),
    call_a(id="b"),
]

OTHER_FUNCTIONS: list[Any] = [
    *(None, "add", {"name": "add"}, {"name": "sum", "arguments": '{"x": 1}'}),
    *({"name": "add", "arguments": arguments} for arguments in ('{"x": 2}', "{", None)),
]

SAME: list[tuple[Reply, object]] = [
    (TEXT, sent([HELLO])),
    (TEXT, sent((HELLO,))),
    (TEXT, sent([{"type": "output_text", "text": "Hello."}])),
    (TEXT, sent([{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}])),
    *((EMPTY, {"role": "assistant", **nothing}) for nothing in (*NOTHING, {"content": []})),
    (CALLS, sent("", tool_calls=REWRITTEN_CALLS)),
    (THOUGHT, sent("So.", reasoning_content="Hm.")),
    (THOUGHT, sent("So.", reasoning="Hm.")),
    (EVERYTHING, sent("So.", tool_calls=[call_a()])),
]

ANOTHER: list[tuple[Reply, object]] = [
    *(
        (reply, sent(reply.text, **{field: "Well."}))
        for reply in (THOUGHT, TEXT)
        for field in ("reasoning_content", "reasoning")
    ),
    (THOUGHT, sdk_message(THOUGHT).model_copy(update={"reasoning_content": "Well."})),
    *(
        (TEXT, sent(content))
        for content in (
            *(None, "", "Hello", "hello.", "Hello .", "Hel lo.", [], ["Hello."], 5),
            [{"type": "text", "text": "Hello"}],
            [HELLO, {"type": "text", "text": "!"}],
            [HELLO, IMAGE],
        )
    ),
    (replied("None"), sent([IMAGE])),
    *((TEXT, {**sent("Hello."), "role": role}) for role in ("user", "system", "tool", None)),
    *((TEXT, thing) for thing in ("Hello.", None, 5, object(), [])),
    *(
        (EVERYTHING, sent("So.", tool_calls=made))
        for made in (
            *(None, [], ["add"], [None], 5, {"a": call_a()}),
            *([call_a(), call_a(id="b")], [call_a(id="b")], [call_a(id=None)]),
            *([call_a(function=function)] for function in OTHER_FUNCTIONS),
        )
    ),
    (CALLS, sent("", tool_calls=REWRITTEN_CALLS[::-1])),
    (TEXT, sent("Hello.", tool_calls=[call_a()])),
    (
        replied("", tool_calls=[tool_call("a", DEEP)]),
        sent("", tool_calls=[call_a(function={"name": "add", "arguments": f"{DEEP} "})]),
    ),
]


def test_a_reply_is_recognised_when_it_says_the_same_and_not_otherwise() -> None:
    for reply, message in SAME:
        assert is_sent_back(reply, message), (reply, message)
    for reply, message in ANOTHER:
        assert not is_sent_back(reply, message), (reply, message)


@given(st.text(), st.text())
def test_a_text_is_recognised_exactly_when_it_is_equal_but_for_its_margins(
    said: str, other: str
) -> None:
    reply = replied(said)
    assert is_sent_back(reply, sent(said))
    assert is_sent_back(reply, sent(f"\n {said.strip()} "))
    assert is_sent_back(reply, sent(other)) == (said.strip() == other.strip())
