"""Guarantees shared by all four APIs: every field has a policy, equivalent fields are read the same
way, an invalid field gets a 400 that names it, and a reply is recognised when it is sent back."""

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import Message
from google.genai.types import GenerateContentResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from tests.bridge.clients.dialects.apis import (
    APIS,
    HI,
    HI_PARTS,
    REPLIES,
    SCHEMA,
    Fields,
    called,
    every_api,
    reply,
)
from tests.bridge.conversations.sent_back import is_sent_back

from evert.bridge.chat.formats import ANY_OBJECT, ANY_VALUE, ReplyFormat
from evert.bridge.chat.reply import Reply
from evert.bridge.clients.dialects.responses import LOGPROBS

# -- policies ------------------------------------------------------------------------------------

REFUSED: dict[str, list[Any]] = {
    "n": [2, 0, "1", True],
    "top_logprobs": [1, 5],
    "modalities": [["text", "audio"], ["audio"], [], "text", 5],
    "functions": [[], [{"name": "add"}]],
    "function_call": ["auto", {"name": "add"}],
    "web_search_options": [{}],
    "background": [True],
    "container": ["c", {}],
    "cachedContent": ["cachedContents/c"],
    "candidateCount": [0, 2],
    "logprobs": [1],
    "responseModalities": [["IMAGE"], ["TEXT", "AUDIO"]],
    "audioTranscriptionConfig": [{}],
}  # fmt: skip
"""Values to send in refused fields. Fields without an entry here are sent an arbitrary object."""

every_policy = pytest.mark.parametrize(
    ("name", "within"), [(name, within) for name, api in APIS.items() for within in api.settings]
)

NOTHING_SPECIAL: dict[str, list[Fields]] = {
    "chat": [{"n": 1, "stream": False, "logprobs": False, "top_logprobs": 0},
        {"tool_choice": "auto", "response_format": {"type": "text"}, "logit_bias": {}},
        {"modalities": ["text"]}, {"modalities": ("text",)},
        {"model": "", "tools": [], "stop": []}],
    "responses": [{"background": False, "top_logprobs": 0, "instructions": "", "include": []}],
    "anthropic": [{"mcp_servers": [], "output_config": {"effort": "low"}}],
    "gemini": [
        {"generationConfig": {"candidateCount": 1, "logprobs": 0, "responseModalities": modalities}}
        for modalities in (["TEXT"], ["text"], [])
    ]
    + [{"generationConfig": {"responseMimeType": "text/plain", "responseLogprobs": False}}],
}  # fmt: skip


def placed(within: str, fields: Fields) -> Fields:
    return {within: fields} if within else fields


@every_api
def test_every_parameter_of_the_sdk_has_exactly_one_policy(name: str) -> None:
    api = APIS[name]
    parts = [
        part
        for policy in api.settings.values()
        for part in (policy.honoured, policy.ignored, policy.refused)
    ]
    counts = {parameter: sum(parameter in part for part in parts) for parameter in api.sdk()}

    assert len(counts) > 10
    assert {parameter: count for parameter, count in counts.items() if count != 1} == {}


@every_policy
def test_an_ignored_field_has_no_effect(name: str, within: str) -> None:
    api = APIS[name]
    for field in api.settings[within].ignored:
        assert api.read(**placed(within, {field: {"some": "thing"}})) == api.read(), field


@every_policy
def test_a_refused_field_gets_a_400_that_explains_what_to_do(name: str, within: str) -> None:
    api = APIS[name]
    refused = api.settings[within].refused
    assert refused
    for field, (_, advice) in refused.items():
        for value in REFUSED.get(field, [{"some": "thing"}]):
            error = api.refusal(**placed(within, {field: value}))
            assert error.message == f"'{field}'={value!r} is not supported. {advice}"
            assert error.param == field


@every_policy
def test_none_and_the_sdks_omit_markers_count_as_missing(name: str, within: str) -> None:
    api = APIS[name]
    policy = api.settings[within]
    for field in (policy.honoured | {*policy.refused}) - {*api.least}:
        for absent in (None, openai.NOT_GIVEN, openai.omit, anthropic.NOT_GIVEN, anthropic.omit):
            request = api.read(**placed(within, {field: absent}))
            assert request == api.read(), f"{field}={absent}"


@every_api
def test_a_refused_field_is_accepted_with_its_default_value(name: str) -> None:
    for fields in NOTHING_SPECIAL[name]:
        assert APIS[name].read(**fields) == APIS[name].read(), fields


# -- equivalent fields of the four APIs ----------------------------------------------------------

ADD = {"name": "add", "description": "It."}
ADD_READ = {"type": "function", "function": {**ADD, "parameters": SCHEMA}}
TOOLS: dict[str, Fields] = {
    "chat": {"tools": [ADD_READ]},
    "responses": {"tools": [{"type": "function", **ADD, "parameters": SCHEMA}]},
    "anthropic": {"tools": [{**ADD, "input_schema": SCHEMA}]},
    "gemini": {"tools": [{"functionDeclarations": [{**ADD, "parametersJsonSchema": SCHEMA}]}]},
}  # fmt: skip


def with_tools(**more: Fields) -> dict[str, Fields]:
    return {name: {**TOOLS[name], **fields} for name, fields in more.items()}


def config(**fields: Any) -> Fields:
    return {"generationConfig": fields}


def mode(**calling: Any) -> Fields:
    return {"toolConfig": {"functionCallingConfig": calling}}


MUST_ADD = {"tools": [ADD_READ], "format": ReplyFormat(must_call=("add",))}
END_READ = {"type": "function",
    "function": {"name": "end", "description": None, "parameters": None}}  # fmt: skip
SEVERAL = {"tools": [*TOOLS["gemini"]["tools"], {"functionDeclarations": [{"name": "end"}]}]}
JSON_SCHEMA = {"type": "json_schema", "schema": SCHEMA}
WRAPPED = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}
JSON = "application/json"
THINGS: dict[str, tuple[Fields, dict[str, Fields]]] = {
    "the model": ({"model": "judge"}, {name: {"model": "judge"} for name in APIS}),
    "the cap": ({"max_tokens": 5},
        {"chat": {"max_tokens": 6, "max_completion_tokens": 5},
            "responses": {"max_output_tokens": 5}, "anthropic": {"max_tokens": 5},
            "gemini": config(maxOutputTokens=5)}),
    "the other cap": ({"max_tokens": 5}, {"chat": {"max_tokens": 5, "max_completion_tokens": 6}}),
    "the cap with underscores": ({"max_tokens": 5},
        {"gemini": {"generation_config": {"max_output_tokens": 5}}}),
    "stops": ({"stop": ("END",)},
        {"chat": {"stop": "END"}, "anthropic": {"stop_sequences": ["END"]},
            "gemini": config(stopSequences=["END"])}),
    "log-probabilities": ({"logprobs": True},
        {"chat": {"logprobs": True, "top_logprobs": 0},
            "responses": {"include": ["reasoning.encrypted_content", LOGPROBS]},
            "gemini": config(responseLogprobs=True)}),
    "a stream": ({},
        {name: {"stream": True} for name in APIS}
        | {"chat": {"stream": True, "stream_options": {}}}),
    "a tool": ({"tools": [ADD_READ]}, TOOLS),
    "a tool that may be called": ({"tools": [ADD_READ]},
        with_tools(chat={"tool_choice": "auto"}, responses={"tool_choice": "auto"},
            anthropic={"tool_choice": {"type": "auto"}}, gemini=mode(mode="AUTO"))),
    "a tool that may be called in other words": ({"tools": [ADD_READ]},
        with_tools(gemini=mode(mode="VALIDATED", allowedFunctionNames=["add"]))),
    "a tool of which nothing is said": ({"tools": [ADD_READ]},
        with_tools(gemini={"toolConfig": {"retrievalConfig": {"languageCode": "en"}}})),
    "one of several tools": ({"tools": [ADD_READ, END_READ], "format": MUST_ADD["format"]},
        {"gemini": {**SEVERAL, **mode(mode="ANY", allowed_function_names=["add"])}}),
    "any of several tools":
        ({"tools": [ADD_READ, END_READ], "format": ReplyFormat(must_call=("add", "end"))},
        {"gemini": {**SEVERAL, **mode(mode="ANY", allowedFunctionNames=[])}}),
    "a tool that may not be called": ({"may_call": False},
        with_tools(chat={"tool_choice": "none"}, responses={"tool_choice": "none"},
            anthropic={"tool_choice": {"type": "none"}}, gemini=mode(mode="NONE"))),
    "any tool": (MUST_ADD,
        with_tools(chat={"tool_choice": "required"}, responses={"tool_choice": "required"},
            anthropic={"tool_choice": {"type": "any"}}, gemini=mode(mode="ANY"))),
    "one tool": (MUST_ADD,
        with_tools(chat={"tool_choice": {"type": "function", "function": {"name": "add"}}},
            responses={"tool_choice": {"type": "function", "name": "add"}},
            anthropic={"tool_choice": {"type": "tool", "name": "add"}},
            gemini=mode(mode="ANY", allowedFunctionNames=["add"]))),
    "a schema": ({"format": ReplyFormat(json.dumps(SCHEMA))},
        {"chat": {"response_format": WRAPPED},
            "responses": {"text": {"format": {**JSON_SCHEMA, "name": "s"}}},
            "anthropic": {"output_config": {"format": JSON_SCHEMA, "effort": "low"}},
            "gemini": config(responseMimeType=JSON, responseJsonSchema=SCHEMA)}),
    "a schema by its older name": ({"format": ReplyFormat(json.dumps(SCHEMA))},
        {"anthropic": {"output_format": JSON_SCHEMA},
            "gemini": config(responseMimeType=JSON,
                responseSchema={"type": "OBJECT", "properties": {"x": {"type": "INTEGER"}}})}),
    "an object": ({"format": ReplyFormat(ANY_OBJECT)},
        {"chat": {"response_format": {"type": "json_object"}},
            "responses": {"text": {"format": {"type": "json_object"}}}}),
    "any JSON": ({"format": ReplyFormat(ANY_VALUE)}, {"gemini": config(responseMimeType=JSON)}),
    "a tool and a format": ({"tools": [ADD_READ], "format": ReplyFormat(ANY_VALUE, ("add",))},
        with_tools(gemini={**mode(mode="ANY"), **config(responseMimeType=JSON)})),
    "text": ({},
        {"responses": {"text": {"format": {"type": "text"}, "verbosity": "low"}},
            "gemini": config(responseMimeType="text/plain")}),
}  # fmt: skip


@pytest.mark.parametrize("thing", THINGS)
def test_equivalent_fields_of_the_four_apis_are_read_the_same_way(thing: str) -> None:
    expected, spellings = THINGS[thing]
    for name, fields in spellings.items():
        api = APIS[name]
        assert api.read(**fields) == replace(api.read(), **expected), name


# -- invalid fields ------------------------------------------------------------------------------

NO_SCHEMA = {"type": "json_schema"}
Make = Callable[[Any], Fields]


def field(name: str, **beside: Any) -> Make:
    """Return a function that builds a body with this field set to a given value."""
    return lambda value: {**beside, name: value}


def second(name: str, first: Fields) -> Make:
    """Return a function that builds a body in which this list holds `first` and a given value."""
    return lambda value: {name: [first, value]}


def setting(name: str, **beside: Any) -> Make:
    return lambda value: config(**beside, **{name: value})


def as_schema(value: Any) -> Fields:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": value}}}


def argument(value: Any) -> Fields:
    block = {"type": "tool_use", "id": "c", "name": "add", "input": value}
    return {"messages": [HI, {"role": "assistant", "content": [block]}]}


Row = tuple[str, Make, Sequence[Any], str]


def bad(param: str, make: Make, values: Sequence[Any], said: str = "") -> Row:
    """Build a row: the field named in the error, the body, the invalid values, the error text."""
    return param, make, values, said


UNREADABLE: dict[str, list[Row]] = {
    "chat": [
        bad("tool_choice", field("tool_choice", **TOOLS["chat"]),
            ["any", 5, [], {}, {"type": "allowed_tools"}, {"function": 5}],
            said="; expected 'auto', 'none', "),
        bad("tool_choice", field("tool_choice"), ["required"], said="needs tools"),
        bad("tool_choice", field("tool_choice"), [{"function": {"name": "add"}}],
            said="requires the unknown tool"),
        bad("response_format", field("response_format"),
            ["text", 5, {}, {"type": "xml"}, NO_SCHEMA, JSON_SCHEMA]),
        bad("response_format", as_schema, [None, "{}", 5, [], True],
            said="needs a JSON schema, got "),
        bad("response_format", as_schema,
            [*({"type": "odd"}, {"properties": []}, {"required": "x"}, {"pattern": "("}),
                *({"minimum": "1"}, {"enum": 5}, {"anyOf": {}}, {"$schema": 5, "type": 5})],
            said="is not a valid JSON schema: "),
        bad("logprobs", field("logprobs"), [5], said="must be true or false, got 5."),
        bad("stream", field("stream"), [0, 1, "true", [], {}], said="must be true or false"),
        bad("stream_options", field("stream_options"), [True, "usage", []],
            said="must be an object"),
        bad("messages", field("messages"), [None, [], (), "Hi", HI, 5],
            said="must be a non-empty list of messages, got "),
        bad("model", field("model"), [5, ["policy"], {}], said="must be a string, got "),
        bad("tools", field("tools"), [5, "add", {"add": HI}], said="must be a list of tools, got "),
        bad("max_tokens", field("max_tokens"), [0, -1, 1.5, "10", True, [5], {}],
            said="must be a positive integer, got "),
        bad("stop", field("stop"), ["", [""], ["END", ""], [1], 5, {"END": 1}, ["END", None]],
            said="must be a non-empty string or a list of non-empty strings, got ")],
    "responses": [
        bad("input", field("input"), [None, [], 5, {}, ()],
            said="must be a string or a non-empty list of items, got "),
        bad("input[1]", second("input", HI),
            [{"type": "item_reference", "id": "i"}, {"type": "web_search_call", "id": "i"},
                {"type": None}, {"type": ["message"]}, "Hi", None]),
        bad("input[0]", lambda part: {"input": [{"role": "user", "content": [part]}]},
            [None, "Hi", {}, {"type": "input_file"}, {"type": ["text"]}],
            said="expected 'input_text', 'output_text' or 'input_image'"),
        bad("tools[1]", second("tools", TOOLS["responses"]["tools"][0]),
            [None, "add", {}, *({"type": kind} for kind in ("odd", ["function"], "namespace"))]),
        bad("tool_choice", field("tool_choice", **TOOLS["responses"]),
            ["any", 5, {}, {"type": "function"}, {"type": "web_search"}]),
        bad("text", field("text"), [5, "text", [], {"format": 5}, {"format": {}}]),
        bad("include", field("include"), [LOGPROBS, 5, {}], said="must be a list of strings, got "),
        bad("previous_response_id", field("previous_response_id"),
            ["resp_other", 5, ["resp_1"], ""], said="not found")],
    "anthropic": [
        bad("messages[1]", lambda content: {"messages": [HI, {"role": "user", "content": content}]},
            [*(None, 5, [None], ["Hi"], [{}], [{"type": ["text"]}], [{"type": "text"}]),
                [{"type": "document", "source": {}}],
                [{"type": "image", "source": {"type": "file"}}],
                [{"type": "tool_result", "tool_use_id": "c", "content": 5}],
                [{"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}]]),
        bad("messages[1]", second("messages", HI),
            [None, "Hi", {}, {"role": "tool", "content": "5"}, {"role": []}]),
        bad("None", argument, ["x", [], 5],
            said="messages[1].content[0].input must be an object, got "),
        bad("tools[1]", second("tools", TOOLS["anthropic"]["tools"][0]),
            [None, "add", {"type": "bash_20250124", "name": "bash"}, {"type": ["custom"]}]),
        bad("tool_choice", field("tool_choice", **TOOLS["anthropic"]),
            ["auto", 5, {}, {"type": "required"}, {"type": "tool"}, {"type": "tool", "name": "b"}]),
        bad("output_config.format", field("output_format"), [5, {}, NO_SCHEMA, {"type": "xml"}]),
        bad("output_config.format", lambda value: {"output_config": {"format": value}},
            [5, "json", {}, NO_SCHEMA, {"type": "xml"}]),
        bad("output_config", field("output_config"), [5, "json", []],
            said="'output_config' must be an object")],
    "gemini": [
        bad("contents[1].parts[0]",
            lambda part: {"contents": [HI_PARTS, {"role": "user", "parts": [part]}]},
            [*(None, 5, "Hi", {}, {"text": 5}, {"executableCode": {"code": "1"}}),
                {"inlineData": {"mimeType": "audio/wav", "data": "AA"}},
                {"inlineData": {"mimeType": "image/png"}}, {"inlineData": "AA"},
                {"fileData": {"fileUri": "https://example.com/a.png"}}, {"functionResponse": "5"},
                {"functionResponse": {"name": "add", "response": "5"}},
                {"functionResponse": {"name": "add", "parts": "5"}},
                {"functionResponse": {"name": "add", "parts": [{"inlineData": {}}]}}]),
        bad("contents[1].parts[1]",
            lambda part: {"contents": [HI_PARTS, {"role": "model", "parts": [{"text": ""}, part]}]},
            [*({}, {"functionCall": None}, {"functionCall": "add"}),
                {"functionCall": {"name": "add", "args": "{}"}},
                {"codeExecutionResult": {"output": "5"}}]),
        bad("contents[1]", second("contents", HI_PARTS),
            [*(None, "Hi", {"role": "user"}), {"role": "assistant", "parts": [{"text": "Hi"}]},
                {"role": [], "parts": [{"text": "Hi"}]}, {"role": "user", "parts": []},
                {"role": "user", "parts": "Hi"}]),
        bad("contents", field("contents"), [None, [], "Hi", HI_PARTS]),
        bad("systemInstruction", field("systemInstruction"),
            ["Add.", [], {"parts": "Add."}, {"parts": [{}]}]),
        bad("generationConfig", field("generationConfig"), [5, "x", []]),
        bad("responseLogprobs", setting("responseLogprobs"), [1]),
        bad("responseMimeType", setting("responseMimeType"), ["text/x.enum", 5],
            said="with an enum."),
        bad("responseSchema", setting("responseSchema"), [{}], said="needs responseMimeType="),
        bad("toolConfig.functionCallingConfig",
            lambda value: {**TOOLS["gemini"], "toolConfig": {"functionCallingConfig": value}},
            [*(5, {"mode": "any"}, {"mode": ["ANY"]}),
                {"mode": "ANY", "allowedFunctionNames": "add"},
                {"mode": "ANY", "allowedFunctionNames": ["look"]}]),
        bad("toolConfig.functionCallingConfig", field("toolConfig"),
            [{"functionCallingConfig": {"mode": "ANY"}}], said="needs tools to choose from"),
        bad("tools[1]", second("tools", TOOLS["gemini"]["tools"][0]),
            [{"googleSearch": {}}, {"codeExecution": {}, "functionDeclarations": []}],
            said="are not supported. Define"),
        bad("tools[0].functionDeclarations[1]",
            lambda value: {"tools": [{"functionDeclarations": [{"name": "add"}, value]}]},
            ["add", 5], said="must be an object"),
        *(
            bad(name, setting(name, responseMimeType=JSON), [value], said=said)
            for name, said, value in [
                ("responseSchema", "must be an object, got 5.", 5),
                ("responseJsonSchema", "needs a JSON schema, got 5.", 5),
                ("responseSchema", "is not a valid JSON schema: ", {"type": "ODD"}),
            ]
        )],
}  # fmt: skip


@every_api
def test_the_error_for_an_invalid_field_names_its_location(name: str) -> None:
    for param, make, values, said in UNREADABLE[name]:
        for fields in map(make, values):
            error = APIS[name].refusal(**fields)
            assert str(error.param).startswith(param), fields
            assert said in error.message, fields
            assert len(error.message) < 500, fields


# -- writing -------------------------------------------------------------------------------------

CLASSES: dict[str, Any] = {
    "chat": ChatCompletion,
    "responses": Response,
    "anthropic": Message,
    "gemini": GenerateContentResponse,
}
THOUGHTS = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}


def answer_of(name: str, said: Reply, **body: Any) -> Any:
    api = APIS[name]
    return api.dialect("policy").write(said, api.read(model="judge"), "1", {**api.least, **body})


def history(name: str, answer: Any) -> Fields:
    if name == "chat":
        return {"messages": [HI, answer["choices"][0]["message"]]}
    if name == "responses":
        return {"input": [HI, *answer["output"]]}
    if name == "anthropic":
        return {"messages": [HI, {"role": "assistant", "content": answer["content"]}, HI]}
    return {"contents": [HI_PARTS, answer["candidates"][0]["content"]]}


ECHOES: list[Callable[[str], str]] = [str, str.strip, "\n\n {} \n".format, str.rstrip]
"""Ways in which agents alter a text before sending it back."""


def echo_of(value: Any, echo: Callable[[str], str]) -> Any:
    """Apply `echo` to every text in an answer, except its thoughts."""
    if isinstance(value, list):
        return [echo_of(item, echo) for item in value]
    if not isinstance(value, dict) or value.get("thought") or value.get("type") == "reasoning_text":
        return value
    return {
        key: echo(one) if key in ("text", "content") and type(one) is str else echo_of(one, echo)
        for key, one in value.items()
    }


@every_api
@pytest.mark.parametrize(("row", "said"), REPLIES.items())
def test_an_answer_validates_as_the_sdks_class_and_is_recognised_when_sent_back(
    row: Any, said: Any, name: str
) -> None:
    for body in ({}, THOUGHTS) if name == "gemini" else ({},):
        whole = answer_of(name, said, **body)
        typed = CLASSES[name].model_validate(whole)
        if name == "gemini":
            dumped = typed.model_dump(mode="json", by_alias=True, exclude_none=True)
            assert dumped == whole
        else:
            dumped = typed.to_dict()
        for answer, echo in itertools.product((whole, dumped), ECHOES):
            request = APIS[name].read(**history(name, echo_of(answer, echo)))
            assert is_sent_back(said, request.messages[1]), row


NUMBERS = {
    "chat": ("id", "model", "usage", "prompt_tokens", "completion_tokens", "total_tokens"),
    "responses": ("id", "model", "usage", "input_tokens", "output_tokens", "total_tokens"),
    "anthropic": ("id", "model", "usage", "input_tokens", "output_tokens", None),
    "gemini": ("responseId", "modelVersion", "usageMetadata", "promptTokenCount",
        "candidatesTokenCount", "totalTokenCount"),
}  # fmt: skip


@every_api
def test_an_answer_has_an_id_a_model_and_usage(name: str) -> None:
    answer, (number, model, usage, *counts) = answer_of(name, reply()), NUMBERS[name]

    assert answer[number].rpartition("-")[2].rpartition("_")[2] == "1"
    assert answer[model] == "judge"
    expected = zip(counts, (11, 3, 14), strict=True)
    assert answer[usage].items() >= {(key, count) for key, count in expected if key}
    assert ("total_tokens" in answer[usage]) is (counts[2] == "total_tokens")


CUT = reply(finish_reason="length")
CALLS = reply(calls=(("add", "{}"),), finish_reason="tool_calls")
STOPPED = reply(stop_string="END")
CUT_AFTER_STOP = reply(stop_string="END", finish_reason="length")
ENDS: dict[str, list[tuple[Any, Any]]] = {
    "chat": [(reply(), "stop"), (CUT, "length"), (CALLS, "tool_calls")],
    "responses": [(reply(), "completed"), (CUT, "incomplete"), (CALLS, "completed")],
    "anthropic": [(reply(), ("end_turn", None)), (CUT, ("max_tokens", None)),
        (CALLS, ("tool_use", None)), (STOPPED, ("stop_sequence", "END")),
        (CUT_AFTER_STOP, ("max_tokens", None))],
    "gemini": [(reply(), "STOP"), (CUT, "MAX_TOKENS"), (CALLS, "STOP"), (STOPPED, "STOP")],
}  # fmt: skip
REASON: dict[str, Callable[[Any], Any]] = {
    "chat": lambda answer: answer["choices"][0]["finish_reason"],
    "responses": lambda answer: answer["status"],
    "anthropic": lambda answer: (answer["stop_reason"], answer["stop_sequence"]),
    "gemini": lambda answer: answer["candidates"][0]["finishReason"],
}


@every_api
def test_the_finish_reason_uses_the_apis_own_value(name: str) -> None:
    for end, reason in ENDS[name]:
        assert REASON[name](answer_of(name, end)) == reason, end


def test_arguments_that_are_not_an_object_are_delivered_as_text() -> None:
    for arguments in ("no JSON", "[1]", "5", "[" * 3000):
        call = reply("", calls=(("add", arguments),))
        [block] = answer_of("anthropic", call)["content"]
        [part] = answer_of("gemini", call)["candidates"][0]["content"]["parts"]
        assert block["input"] == part["functionCall"]["args"] == {"arguments": arguments}


def test_a_call_keeps_its_exact_id_and_argument_text() -> None:
    texts = ['{ "x":1 }', '{"x": 1}']
    answer = answer_of("chat", reply("", calls=tuple(("add", text) for text in texts)))
    calls = [called(f"call-{number}", arguments=text) for number, text in enumerate(texts)]
    assert answer["choices"][0]["message"]["tool_calls"] == calls


# -- errors --------------------------------------------------------------------------------------

ERROR = {"message": "No.", "type": "invalid_request_error", "param": "p", "code": "c"}
ANTHROPICS = {"type": "error", "error": {"type": "invalid_request_error", "message": "No."}}
IN_A_STREAM = {"type": "error", "code": "c", "message": "No.", "param": "p", "sequence_number": 0}


def geminis(status: int, name: str, reason: str = "c") -> Fields:
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    details = [{"@type": kind, "reason": reason, "domain": "evert"}]
    return {"error": {"code": status, "message": "No.", "status": name, "details": details}}


WORDS = {400: "INVALID_ARGUMENT", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 418: "UNKNOWN"}


@pytest.mark.parametrize(
    ("name", "status", "whole", "event", "within"),
    [
        ("chat", 400, {"error": ERROR}, "", {"error": ERROR}),
        ("responses", 400, {"error": ERROR}, "error", IN_A_STREAM),
        ("anthropic", 400, ANTHROPICS, "error", ANTHROPICS),
        *(
            ("gemini", status, geminis(status, WORDS[status]), "", geminis(status, WORDS[status]))
            for status in WORDS
        ),
    ],
)
def test_errors_use_the_apis_format(
    name: str, status: int, whole: Fields, event: str, within: Fields
) -> None:
    dialect = APIS[name].dialect("policy")
    heading, _, data = dialect.error_event(ERROR, status).decode().partition("data: ")

    assert dialect.error(ERROR, status) == whole
    assert heading == (f"event: {event}\n" if event else "")
    assert json.loads(data.partition("\n")[0]) == within


def test_an_error_without_a_code_or_type_is_an_invalid_request() -> None:
    gemini = APIS["gemini"].dialect("policy")
    limited = {"message": "No.", "code": None, "type": "rate_limit_error"}

    assert APIS["anthropic"].dialect("policy").error({"message": "No."}, 400) == ANTHROPICS
    assert gemini.error(limited, 400) == geminis(400, "INVALID_ARGUMENT", "rate_limit_error")
    assert gemini.error({"message": "No."}, 400) == geminis(
        400, "INVALID_ARGUMENT", "invalid_request_error"
    )
