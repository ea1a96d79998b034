"""Features specific to one API. ``test_contract.py`` covers what all four have in common."""

import time
from typing import Any

import openai
import pytest
from tests.bridge.clients.dialects.apis import (
    CHAT,
    GEMINI,
    HI,
    HI_PARTS,
    RESPONSES,
    SCHEMA,
    Fields,
    called,
    reply,
)
from tests.bridge.conversations.sent_back import is_sent_back

from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.clients.dialects.chat_completions import completion
from evert.bridge.clients.dialects.fields import BUILT_IN_TOOLS
from evert.bridge.clients.dialects.gemini import Gemini
from evert.bridge.clients.dialects.responses import Responses


def message(**said: Any) -> Any:
    return completion(reply(**said), id="c", model="policy").choices[0].message


def test_messages_are_not_copied_and_unknown_fields_are_ignored_over_http() -> None:
    messages, tools = [HI], [dict[str, Any]()]

    request = CHAT.read(messages=messages, tools=tools)
    tools.append({})
    assert request.messages is messages
    assert request.tools == [{}], "the list of tools is copied"
    assert CHAT.read(max_output_tokens=5) == CHAT.read()


def test_created_is_a_timestamp_in_whole_seconds() -> None:
    before = int(time.time())
    created = completion(reply(), id="c", model="policy").created

    assert type(created) is int
    assert before <= created <= int(time.time())


def test_missing_parts_of_a_message_are_null_or_left_out() -> None:
    assert message(reasoning="Hm.").model_dump()["reasoning_content"] == "Hm."
    assert not hasattr(message(), "reasoning_content")
    assert message().tool_calls is None
    assert message().refusal is None
    calls = (("add", "{}"),)
    assert message(text="", calls=calls).content is None
    assert message(text="Hi", calls=calls).content == "Hi"
    assert message(text="").content == ""


ADD = {"type": "function", "name": "add", "description": "It.", "parameters": SCHEMA}
RUN = {"type": "custom", "name": "run", "description": "It."}
SPACE = {"type": "namespace", "name": "math", "description": "M", "tools": [ADD, RUN]}


def offered(*tools: Any) -> Fields:
    tools_read = RESPONSES.read(tools=[*tools]).tools or []
    return {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools_read}


def answer_of(said: Any, **body: Any) -> Fields:
    body = {"input": "Hi", **body}
    dialect = Responses("policy")
    return dialect.write(said, dialect.read(body), "1", body)


def test_custom_tools_take_a_single_text_and_namespaced_tools_include_their_namespace() -> None:
    text = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}

    assert offered(ADD, RUN) == {"add": SCHEMA, "run": text}
    assert offered(SPACE, ADD) == {"math.add": SCHEMA, "math.run": text, "add": SCHEMA}


def test_openais_built_in_tools_are_left_out_and_reported() -> None:
    for kind in (*BUILT_IN_TOOLS, "web_search_2025_08_26"):
        assert [*offered({"type": kind}, ADD)] == ["add"], kind
        request = RESPONSES.read(tools=[{"type": kind}])
        assert (request.tools, request.left_out) == (None, (kind,))
    refusal = RESPONSES.refusal(tools=[{"type": "shell"}], tool_choice="required")
    assert (
        "OpenAI's built-in tools (shell) are not shown to the policy; define functions instead."
        in refusal.message
    )


def test_tool_choice_can_force_a_custom_tool_or_any_tool() -> None:
    for choice, names in [
        ("required", ("add", "run")),
        ({"type": "custom", "name": "run"}, ("run",)),
    ]:
        request = RESPONSES.read(tools=[ADD, RUN], tool_choice=choice)
        assert request.format == ReplyFormat(must_call=names)
    allowed = {"type": "allowed_tools", "mode": "auto"}
    assert RESPONSES.read(tools=[ADD], tool_choice=allowed) == RESPONSES.read(tools=[ADD])


def test_custom_tool_calls_have_text_input_and_namespaced_calls_have_both_names() -> None:
    calls = (("run", '{"input": "ls"}'), ("run", '{"cmd": 1}'), ("run", "no JSON"))
    output = answer_of(reply("", calls=calls), tools=[RUN])["output"]
    assert [item["type"] for item in output] == ["custom_tool_call"] * 3
    assert [item["input"] for item in output] == ["ls", '{"cmd": 1}', "no JSON"]

    calls = (("run", '{"input": "ls -l"}'), ("math.add", "{}"), ("math.run", '{"input": ""}'))
    answer = reply("", calls=calls)
    output = answer_of(answer, tools=[ADD, RUN, SPACE])["output"]
    assert (output[1]["type"], output[1]["name"]) == ("function_call", "add")
    assert [item.get("namespace") for item in output] == [None, "math", "math"]
    assert is_sent_back(answer, RESPONSES.read(input=[HI, *output]).messages[1])


def test_a_response_can_be_continued_by_its_id() -> None:
    dialect = Responses("policy")
    body: Fields = {"input": "Hi", "instructions": "Add.", "tools": [ADD]}
    answer = reply("So.", reasoning="Hm.", calls=(("add", "{}"),), finish_reason="tool_calls")
    first = dialect.write(answer, dialect.read(body), "1", body)
    result = {"type": "function_call_output", "call_id": "call-0", "output": "5"}
    body = {"input": [result], "previous_response_id": first["id"]}

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


def test_responses_share_their_history_and_are_kept_unless_store_is_false() -> None:
    dialect, texts = Responses("policy"), [f"{n}" * 50 for n in range(9)]
    histories: list[Any] = []
    for length in (3, 6, 9):
        body: Fields = {
            "instructions": "Add.",
            "input": [{"role": "user", "content": t} for t in texts[:length]],
        }
        answer = dialect.write(reply("So."), dialect.read(body), str(length), body)
        histories.append(dialect._conversations[answer["id"]])
    assert [len(messages) for messages in histories] == [4, 7, 10]
    assert all(
        before is after for before, after in zip(histories[0][:3], histories[2], strict=False)
    )

    body["store"] = False
    answer = dialect.write(reply("So."), dialect.read(body), "x", body)
    with pytest.raises(openai.BadRequestError, match="not found"):
        dialect.read({"input": "Hi", "previous_response_id": answer["id"]})


def gemini_written(said: Any, **body: Any) -> Fields:
    return Gemini("policy").write(said, GEMINI.read(), "1", body)


def test_the_model_and_streaming_are_read_from_the_path() -> None:
    for path, model, stream in [
        ("/v1beta/models/policy:generateContent", "policy", False),
        ("/v1beta/models/gemini-2.5-flash:streamGenerateContent", "gemini-2.5-flash", True),
        ("/v1beta/models/policy:countTokens", "policy", False),
        ("/v1beta/models/evert/buyer:generateContent", "evert/buyer", False),
        ("/v1beta/models/qwen:8b:generateContent", "qwen:8b", False),
        ("/v1/tunedModels/policy:generateContent", "policy", False),
        ("/v1beta1/projects/p/publishers/google/models/policy:generateContent", "policy", False),
    ]:
        body = {"contents": [HI_PARTS], "model": "another", "stream": None}
        addressed = Gemini("policy").addressed(path, body)
        assert addressed == {"contents": [HI_PARTS], "model": model, "stream": stream}, path


def test_count_tokens_accepts_a_whole_generate_request() -> None:
    whole = {"model": "models/policy", "contents": [HI_PARTS], "systemInstruction": {"parts": []}}
    dialect = Gemini("policy")
    body = dialect.addressed("/v1/models/policy:countTokens", {"generateContentRequest": whole})

    assert body == {**whole, "model": "policy", "stream": False}
    assert dialect.counted(7) == {"totalTokens": 7}


def test_thoughts_are_shown_only_if_the_request_includes_them() -> None:
    for config, shown in [
        ({"includeThoughts": True}, True),
        ({"include_thoughts": True}, True),
        ({"includeThoughts": False}, False),
        ({"thinkingBudget": 100}, False),
        (5, False),
    ]:
        answer = gemini_written(reply(reasoning="Hm."), generationConfig={"thinkingConfig": config})
        thoughts = [{"text": "Hm.", "thought": True}] if shown else []
        expected = [*thoughts, {"text": "Hello."}]
        assert answer["candidates"][0]["content"]["parts"] == expected, config
