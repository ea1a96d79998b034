"""OpenAI's responses.

1. Every parameter of the SDK's ``create`` has exactly one policy: honoured, ignored, or refused.
2. Items become messages of chat completions; what one reply consisted of is one message again.
3. Functions, custom tools and namespaces are offered as functions; hosted tools are left out.
4. A response can be continued by its id, within its rollout.
5. What is written passes the SDK's own classes, and is recognised when it is sent back.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from openai.resources.responses import AsyncResponses
from openai.resources.responses import Responses as SDKResponses
from openai.types.responses import Response
from tests.bridge.sent_back import is_sent_back

from evert.bridge.chat.formats import ANY_OBJECT, ReplyFormat
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.fields import HOSTED_TOOLS
from evert.bridge.clients.dialects.responses import FIELDS, Responses

MakeReply = Callable[..., Reply]

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ADD = {"type": "function", "name": "add", "description": "It.", "parameters": SCHEMA}
RUN = {"type": "custom", "name": "run", "description": "It."}
ADD_READ = {
    "type": "function",
    "function": {"name": "add", "description": "It.", "parameters": SCHEMA},
}
HI = {"role": "user", "content": "Hi"}


@pytest.fixture
def dialect() -> Responses:
    return Responses("policy")


def request(**fields: Any) -> ChatRequest:
    return Responses("policy").read({"input": "Hi", **fields})


def messages(*items: Any, **fields: Any) -> list[Any]:
    return [*request(input=[*items], **fields).messages]


def refusal(**fields: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        request(**fields)
    return caught.value


# -- 1. the policies -----------------------------------------------------------------------------


def test_every_parameter_of_the_sdk_has_exactly_one_policy(
    parameters_of: Callable[..., set[str]],
) -> None:
    for name in sorted(parameters_of(SDKResponses.create, AsyncResponses.create)):
        policies = [name in names for names in (FIELDS.honoured, FIELDS.ignored, FIELDS.refused)]
        assert sum(policies) == 1, f"{name} has {sum(policies)} policies"


@pytest.mark.parametrize("name", sorted(FIELDS.ignored))
def test_an_ignored_field_changes_nothing(name: str) -> None:
    assert request(**{name: {"some": "thing"}}) == request()


REFUSED: dict[str, Any] = {
    "background": True,
    "conversation": "conv_1",
    "prompt": {"id": "p"},
    "moderation": {"model": "m"},
    "top_logprobs": 3,
}


def test_every_refused_field_has_a_value_here() -> None:
    assert set(REFUSED) == set(FIELDS.refused)


@pytest.mark.parametrize(("name", "value"), REFUSED.items(), ids=REFUSED)
def test_a_refused_field_is_a_400_that_says_what_to_do(name: str, value: Any) -> None:
    error = refusal(**{name: value})

    assert error.message == f"'{name}'={value!r} is not supported. {FIELDS.refused[name][1]}"
    assert error.param == name


@pytest.mark.parametrize("name", sorted((FIELDS.honoured | {*FIELDS.refused}) - {"input"}))
def test_null_is_the_same_as_an_absent_field(name: str) -> None:
    assert request(**{name: None}) == request()


@pytest.mark.parametrize(("name", "value"), [("background", False), ("top_logprobs", 0)])
def test_a_value_that_asks_for_nothing_passes(name: str, value: Any) -> None:
    assert request(**{name: value}) == request()


def test_the_honoured_fields_reach_the_request() -> None:
    assert request(
        model="judge", instructions="Add.", tools=[ADD], max_output_tokens=5, stream=True
    ) == ChatRequest("judge", [{"role": "system", "content": "Add."}, HI], [ADD_READ], 5)


@pytest.mark.parametrize("more", [[], ["reasoning.encrypted_content"]])
def test_log_probabilities_are_included_by_their_name(more: list[str]) -> None:
    assert request(include=[*more, "message.output_text.logprobs"]).logprobs
    assert not request(include=more).logprobs


@pytest.mark.parametrize("value", ["message.output_text.logprobs", 5, {}])
def test_include_must_be_a_list(value: Any) -> None:
    assert refusal(include=value).message == f"'include' must be a list of strings, got {value!r}."


# -- 2. items ------------------------------------------------------------------------------------


def test_text_is_what_the_user_says() -> None:
    assert request(input="Hi").messages == [HI]


def test_instructions_may_be_items_too() -> None:
    items = [{"role": "developer", "content": "Add."}]

    assert request(instructions=items).messages == [{"role": "developer", "content": "Add."}, HI]
    assert request(instructions="").messages == [HI]


def test_parts_of_a_message_are_read() -> None:
    parts = [
        {"type": "input_text", "text": "What is"},
        {"type": "input_image", "image_url": "data:image/png;base64,AA", "detail": "auto"},
    ]

    assert messages({"type": "message", "role": "user", "content": parts}) == [
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            ],
        }
    ]


def test_a_reply_is_one_message_again() -> None:
    reasoning = {"type": "reasoning", "id": "r", "summary": [], "content": [{"text": "Hm."}]}
    text = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "A"}],
    }
    calls = [
        {"type": "function_call", "call_id": f"c{n}", "name": "add", "arguments": "{}"}
        for n in range(2)
    ]
    results = [
        {"type": "function_call_output", "call_id": f"c{n}", "output": "5"} for n in range(2)
    ]

    assert messages(HI, reasoning, text, *calls, *results, reasoning, *calls, text) == [
        HI,
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "A",
            "tool_calls": [called("c0", "add", "{}"), called("c1", "add", "{}")],
        },
        {"role": "tool", "tool_call_id": "c0", "content": "5"},
        {"role": "tool", "tool_call_id": "c1", "content": "5"},
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "",
            "tool_calls": [called("c0", "add", "{}"), called("c1", "add", "{}")],
        },
        {"role": "assistant", "content": "A"},
    ]


def called(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def test_two_replies_in_a_row_stay_two() -> None:
    reasoning = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "Hm."}]}
    text = {"role": "assistant", "content": "A"}

    assert [m.get("content") for m in messages(HI, text, text)] == ["Hi", "A", "A"]
    assert messages(HI, text, reasoning, text)[1:] == [
        {"role": "assistant", "content": "A"},
        {"role": "assistant", "reasoning_content": "Hm.", "content": "A"},
    ]


def test_the_output_of_a_tool_may_have_parts() -> None:
    output = [{"type": "input_text", "text": "5"}]
    item = {"type": "custom_tool_call_output", "call_id": "c", "output": output}

    assert messages(HI, item)[1] == {
        "role": "tool",
        "tool_call_id": "c",
        "content": [{"type": "text", "text": "5"}],
    }


@pytest.mark.parametrize("value", [None, [], 5, {}, ()])
def test_without_input_it_is_a_400(value: Any) -> None:
    error = refusal(input=value)

    assert error.param == "input"
    assert error.message == f"'input' must be a string or a non-empty list of items, got {value!r}."


@pytest.mark.parametrize(
    "item",
    [
        {"type": "item_reference", "id": "i"},
        {"type": "web_search_call", "id": "i"},
        {"type": None},
        {"type": ["message"]},
        "Hi",
        None,
    ],
)
def test_another_item_is_refused_with_its_place(item: Any) -> None:
    assert refusal(input=[HI, item]).param == "input[1]"


@pytest.mark.parametrize("part", [None, "Hi", {}, {"type": "input_file"}, {"type": ["text"]}])
def test_another_part_is_refused_with_its_place(part: Any) -> None:
    error = refusal(input=[{"role": "user", "content": [part]}])

    assert error.param == "input[0]"
    assert "expected 'input_text', 'output_text' or 'input_image'" in error.message


# -- 3. tools and formats ------------------------------------------------------------------------


def offered(*tools: Any) -> dict[str, Any]:
    read = request(tools=[*tools]).tools or []
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in read}


def test_a_custom_tool_is_a_function_of_one_text() -> None:
    assert offered(ADD, RUN) == {
        "add": SCHEMA,
        "run": {
            "type": "object",
            "properties": {"input": {"type": "string"}},
            "required": ["input"],
        },
    }


def test_the_tools_of_a_namespace_carry_its_name() -> None:
    space = {"type": "namespace", "name": "math", "description": "M", "tools": [ADD, RUN]}

    assert list(offered(space, ADD)) == ["math.add", "math.run", "add"]


@pytest.mark.parametrize("kind", sorted(HOSTED_TOOLS))
def test_hosted_tools_are_left_out(kind: str) -> None:
    assert list(offered({"type": kind}, ADD)) == ["add"]
    assert request(tools=[{"type": kind}]).tools is None


@pytest.mark.parametrize(
    "tool", [None, "add", {}, {"type": "unheard_of"}, {"type": ["function"]}, {"type": "namespace"}]
)
def test_another_tool_is_refused_with_its_place(tool: Any) -> None:
    assert refusal(tools=[ADD, tool]).param == "tools[1]"


def test_tool_choice_none_hides_the_tools() -> None:
    assert request(tools=[ADD], tool_choice="none") == replace(request(), may_call=False)
    assert request(tools=[ADD], tool_choice="auto") == request(tools=[ADD])


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", ("add", "run")),
        ({"type": "function", "name": "add"}, ("add",)),
        ({"type": "custom", "name": "run"}, ("run",)),
    ],
)
def test_a_forced_tool_is_a_format(choice: Any, names: tuple[str, ...]) -> None:
    assert request(tools=[ADD, RUN], tool_choice=choice).format == ReplyFormat(must_call=names)


@pytest.mark.parametrize("choice", ["any", 5, {}, {"type": "function"}, {"type": "web_search"}])
def test_another_tool_choice_is_refused(choice: Any) -> None:
    assert refusal(tools=[ADD], tool_choice=choice).param == "tool_choice"


def test_formats_are_read() -> None:
    schema = {"type": "json_schema", "name": "s", "schema": SCHEMA}

    assert request(text={"verbosity": "low"}) == request(text={"format": {"type": "text"}})
    assert request(text={"format": {"type": "json_object"}}).format == ReplyFormat(ANY_OBJECT)
    assert request(text={"format": schema}).format == ReplyFormat(json.dumps(SCHEMA))


@pytest.mark.parametrize("text", [5, "text", [], {"format": 5}, {"format": {}}])
def test_another_format_is_refused(text: Any) -> None:
    assert str(refusal(text=text).param).startswith("text")


# -- 4. state ------------------------------------------------------------------------------------


def test_a_response_can_be_continued_by_its_id(dialect: Responses, reply: MakeReply) -> None:
    body: dict[str, Any] = {"input": "Hi", "instructions": "Add.", "tools": [ADD]}
    said = reply("So.", reasoning="Hm.", calls=(("add", "{}"),), finish_reason="tool_calls")
    first = dialect.write(said, dialect.read(body), "1", body)
    result = {"type": "function_call_output", "call_id": "call-0", "output": "5"}
    body = {"input": [result], "previous_response_id": first["id"], "store": False}

    history = [
        HI,
        {
            "role": "assistant",
            "reasoning_content": "Hm.",
            "content": "So.",
            "tool_calls": [called("call-0", "add", "{}")],
        },
        {"role": "tool", "tool_call_id": "call-0", "content": "5"},
    ]
    assert dialect.read(body).messages == history

    second = dialect.write(reply("Five."), dialect.read(body), "2", body)
    third = dialect.read({"input": "So?", "previous_response_id": second["id"]})
    assert third.messages == [
        *history,
        {"role": "assistant", "content": "Five."},
        {"role": "user", "content": "So?"},
    ]


def test_a_response_can_be_continued_in_several_ways(dialect: Responses, reply: MakeReply) -> None:
    body = {"input": "Hi"}
    first = dialect.write(reply(), dialect.read(body), "1", body)
    for text in ("One.", "Two."):
        [*_, last] = dialect.read({"input": text, "previous_response_id": first["id"]}).messages
        assert last == {"role": "user", "content": text}


@pytest.mark.parametrize("previous", ["resp_other", 5, ["resp_1"], ""])
def test_a_response_of_another_rollout_is_not_found(previous: Any) -> None:
    error = refusal(previous_response_id=previous)

    assert error.code == "previous_response_not_found"
    assert error.param == "previous_response_id"


# -- 5. writing ----------------------------------------------------------------------------------

REPLIES: dict[str, dict[str, Any]] = {
    "text": {},
    "empty": {"text": ""},
    "cut": {"finish_reason": "length"},
    "reasoning": {"reasoning": "Hm."},
    "empty reasoning": {"reasoning": ""},
    "call": {"text": "", "calls": (("add", '{"x": 1}'),), "finish_reason": "tool_calls"},
    "everything": {"reasoning": "Hm.", "calls": (("add", '{ "x":1 }'), ("look", "{}"))},
    "a custom tool": {"text": "", "calls": (("run", '{"input": "ls -l"}'),)},
    "a tool in a namespace": {
        "text": "",
        "calls": (("math.add", "{}"), ("math.run", '{"input": ""}')),
    },
}


@pytest.mark.parametrize("said", REPLIES.values(), ids=REPLIES)
def test_it_is_the_sdks_own_class_and_is_recognised_when_it_is_sent_back(
    dialect: Responses, reply: MakeReply, said: dict[str, Any]
) -> None:
    space = {"type": "namespace", "name": "math", "description": "M", "tools": [ADD, RUN]}
    body: dict[str, Any] = {"input": "Hi", "tools": [ADD, RUN, space]}
    answer = reply(**said)
    written = dialect.write(answer, dialect.read(body), "1", body)

    response = Response.model_validate(written)
    assert response.id == "resp_1"
    for output in (written["output"], [item.to_dict() for item in response.output]):
        _, sent_back = dialect.read({"input": [HI, *output]}).messages
        assert is_sent_back(answer, sent_back)


def test_a_custom_tool_is_called_with_its_text(dialect: Responses, reply: MakeReply) -> None:
    body: dict[str, Any] = {"input": "Hi", "tools": [RUN]}
    calls = (("run", '{"input": "ls"}'), ("run", '{"cmd": 1}'), ("run", "no JSON"))
    output = dialect.write(reply("", calls=calls), dialect.read(body), "1", body)["output"]

    assert [item["type"] for item in output] == ["custom_tool_call"] * 3
    assert [item["input"] for item in output] == ["ls", '{"cmd": 1}', "no JSON"]


def test_a_tool_in_a_namespace_is_called_by_both_names(
    dialect: Responses, reply: MakeReply
) -> None:
    space = {"type": "namespace", "name": "math", "description": "M", "tools": [ADD]}
    body: dict[str, Any] = {"input": "Hi", "tools": [space]}
    said = reply("", calls=(("math.add", "{}"),))
    [item] = dialect.write(said, dialect.read(body), "1", body)["output"]

    assert (item["type"], item["name"], item["namespace"]) == ("function_call", "add", "math")


def test_a_reply_that_was_cut_is_incomplete(dialect: Responses, reply: MakeReply) -> None:
    body = {"input": "Hi"}
    written = dialect.write(reply(finish_reason="length"), dialect.read(body), "1", body)

    assert written["status"] == "incomplete"
    assert written["incomplete_details"] == {"reason": "max_output_tokens"}
    assert b"event: response.incomplete\n" in dialect.stream(
        reply(finish_reason="length"), dialect.read(body), "2", body
    )


def test_usage_counts_the_tokens_of_observation_and_action(
    dialect: Responses, reply: MakeReply
) -> None:
    body = {"input": "Hi"}
    usage = dialect.write(reply(), dialect.read(body), "1", body)["usage"]

    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (11, 3, 14)


def test_a_refusal_has_the_apis_form(dialect: Responses) -> None:
    error = {"message": "No.", "type": "invalid_request_error", "param": "p", "code": "c"}

    assert dialect.error(error, 400) == {"error": error}
    event = dialect.error_event(error, 400).decode()
    assert event.startswith("event: error\n")
    assert json.loads(event.partition("data: ")[2]) == {
        "type": "error",
        "code": "c",
        "message": "No.",
        "param": "p",
        "sequence_number": 0,
    }
