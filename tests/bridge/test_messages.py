"""Messages that agents send, and replies that they get.

1. A message is read the same from a dict and from an SDK object.
2. What we cannot read is a 400 whose ``param`` and text name the place.
3. A reply is recognised in every form in which agents send it back, and in no other.
4. Nothing the policy said is lost: calls that do not parse stay visible in the text.
"""

import itertools
import json
from collections.abc import Mapping
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletionMessage
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)
from tests.bridge.sent_back import is_sent_back
from tinker_cookbook.renderers.base import Message, ToolCall, UnparsedToolCall

from evert.bridge.chat.messages import ROLES, as_fields, read_message, read_tools
from evert.bridge.chat.reply import Reply, call_id, read_reply
from evert.bridge.clients.dialects.chat_completions import completion
from evert.bridge.tokens.bases import default_renderer

CALL = {"id": "call-1", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}


def read(message: object, tool_names: Mapping[str, str] | None = None) -> Message:
    return read_message(message, 3, tool_names or {})


def refusal(message: object) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        read(message)
    assert caught.value.status_code == 400
    return caught.value


def tool_call(id: str | None = "call-1", arguments: str = '{"x": 1}') -> ToolCall:
    return ToolCall(id=id, function=ToolCall.FunctionBody(name="add", arguments=arguments))


def replied(
    content: Any = "Hello.",
    *,
    calls: list[ToolCall] | None = None,
    unparsed: list[UnparsedToolCall] | None = None,
    truncated: bool = False,
) -> Reply:
    parsed = Message(role="assistant", content=content)
    if calls is not None:
        parsed["tool_calls"] = calls
    if unparsed is not None:
        parsed["unparsed_tool_calls"] = unparsed
    return read_reply(
        parsed, truncated=truncated, call_ids="call-7", prompt_tokens=11, completion_tokens=3
    )


def sdk_message(reply: Reply) -> ChatCompletionMessage:
    return completion(reply, id="chatcmpl-evert-0", model="policy").choices[0].message


# -- roles and text ------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_a_role_the_renderers_know_is_kept(role: str) -> None:
    assert read({"role": role, "content": "Hi"}) == {"role": role, "content": "Hi"}


def test_a_developer_is_the_system() -> None:
    assert read({"role": "developer", "content": "Hi"}) == {"role": "system", "content": "Hi"}


@pytest.mark.parametrize("role", [None, "", "function", "User", 5, ["user"], {"name": "user"}])
def test_another_role_is_refused_with_the_roles_there_are(role: Any) -> None:
    error = refusal({"role": role, "content": "Hi"})

    assert error.param == "messages[3].role"
    assert error.message == (
        f"messages[3] has role {role!r}; expected one of system, developer, user, assistant, tool."
    )


def test_a_message_without_a_role_is_refused() -> None:
    assert refusal({"content": "Hi"}).param == "messages[3].role"


@pytest.mark.parametrize("message", ["Hi", None, 5, ["user", "Hi"]])
def test_what_is_no_message_is_refused(message: object) -> None:
    error = refusal(message)

    assert error.param == "messages[3]"
    assert error.message == (
        "messages[3] must be a dict with 'role' and 'content', got "
        f"{type(message).__name__}: {message!r}."
    )


def test_a_users_name_is_kept() -> None:
    message = read({"role": "user", "content": "Hi", "name": "Ada"})

    assert message == {"role": "user", "content": "Hi", "name": "Ada"}


@pytest.mark.parametrize("name", [None, ""])
def test_an_empty_name_is_no_name(name: Any) -> None:
    assert "name" not in read({"role": "user", "content": "Hi", "name": name})


@given(st.text(), st.sampled_from(sorted(ROLES)))
def test_text_is_kept_to_the_letter(text: str, role: str) -> None:
    assert read({"role": role, "content": text})["content"] == text
    parts = [{"type": "text", "text": text}]
    assert read({"role": role, "content": parts})["content"] == text


def test_fields_of_a_dict_are_the_dict_itself() -> None:
    message = {"role": "user", "content": "Hi"}

    assert as_fields(message, 0) is message


# -- parts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "input_text", "output_text"])
def test_text_parts_of_every_dialect_are_one_text(kind: str) -> None:
    content = [{"type": kind, "text": "One."}, {"type": kind, "text": "Two."}]

    assert read({"role": "user", "content": content})["content"] == "One.Two."


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
        {"type": "image_url", "image_url": "data:image/png;base64,AA=="},
        {"type": "image", "image": "data:image/png;base64,AA=="},
    ],
)
def test_images_of_every_spelling_keep_their_place(part: dict[str, Any]) -> None:
    content = [{"type": "text", "text": "See:"}, part, {"type": "text", "text": "And?"}]

    assert read({"role": "user", "content": content})["content"] == [
        {"type": "text", "text": "See:"},
        {"type": "image", "image": "data:image/png;base64,AA=="},
        {"type": "text", "text": "And?"},
    ]


def test_a_lone_image_stays_a_part() -> None:
    content = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}]

    assert read({"role": "user", "content": content})["content"] == [
        {"type": "image", "image": "data:image/png;base64,AA=="}
    ]


def test_a_thinking_part_is_thinking() -> None:
    content = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So."}]

    assert read({"role": "assistant", "content": content})["content"] == content


@pytest.mark.parametrize(
    "part",
    [
        "Hi",
        None,
        {},
        {"text": "Hi"},
        {"type": "text"},
        {"type": "text", "text": None},
        {"type": "text", "text": ["Hi"]},
        {"type": "thinking"},
        {"type": "image_url"},
        {"type": "image_url", "image_url": {}},
        {"type": "image_url", "image_url": {"url": 5}},
        {"type": "image"},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "f"}},
        {"type": "refusal", "refusal": "No."},
    ],
    ids=repr,
)
def test_a_part_of_another_form_is_refused_with_its_place(part: Any) -> None:
    error = refusal({"role": "user", "content": [{"type": "text", "text": "See:"}, part]})

    assert error.param == "messages[3].content[1]"
    assert error.message == (
        f"messages[3].content[1] is {part!r}; expected a part of type 'text' or 'image_url'."
    )


@pytest.mark.parametrize(
    ("role", "content"),
    [
        *itertools.product(
            ["user", "assistant", "tool"], [5, {"type": "text", "text": "Hi"}, b"Hi"]
        ),
        ("user", None),
        ("tool", None),
    ],
)
def test_content_of_another_form_is_refused_with_its_place(role: str, content: Any) -> None:
    error = refusal({"role": role, "content": content})

    assert error.param == "messages[3].content"
    assert error.message == (
        "messages[3].content must be a string or a list of parts, got "
        f"{type(content).__name__}: {content!r}."
    )


# -- assistants ----------------------------------------------------------------------------------


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_an_assistant_may_have_said_nothing(content: dict[str, Any]) -> None:
    assert read({"role": "assistant", **content}) == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_content_may_be_missing_beside_tool_calls(content: dict[str, Any]) -> None:
    message = read({"role": "assistant", "tool_calls": [CALL], **content})

    assert message == {"role": "assistant", "content": "", "tool_calls": [tool_call()]}


@pytest.mark.parametrize("calls", [None, [], ()])
def test_no_tool_calls_are_none(calls: Any) -> None:
    message = read({"role": "assistant", "content": "Hi", "tool_calls": calls})

    assert message == {"role": "assistant", "content": "Hi"}


def test_the_arguments_of_a_call_are_kept_to_the_letter() -> None:
    spaced = '{ "x":1 }'
    function = {"name": "add", "arguments": spaced}
    message = read({"role": "assistant", "tool_calls": [{**CALL, "function": function}]})

    assert message.get("tool_calls") == [tool_call(arguments=spaced)]


@pytest.mark.parametrize(
    "call",
    [
        "add",
        None,
        {},
        {"id": "call-1"},
        {"id": "call-1", "function": None},
        {"id": "call-1", "function": "add"},
        {"id": "call-1", "function": {"name": "add"}},
        {"id": "call-1", "function": {"arguments": "{}"}},
        {"id": "call-1", "function": {"name": 5, "arguments": "{}"}},
        {"id": "call-1", "function": {"name": "add", "arguments": {"x": 1}}},
        {"id": "call-1", "type": "custom", "custom": {"name": "add", "input": "1"}},
        {"id": 5, "function": {"name": "add", "arguments": "{}"}},
    ],
    ids=repr,
)
def test_a_tool_call_of_another_form_is_refused_with_its_place(call: Any) -> None:
    error = refusal({"role": "assistant", "content": "", "tool_calls": [CALL, call]})

    assert error.param == "messages[3].tool_calls[1]"
    assert error.message.startswith(f"messages[3].tool_calls[1] is {call!r}; expected {{'id': ")


@pytest.mark.parametrize("calls", [5, True, "add", {"id": "call-1"}], ids=repr)
def test_tool_calls_must_be_a_list(calls: Any) -> None:
    error = refusal({"role": "assistant", "content": "", "tool_calls": calls})

    assert error.param == "messages[3].tool_calls"
    assert error.message == f"messages[3].tool_calls must be a list of calls, got {calls!r}."


@pytest.mark.parametrize("arguments", ["", "{", "x=1", "{'x': 1}"])
def test_arguments_that_are_no_json_are_refused_with_their_place(arguments: str) -> None:
    function = {"name": "add", "arguments": arguments}
    error = refusal({"role": "assistant", "tool_calls": [{**CALL, "function": function}]})

    assert error.param == "messages[3].tool_calls[0]"
    assert error.message.startswith("messages[3].tool_calls[0].function.arguments is no JSON (")
    assert error.message.endswith(f": {arguments!r}.")


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_becomes_a_thinking_part_before_the_text(field: str) -> None:
    assert read({"role": "assistant", "content": "So.", field: "Hm."})["content"] == [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "So."},
    ]


def test_reasoning_goes_before_parts_too() -> None:
    parts = [{"type": "text", "text": "One."}, {"type": "text", "text": "Two."}]
    message = read({"role": "assistant", "content": parts, "reasoning_content": "Hm."})

    assert message["content"] == [
        {"type": "thinking", "thinking": "Hm."},
        {"type": "text", "text": "One.Two."},
    ]


@pytest.mark.parametrize("reasoning", [None, "", {"effort": "low"}])
def test_no_reasoning_text_is_no_thinking(reasoning: Any) -> None:
    message = read({"role": "assistant", "content": "So.", "reasoning_content": reasoning})

    assert message["content"] == "So."


def test_only_assistants_think_and_call() -> None:
    message = read(
        {"role": "user", "content": "Hi", "reasoning_content": "Hm.", "tool_calls": [CALL]}
    )

    assert message == {"role": "user", "content": "Hi"}


# -- tool results --------------------------------------------------------------------------------


def test_a_tool_result_keeps_its_id_and_finds_its_name() -> None:
    result = {"role": "tool", "content": "2", "tool_call_id": "call-1"}

    assert read(result) == result
    assert read(result, {"call-1": "add"}) == {**result, "name": "add"}
    assert read(result, {"call-2": "add"}) == result


def test_a_name_that_was_sent_goes_before_the_one_that_was_found() -> None:
    result = {"role": "tool", "content": "2", "tool_call_id": "call-1", "name": "sum"}

    assert read(result, {"call-1": "add"}).get("name") == "sum"


def test_a_tool_result_without_an_id_is_read() -> None:
    assert read({"role": "tool", "content": "2"}) == {"role": "tool", "content": "2"}


# -- SDK objects ---------------------------------------------------------------------------------


def test_an_sdk_message_reads_like_its_dict() -> None:
    reply = replied(
        [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So."}],
        calls=[tool_call()],
    )
    message = sdk_message(reply)

    assert read(message) == read(message.model_dump())
    assert read(message) == {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "text", "text": "So."},
        ],
        "tool_calls": [tool_call()],
    }


def test_an_sdk_call_inside_of_a_dict_is_read() -> None:
    call = ChatCompletionMessageFunctionToolCall(
        id="call-1", type="function", function=Function(name="add", arguments='{"x": 1}')
    )
    message = read({"role": "assistant", "content": None, "tool_calls": [call]})

    assert message.get("tool_calls") == [tool_call()]


# -- tools ---------------------------------------------------------------------------------------


def test_a_tool_is_read_with_name_description_and_schema() -> None:
    schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
    function = {"name": "add", "description": "Adds.", "parameters": schema, "strict": True}

    assert read_tools([{"type": "function", "function": function}]) == [
        {"name": "add", "description": "Adds.", "parameters": schema}
    ]


@pytest.mark.parametrize("parameters", [{}, None])
def test_a_tool_without_parameters_takes_none(parameters: Any) -> None:
    tool = {"type": "function", "function": {"name": "now", "parameters": parameters}}

    assert read_tools([tool]) == [
        {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}}
    ]


def test_a_schema_may_leave_out_that_it_is_an_object() -> None:
    tool = {"function": {"name": "now", "parameters": {"properties": {}}}}

    assert read_tools([tool])[0]["parameters"] == {"properties": {}}


def test_the_sdks_own_helper_makes_tools_that_are_read() -> None:
    import pydantic

    class Add(pydantic.BaseModel):
        x: int

    [tool] = read_tools([openai.pydantic_function_tool(Add)])

    assert tool["name"] == "Add"
    assert tool["parameters"]["properties"] == {"x": {"title": "X", "type": "integer"}}


@pytest.mark.parametrize(
    "tool",
    [
        "add",
        None,
        {},
        {"type": "function"},
        {"type": "function", "function": "add"},
        {"type": "function", "function": {}},
        {"type": "function", "function": {"name": 5}},
        {"type": "function", "name": "add", "parameters": {}},
        {"type": "custom", "custom": {"name": "add"}},
        {"type": "web_search"},
    ],
    ids=repr,
)
def test_a_tool_of_another_form_is_refused_with_its_place(tool: Any) -> None:
    good = {"type": "function", "function": {"name": "now"}}
    with pytest.raises(openai.BadRequestError) as caught:
        read_tools([good, tool])

    assert caught.value.param == "tools[1]"
    assert caught.value.message.startswith(
        f"tools[1] is {tool!r}; expected {{'type': 'function', 'function': "
    )


@pytest.mark.parametrize(
    "parameters", ["object", [1], {"type": "string"}, {"type": "array"}, {"type": ["object"]}]
)
def test_a_schema_must_be_of_an_object(parameters: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        read_tools([{"function": {"name": "add", "parameters": parameters}}])

    assert caught.value.param == "tools[0].function.parameters"
    assert caught.value.message == (
        f"tools[0].function.parameters must be a JSON schema of type 'object', got {parameters!r}."
    )


def circular() -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    schema["properties"] = {"self": schema}
    return schema


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object", "properties": {"x": int}},
        {"type": "object", "properties": {"x": {"enum": {1, 2}}}},
        {"type": "object", "properties": {(1, 2): {}}},
        circular(),
    ],
    ids=["a type", "a set", "a tuple as key", "a circle"],
)
def test_a_schema_that_is_no_json_is_refused(parameters: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        read_tools([{"function": {"name": "add", "parameters": parameters}}])

    assert caught.value.param == "tools[0].function.parameters"
    assert "cannot be written as JSON: " in caught.value.message


# -- replies -------------------------------------------------------------------------------------


def test_a_plain_reply_is_text() -> None:
    reply = replied("Hello.")

    assert reply.parsed == {"role": "assistant", "content": "Hello."}
    assert (reply.text, reply.reasoning, reply.tool_calls, reply.unparsed) == (
        "Hello.",
        None,
        (),
        (),
    )
    assert reply.finish_reason == "stop"
    assert (reply.prompt_tokens, reply.completion_tokens) == (11, 3)


def test_a_reply_in_parts_is_told_apart_into_text_and_reasoning() -> None:
    reply = replied(
        [
            {"type": "thinking", "thinking": "Hm."},
            {"type": "text", "text": "One. "},
            {"type": "thinking", "thinking": "And?"},
            {"type": "text", "text": "Two."},
        ]
    )

    assert reply.text == "One. Two."
    assert reply.reasoning == "Hm.\nAnd?"


def test_parts_without_thinking_have_no_reasoning() -> None:
    assert replied([{"type": "text", "text": "One."}]).reasoning is None
    assert replied([]).text == ""


def test_calls_without_an_id_get_one_each() -> None:
    reply = replied("", calls=[tool_call(None), tool_call("own"), tool_call(None)])

    assert [call.id for call in reply.tool_calls] == [
        call_id("call-7-0"),
        "own",
        call_id("call-7-2"),
    ]
    assert [call.id for call in reply.parsed.get("tool_calls", [])] == [
        None,
        "own",
        None,
    ]  # the model's view stays as it was


@pytest.mark.parametrize(
    ("calls", "truncated", "reason"),
    [
        (None, False, "stop"),
        ([], False, "stop"),
        ([tool_call()], False, "tool_calls"),
        (None, True, "length"),
        ([tool_call()], True, "length"),
    ],
)
def test_the_finish_reason_says_why_it_ended(
    calls: list[ToolCall] | None, truncated: bool, reason: str
) -> None:
    assert replied("Hi", calls=calls, truncated=truncated).finish_reason == reason


def test_a_call_that_does_not_parse_stays_visible_once() -> None:
    lost = UnparsedToolCall(raw_text="<tool_call>{</tool_call>", error="Invalid JSON")

    assert replied("Hi.", unparsed=[lost]).text == "Hi.<tool_call>{</tool_call>"
    assert replied("Hi.<tool_call>{</tool_call>", unparsed=[lost]).text == (
        "Hi.<tool_call>{</tool_call>"
    )
    assert replied("Hi.", unparsed=[lost]).unparsed == (lost,)


def test_a_broken_call_of_the_default_renderer_reaches_the_agent_as_text() -> None:
    renderer = default_renderer()
    said = 'Wait.\n<tool_call>\n{"name": \n</tool_call>'
    tokens = renderer.tokenizer.encode(f"{said}<|im_end|>", add_special_tokens=False)
    parsed, _ = renderer.parse_response(tokens)
    reply = read_reply(
        parsed, truncated=False, call_ids="call", prompt_tokens=0, completion_tokens=len(tokens)
    )

    assert len(reply.unparsed) == 1
    assert reply.text.startswith("Wait.")
    assert reply.text.count("<tool_call>") == 1
    assert reply.finish_reason == "stop"


# -- sent back -----------------------------------------------------------------------------------

TEXT = replied("Hello.")
EMPTY = replied("")
CALLS = replied("", calls=[tool_call("a", '{"x": 1, "y": [2]}'), tool_call("b")])
THOUGHT = replied([{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So."}])
EVERYTHING = replied(
    [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "So."}],
    calls=[tool_call("a")],
)
REPLIES = {
    "text": TEXT,
    "empty": EMPTY,
    "calls": CALLS,
    "thought": THOUGHT,
    "everything": EVERYTHING,
}


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_the_sdks_forms_of_a_reply_are_recognised(reply: Reply) -> None:
    message = sdk_message(reply)

    assert is_sent_back(reply, message)
    assert is_sent_back(reply, message.model_copy(deep=True))
    assert is_sent_back(reply, message.model_dump())
    assert is_sent_back(reply, message.model_dump(exclude_none=True))
    assert is_sent_back(reply, message.model_dump(exclude_unset=True))
    assert is_sent_back(reply, json.loads(message.model_dump_json()))


@pytest.mark.parametrize("reply", REPLIES.values(), ids=REPLIES)
def test_a_reply_without_its_reasoning_is_recognised(reply: Reply) -> None:
    fields = sdk_message(reply).model_dump()
    fields.pop("reasoning_content", None)

    assert is_sent_back(reply, fields)
    assert is_sent_back(reply, {**fields, "reasoning_content": None})
    assert is_sent_back(reply, {**fields, "reasoning_content": ""})
    assert is_sent_back(reply, {**fields, "reasoning": None})


@pytest.mark.parametrize(
    "content",
    [
        "Hello.",
        [{"type": "text", "text": "Hello."}],
        ({"type": "text", "text": "Hello."},),
        [{"type": "output_text", "text": "Hello."}],
        [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo."}],
    ],
)
def test_text_is_recognised_whole_and_in_parts(content: Any) -> None:
    assert is_sent_back(TEXT, {"role": "assistant", "content": content})


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}, {"content": []}])
def test_no_text_is_recognised_in_every_spelling(content: dict[str, Any]) -> None:
    assert is_sent_back(EMPTY, {"role": "assistant", **content})


def test_calls_are_recognised_with_their_arguments_written_anew() -> None:
    fields = sdk_message(CALLS).model_dump()
    for call in fields["tool_calls"]:
        call["function"]["arguments"] = json.dumps(
            json.loads(call["function"]["arguments"]), separators=(",", ":"), sort_keys=True
        )

    assert is_sent_back(CALLS, fields)


def test_the_reasoning_is_recognised_under_both_names() -> None:
    fields = {"role": "assistant", "content": "So."}

    assert is_sent_back(THOUGHT, {**fields, "reasoning_content": "Hm."})
    assert is_sent_back(THOUGHT, {**fields, "reasoning": "Hm."})


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_other_reasoning_is_another_message(field: str) -> None:
    assert not is_sent_back(THOUGHT, {"role": "assistant", "content": "So.", field: "Well."})
    assert not is_sent_back(TEXT, {"role": "assistant", "content": "Hello.", field: "Well."})


def test_reasoning_altered_in_the_sdks_object_is_another_message() -> None:
    message: Any = sdk_message(THOUGHT)
    message.reasoning_content = "Well."

    assert not is_sent_back(THOUGHT, message)


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "Hello",
        "hello.",
        "Hello .",
        "Hel lo.",
        [],
        [{"type": "text", "text": "Hello"}],
        [{"type": "text", "text": "Hello."}, {"type": "text", "text": "!"}],
        ["Hello."],
        5,
    ],
)
def test_altered_text_is_another_message(content: Any) -> None:
    assert not is_sent_back(TEXT, {"role": "assistant", "content": content})


def test_a_part_that_is_no_text_is_no_text() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}

    assert not is_sent_back(replied("None"), {"role": "assistant", "content": [image]})
    assert not is_sent_back(
        TEXT, {"role": "assistant", "content": [{"type": "text", "text": "Hello."}, image]}
    )


@pytest.mark.parametrize("role", ["user", "system", "tool", None])
def test_another_role_is_another_message(role: Any) -> None:
    assert not is_sent_back(TEXT, {"role": role, "content": "Hello."})


@pytest.mark.parametrize("thing", ["Hello.", None, 5, object(), []])
def test_what_is_no_message_is_not_recognised_and_raises_nothing(thing: object) -> None:
    assert not is_sent_back(TEXT, thing)


def changed_call(**changes: Any) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}}
    return {**call, **changes}


@pytest.mark.parametrize(
    "calls",
    [
        None,
        [],
        [changed_call(), changed_call(id="b")],
        [changed_call(id="b")],
        [changed_call(id=None)],
        [changed_call(function={"name": "sum", "arguments": '{"x": 1}'})],
        [changed_call(function={"name": "add", "arguments": '{"x": 2}'})],
        [changed_call(function={"name": "add", "arguments": "{"})],
        [changed_call(function={"name": "add", "arguments": None})],
        [changed_call(function={"name": "add"})],
        [changed_call(function=None)],
        [changed_call(function="add")],
        ["add"],
        [None],
        5,
        {"a": changed_call()},
    ],
    ids=repr,
)
def test_altered_calls_are_another_message_and_raise_nothing(calls: Any) -> None:
    unaltered = {"role": "assistant", "content": "So.", "tool_calls": [changed_call()]}

    assert is_sent_back(EVERYTHING, unaltered)
    assert not is_sent_back(EVERYTHING, {**unaltered, "tool_calls": calls})


def test_calls_in_another_order_are_another_message() -> None:
    fields = sdk_message(CALLS).model_dump()
    fields["tool_calls"].reverse()

    assert not is_sent_back(CALLS, fields)


def test_calls_that_were_added_are_another_message() -> None:
    fields = {"role": "assistant", "content": "Hello.", "tool_calls": [changed_call()]}

    assert not is_sent_back(TEXT, fields)


@given(st.text(), st.text())
def test_a_text_is_recognised_exactly_when_it_is_equal_but_for_its_margins(
    said: str, sent: str
) -> None:
    reply = replied(said)

    assert is_sent_back(reply, {"role": "assistant", "content": said})
    assert is_sent_back(reply, {"role": "assistant", "content": f"\n {said.strip()} "})
    same = said.strip() == sent.strip()
    assert is_sent_back(reply, {"role": "assistant", "content": sent}) == same


# -- nesting that Python cannot follow -----------------------------------------------------------

DEEP = "[" * 5000


def test_arguments_nested_too_deeply_to_read_are_refused() -> None:
    function = {"name": "add", "arguments": DEEP}
    error = refusal({"role": "assistant", "tool_calls": [{"id": "c", "function": function}]})

    assert error.param == "messages[3].tool_calls[0]"
    assert "arguments is no JSON (" in error.message


def test_a_call_with_other_arguments_nested_too_deeply_is_not_the_same() -> None:
    reply = replied("", calls=[tool_call("c", DEEP)])
    call = {"id": "c", "function": {"name": "add", "arguments": f"{DEEP} "}}

    assert not is_sent_back(reply, {"role": "assistant", "content": "", "tool_calls": [call]})
