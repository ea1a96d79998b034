"""What is responses' alone: custom tools, namespaces and hosted tools; a response that is continued
by its id, within its rollout.

What all four APIs keep is in ``test_contract.py``.
"""

from typing import Any

from tests.bridge.dialects.apis import HI, RESPONSES, SCHEMA, Fields, called, reply
from tests.bridge.sent_back import is_sent_back

from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.clients.dialects.fields import HOSTED_TOOLS
from evert.bridge.clients.dialects.responses import Responses

ADD = {"type": "function", "name": "add", "description": "It.", "parameters": SCHEMA}
RUN = {"type": "custom", "name": "run", "description": "It."}
SPACE = {"type": "namespace", "name": "math", "description": "M", "tools": [ADD, RUN]}


def offered(*tools: Any) -> Fields:
    read = RESPONSES.read(tools=[*tools]).tools or []
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in read}


def written(said: Any, **body: Any) -> Fields:
    body = {"input": "Hi", **body}
    dialect = Responses("policy")
    return dialect.write(said, dialect.read(body), "1", body)


# -- tools ---------------------------------------------------------------------------------------


def test_custom_tools_are_functions_of_one_text_and_those_of_a_namespace_carry_its_name() -> None:
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}

    assert offered(ADD, RUN) == {"add": SCHEMA, "run": text}
    assert offered(SPACE, ADD) == {"math.add": SCHEMA, "math.run": text, "add": SCHEMA}


def test_hosted_tools_are_left_out() -> None:
    for kind in (*HOSTED_TOOLS, "web_search_2025_08_26"):
        assert [*offered({"type": kind}, ADD)] == ["add"], kind
        assert RESPONSES.read(tools=[{"type": kind}]).tools is None, kind


def test_a_forced_tool_may_be_a_custom_one_or_any_of_several() -> None:
    for choice, names in [
        ("required", ("add", "run")),
        ({"type": "custom", "name": "run"}, ("run",)),
    ]:
        read = RESPONSES.read(tools=[ADD, RUN], tool_choice=choice)
        assert read.format == ReplyFormat(must_call=names)
    allowed = {"type": "allowed_tools", "mode": "auto"}
    assert RESPONSES.read(tools=[ADD], tool_choice=allowed) == RESPONSES.read(tools=[ADD])


def test_a_custom_tool_is_called_with_its_text_and_one_in_a_namespace_by_both_names() -> None:
    calls = (("run", '{"input": "ls"}'), ("run", '{"cmd": 1}'), ("run", "no JSON"))
    output = written(reply("", calls=calls), tools=[RUN])["output"]
    assert [item["type"] for item in output] == ["custom_tool_call"] * 3
    assert [item["input"] for item in output] == ["ls", '{"cmd": 1}', "no JSON"]

    calls = (("run", '{"input": "ls -l"}'), ("math.add", "{}"), ("math.run", '{"input": ""}'))
    said = reply("", calls=calls)
    output = written(said, tools=[ADD, RUN, SPACE])["output"]
    assert (output[1]["type"], output[1]["name"]) == ("function_call", "add")
    assert [item.get("namespace") for item in output] == [None, "math", "math"]
    assert is_sent_back(said, RESPONSES.read(input=[HI, *output]).messages[1])


# -- state ---------------------------------------------------------------------------------------


def test_a_response_can_be_continued_by_its_id() -> None:
    dialect = Responses("policy")
    body: Fields = {"input": "Hi", "instructions": "Add.", "tools": [ADD]}
    said = reply("So.", reasoning="Hm.", calls=(("add", "{}"),), finish_reason="tool_calls")
    first = dialect.write(said, dialect.read(body), "1", body)
    result = {"type": "function_call_output", "call_id": "call-0", "output": "5"}
    body = {"input": [result], "previous_response_id": first["id"], "store": False}

    calls = {"tool_calls": [called("call-0")], "reasoning_content": "Hm."}
    history = [
        HI,
        {"role": "assistant", "content": "So.", **calls},
        {"role": "tool", "tool_call_id": "call-0", "content": "5"},
    ]
    assert dialect.read(body).messages == history

    second = dialect.write(reply("Five."), dialect.read(body), "2", body)
    history.append({"role": "assistant", "content": "Five."})
    for text in ("So?", "In several ways?"):
        third = dialect.read({"input": text, "previous_response_id": second["id"]})
        assert third.messages == [*history, {"role": "user", "content": text}]


def test_a_reply_that_was_cut_is_incomplete() -> None:
    body, cut, dialect = {"input": "Hi"}, reply(finish_reason="length"), Responses("policy")

    assert written(cut)["incomplete_details"] == {"reason": "max_output_tokens"}
    stream = dialect.stream(cut, dialect.read(body), "2", body)
    assert b"event: response.incomplete\n" in stream
