"""Gemini's ``generateContent``.

1. Every setting of the SDK's ``GenerateContentConfig`` has exactly one policy: honoured, ignored,
   or refused.
2. The path says which model is asked, and whether for a stream.
3. Parts become messages of chat completions; results of functions become messages of their own.
4. What is written passes the SDK's own classes, and is recognised when it is sent back.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import openai
import pytest
from google.genai import types
from tests.bridge.sent_back import is_sent_back

from evert.bridge.chat.formats import ANY_VALUE, ReplyFormat
from evert.bridge.chat.reply import Reply, TokenLogprob
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.gemini import CONFIG_FIELDS, FIELDS, Gemini

MakeReply = Callable[..., Reply]
MakeBody = Callable[..., dict[str, Any]]

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
ADD = {
    "functionDeclarations": [{"name": "add", "description": "It.", "parametersJsonSchema": SCHEMA}]
}
ADD_READ = {
    "type": "function",
    "function": {"name": "add", "description": "It.", "parameters": SCHEMA},
}
HI = {"role": "user", "parts": [{"text": "Hi"}]}
HI_READ = {"role": "user", "content": [{"type": "text", "text": "Hi"}]}


@pytest.fixture
def dialect() -> Gemini:
    return Gemini("policy")


def request(**fields: Any) -> ChatRequest:
    return Gemini("policy").read({"contents": [HI], **fields})


def configured(**config: Any) -> ChatRequest:
    return request(generationConfig=config)


def messages(*contents: Any, **fields: Any) -> list[Any]:
    return [*request(contents=[*contents], **fields).messages]


def refusal(**fields: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        request(**fields)
    return caught.value


# -- 1. the policies -----------------------------------------------------------------------------

THE_SDKS_OWN = {
    "http_options",
    "should_return_http_response",
    "automatic_function_calling",
    "automatic_continuation",
}
"""Settings that the SDK itself acts upon."""


def policies_of(name: str) -> int:
    every = (FIELDS, CONFIG_FIELDS)
    return sum(name in part for f in every for part in (f.honoured, f.ignored, f.refused))


@pytest.mark.parametrize("name", sorted({*types.GenerateContentConfig.model_fields} - THE_SDKS_OWN))
def test_every_setting_of_the_sdk_has_exactly_one_policy(name: str) -> None:
    field = types.GenerateContentConfig.model_fields[name]

    assert policies_of(str(field.alias)) == 1


@pytest.mark.parametrize("name", sorted(types.GenerationConfig.model_fields))
def test_every_field_of_the_apis_generation_config_has_exactly_one_policy(name: str) -> None:
    assert policies_of(str(types.GenerationConfig.model_fields[name].alias)) == 1


def test_what_the_sdk_sends_has_its_policy_where_the_sdk_puts_it(sent: MakeBody) -> None:
    body = sent(
        system_instruction="Be.",
        temperature=1,
        top_p=1,
        top_k=1,
        candidate_count=1,
        max_output_tokens=1,
        stop_sequences=["a"],
        seed=1,
        response_mime_type="application/json",
        response_schema=types.Schema(type=types.Type.OBJECT),
        safety_settings=[types.SafetySetting()],
        tools=[types.Tool(function_declarations=[types.FunctionDeclaration(name="add")])],
        tool_config=types.ToolConfig(),
        thinking_config=types.ThinkingConfig(include_thoughts=True),
    )

    assert len(body) == 6
    assert {*body} <= FIELDS.honoured | FIELDS.ignored
    assert len(body["generationConfig"]) == 10
    assert {*body["generationConfig"]} <= CONFIG_FIELDS.honoured | CONFIG_FIELDS.ignored | {
        "candidateCount"  # of which 1 passes
    }
    assert Gemini("policy").read(body).max_tokens == 1


@pytest.mark.parametrize("name", sorted(FIELDS.ignored))
def test_an_ignored_field_changes_nothing(name: str) -> None:
    assert request(**{name: {"some": "thing"}}) == request()


@pytest.mark.parametrize("name", sorted(CONFIG_FIELDS.ignored))
def test_an_ignored_setting_changes_nothing(name: str) -> None:
    assert configured(**{name: {"some": "thing"}}) == request()


REFUSED: dict[str, list[Any]] = {"cachedContent": ["cachedContents/c"], "continuationToken": ["x"]}
REFUSED_SETTINGS: dict[str, list[Any]] = {
    "candidateCount": [0, 2],
    "logprobs": [1],
    "responseModalities": [["IMAGE"], ["TEXT", "AUDIO"]],
    "responseFormat": [[{"text": {}}]],
    "speechConfig": [{"voiceConfig": {}}],
    "imageConfig": [{"aspectRatio": "1:1"}],
    "audioTranscriptionConfig": [{}],
    "translationConfig": [{}],
    "generationOutputConfig": [{}],
}


def test_every_refused_field_has_a_value_here() -> None:
    assert set(REFUSED) == set(FIELDS.refused)
    assert set(REFUSED_SETTINGS) == set(CONFIG_FIELDS.refused)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in REFUSED.items() for value in values]
)
def test_a_refused_field_is_a_400_that_says_what_to_do(name: str, value: Any) -> None:
    error = refusal(**{name: value})

    assert error.message == f"'{name}'={value!r} is not supported. {FIELDS.refused[name][1]}"
    assert error.param == name


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in REFUSED_SETTINGS.items() for value in values],
)
def test_a_refused_setting_is_a_400_that_says_what_to_do(name: str, value: Any) -> None:
    error = refusal(generationConfig={name: value})

    assert error.message == f"'{name}'={value!r} is not supported. {CONFIG_FIELDS.refused[name][1]}"
    assert error.param == name


def test_settings_that_ask_for_nothing_pass() -> None:
    for modalities in (["TEXT"], ["text"], []):
        nothing = {"candidateCount": 1, "logprobs": 0}
        assert configured(**nothing, responseModalities=modalities) == request()


@pytest.mark.parametrize("name", sorted((FIELDS.honoured | {*FIELDS.refused}) - {"contents"}))
def test_null_is_the_same_as_an_absent_field(name: str) -> None:
    assert request(**{name: None}) == request()


@pytest.mark.parametrize("name", sorted(CONFIG_FIELDS.honoured | {*CONFIG_FIELDS.refused}))
def test_null_is_the_same_as_an_absent_setting(name: str) -> None:
    assert configured(**{name: None}) == request()


def test_the_honoured_fields_reach_the_request() -> None:
    config = {"maxOutputTokens": 5, "stopSequences": ["END"]}
    system = {"parts": [{"text": "Add."}]}

    assert request(
        model="judge", systemInstruction=system, tools=[ADD], generationConfig=config
    ) == ChatRequest(
        "judge", [{"role": "system", "content": "Add."}, HI_READ], [ADD_READ], 5, ("END",)
    )


def test_log_probabilities_are_asked_for_by_a_flag() -> None:
    assert configured(responseLogprobs=True) == replace(request(), logprobs=True)
    assert configured(responseLogprobs=False) == request()
    assert refusal(generationConfig={"responseLogprobs": 1}).param == "responseLogprobs"


def test_names_with_underscores_are_the_same_fields() -> None:
    config = {"max_output_tokens": 5, "stop_sequences": ["END"]}
    tools = [{"function_declarations": ADD["functionDeclarations"]}]

    assert request(
        system_instruction={"parts": [{"text": "Add."}]}, generation_config=config, tools=tools
    ) == request(
        systemInstruction={"parts": [{"text": "Add."}]},
        generationConfig={"maxOutputTokens": 5, "stopSequences": ["END"]},
        tools=[ADD],
    )


# -- 2. the path ---------------------------------------------------------------------------------

ROOT = "/v1beta/models"


@pytest.mark.parametrize(
    ("path", "model", "stream"),
    [
        (f"{ROOT}/policy:generateContent", "policy", False),
        (f"{ROOT}/gemini-2.5-flash:streamGenerateContent", "gemini-2.5-flash", True),
        (f"{ROOT}/policy:countTokens", "policy", False),
        (f"{ROOT}/evert/buyer:generateContent", "evert/buyer", False),
        (f"{ROOT}/qwen:8b:generateContent", "qwen:8b", False),
        ("/v1/tunedModels/policy:generateContent", "policy", False),
        (
            "/v1beta1/projects/p/locations/l/publishers/google/models/policy:generateContent",
            "policy",
            False,
        ),
    ],
)
def test_the_path_says_which_model_is_asked_and_whether_for_a_stream(
    dialect: Gemini, path: str, model: str, stream: bool
) -> None:
    body = dialect.addressed(path, {"contents": [HI], "model": "another", "stream": None})

    assert body == {"contents": [HI], "model": model, "stream": stream}


def test_a_request_may_be_counted_as_a_whole(dialect: Gemini) -> None:
    whole = {"model": "models/policy", "contents": [HI], "systemInstruction": {"parts": []}}
    body = dialect.addressed(f"{ROOT}/policy:countTokens", {"generateContentRequest": whole})

    assert body == {**whole, "model": "policy", "stream": False}
    assert dialect.counted(7) == {"totalTokens": 7}


# -- 3. reading ----------------------------------------------------------------------------------


def test_the_parts_of_a_system_instruction_are_one_message() -> None:
    system = {"role": "user", "parts": [{"text": "Add."}, {"text": "Well."}]}

    assert messages(HI, systemInstruction=system)[0] == {
        "role": "system",
        "content": "Add.\n\nWell.",
    }


def test_who_says_nothing_of_a_role_is_the_user() -> None:
    assert messages({"parts": [{"text": "Hi"}]}) == [HI_READ]


def test_a_reply_of_parts_is_one_message() -> None:
    parts = [
        {"text": "Hm, ", "thought": True},
        {"text": "so.", "thought": True, "thoughtSignature": "cw=="},
        {"text": "Let me "},
        {"text": "see."},
        {"thoughtSignature": "cw=="},
        {"functionCall": {"id": "c", "name": "add", "args": {"x": 1}}},
        {"functionCall": {"name": "end"}},
    ]

    assert messages(HI, {"role": "model", "parts": parts})[1] == {
        "role": "assistant",
        "content": "Let me see.",
        "reasoning_content": "Hm, so.",
        "tool_calls": [
            {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"x": 1}'}},
            {"id": None, "type": "function", "function": {"name": "end", "arguments": "{}"}},
        ],
    }


def test_the_pieces_of_a_stream_that_come_back_one_by_one_are_one_message() -> None:
    call = {"functionCall": {"id": "c", "name": "add", "args": {}}}
    pieces = [{"role": "model", "parts": [part]} for part in ({"text": "A"}, {"text": "B"}, call)]

    _, reply, then = messages(HI, *pieces, HI)

    assert reply["content"] == "AB"
    assert [one["id"] for one in reply["tool_calls"]] == ["c"]
    assert then == HI_READ


@pytest.mark.parametrize("parts", [{}, {"parts": []}, {"parts": None}])
def test_a_reply_may_be_empty(parts: Any) -> None:
    assert messages(HI, {"role": "model", **parts})[1] == {"role": "assistant", "content": ""}


@pytest.mark.parametrize("role", ["user", "function"])
def test_the_results_of_functions_come_before_what_the_user_says(role: str) -> None:
    parts = [
        {"functionResponse": {"id": "a", "name": "add", "response": {"result": "größer"}}},
        {"text": "So?"},
        {"function_response": {"name": "end"}},
    ]

    assert messages({"role": role, "parts": parts}) == [
        {"role": "tool", "tool_call_id": "a", "name": "add", "content": '{"result": "größer"}'},
        {"role": "tool", "tool_call_id": None, "name": "end", "content": "{}"},
        {"role": "user", "content": [{"type": "text", "text": "So?"}]},
    ]


IMAGES = [
    (
        {"inlineData": {"mimeType": "image/png", "data": "_-8="}},
        "data:image/png;base64,/+8=",
    ),
    (
        {"file_data": {"mime_type": "image/png", "file_uri": "https://example.com/a.png"}},
        "https://example.com/a.png",
    ),
]


@pytest.mark.parametrize(("part", "url"), IMAGES)
def test_images_are_read(part: Any, url: str) -> None:
    image = {"type": "image_url", "image_url": {"url": url}}

    assert messages({"parts": [part]}) == [{"role": "user", "content": [image]}]
    result = {"name": "look", "response": {}, "parts": [part]}
    [message] = messages({"parts": [{"functionResponse": result}]})
    assert message["content"] == [{"type": "text", "text": "{}"}, image]


@pytest.mark.parametrize(
    "part",
    [
        None,
        5,
        "Hi",
        {},
        {"text": 5},
        {"executableCode": {"code": "1"}},
        {"inlineData": {"mimeType": "audio/wav", "data": "AA"}},
        {"inlineData": {"mimeType": "image/png"}},
        {"inlineData": "AA"},
        {"fileData": {"fileUri": "https://example.com/a.png"}},
        {"functionResponse": "5"},
        {"functionResponse": {"name": "add", "response": "5"}},
        {"functionResponse": {"name": "add", "parts": "5"}},
        {"functionResponse": {"name": "add", "parts": [{"inlineData": {}}]}},
    ],
)
def test_another_part_is_refused_with_its_place(part: Any) -> None:
    error = refusal(contents=[HI, {"role": "user", "parts": [part]}])

    assert str(error.param).startswith("contents[1].parts[0]")


@pytest.mark.parametrize(
    "part",
    [
        {},
        {"functionCall": None},
        {"functionCall": "add"},
        {"functionCall": {"name": "add", "args": "{}"}},
        {"codeExecutionResult": {"output": "5"}},
    ],
)
def test_another_part_of_a_reply_is_refused_with_its_place(part: Any) -> None:
    error = refusal(contents=[HI, {"role": "model", "parts": [{"text": "A"}, part]}])

    assert str(error.param).startswith("contents[1].parts[1]")


@pytest.mark.parametrize(
    "content",
    [
        None,
        "Hi",
        {"role": "assistant", "parts": [{"text": "Hi"}]},
        {"role": [], "parts": [{"text": "Hi"}]},
        {"role": "user"},
        {"role": "user", "parts": []},
        {"role": "user", "parts": "Hi"},
    ],
)
def test_another_content_is_refused_with_its_place(content: Any) -> None:
    assert str(refusal(contents=[HI, content]).param).startswith("contents[1]")


@pytest.mark.parametrize("contents", [None, [], "Hi", HI])
def test_contents_are_a_list(contents: Any) -> None:
    assert refusal(contents=contents).param == "contents"


@pytest.mark.parametrize("system", ["Add.", [], {"parts": "Add."}, {"parts": [{}]}])
def test_another_system_instruction_is_refused(system: Any) -> None:
    assert str(refusal(systemInstruction=system).param).startswith("systemInstruction")


def test_the_mode_none_hides_the_tools() -> None:
    def with_mode(mode: str) -> ChatRequest:
        return request(tools=[ADD], toolConfig={"functionCallingConfig": {"mode": mode}})

    assert with_mode("NONE") == replace(request(), may_call=False)
    assert with_mode("AUTO") == request(tools=[ADD])
    assert with_mode("ANY").format == ReplyFormat(must_call=("add",))


def test_json_with_a_schema_is_a_format() -> None:
    wanted = ReplyFormat(json.dumps(SCHEMA))
    openapi = {"type": "OBJECT", "properties": {"x": {"type": "INTEGER"}}}
    kind = "application/json"

    assert configured(responseMimeType=kind, responseSchema=openapi).format == wanted
    assert configured(responseMimeType=kind, responseJsonSchema=SCHEMA).format == wanted


def test_json_without_a_schema_may_be_any() -> None:
    assert configured(responseMimeType="application/json").format == ReplyFormat(ANY_VALUE)
    assert configured(responseMimeType="text/plain") == request()


def test_a_forced_tool_and_a_format_go_together() -> None:
    read = request(
        tools=[ADD],
        toolConfig={"functionCallingConfig": {"mode": "ANY"}},
        generationConfig={"responseMimeType": "application/json"},
    )

    assert read.format == ReplyFormat(ANY_VALUE, ("add",))


@pytest.mark.parametrize(
    ("config", "param", "said"),
    [
        ({"responseMimeType": "text/x.enum"}, "responseMimeType", "and a schema with an enum."),
        (
            {"responseMimeType": 5},
            "responseMimeType",
            "expected 'text/plain' or 'application/json'",
        ),
        ({"responseSchema": {}}, "responseSchema", "needs responseMimeType='application/json'."),
        (
            {"responseMimeType": "application/json", "responseSchema": 5},
            "responseSchema",
            "must be an object, got 5.",
        ),
        (
            {"responseMimeType": "application/json", "responseJsonSchema": 5},
            "responseJsonSchema",
            "needs a JSON schema, got 5.",
        ),
        (
            {"responseMimeType": "application/json", "responseSchema": {"type": "ODD"}},
            "responseSchema",
            "is no valid JSON schema: ",
        ),
    ],
)
def test_another_format_is_refused(config: Any, param: str, said: str) -> None:
    error = refusal(generationConfig=config)

    assert error.param == param
    assert said in error.message


@pytest.mark.parametrize("config", [5, "x", []])
def test_another_generation_config_is_refused(config: Any) -> None:
    assert refusal(generationConfig=config).param == "generationConfig"


def test_calls_that_come_back_without_their_ids_get_them_again(
    dialect: Gemini, reply: MakeReply
) -> None:
    calls = (("add", '{"x": 1}'), ("add", '{"x": 1}'), ("look", "{}"))
    answer = reply("", calls=calls, finish_reason="tool_calls")
    first = dialect.read({"contents": [HI]})
    content = dialect.write(answer, first, "1", {})["candidates"][0]["content"]
    for part in content["parts"]:
        del part["functionCall"]["id"]
    results = [{"functionResponse": {"name": name}} for name in ("look", "add", "add")]

    read = dialect.read({"contents": [HI, content, {"parts": results}]}).messages

    assert is_sent_back(answer, read[1])
    assert [one["tool_call_id"] for one in read[2:]] == ["call-2", "call-0", "call-1"]


# -- 4. writing ----------------------------------------------------------------------------------

REPLIES: dict[str, dict[str, Any]] = {
    "text": {},
    "long": {"text": "The quick brown fox jumps over the lazy dog."},
    "empty": {"text": ""},
    "cut": {"finish_reason": "length"},
    "reasoning": {"reasoning": "Hm, let me think about it."},
    "empty reasoning": {"reasoning": ""},
    "call": {"text": "", "calls": (("add", '{"x": 1}'),), "finish_reason": "tool_calls"},
    "everything": {"reasoning": "Hm.", "calls": (("add", '{ "x":1 }'), ("look", "{}"))},
}
WITH_THOUGHTS = {"generationConfig": {"thinkingConfig": {"includeThoughts": True}}}
every_reply = pytest.mark.parametrize("said", REPLIES.values(), ids=REPLIES)


def typed(written: dict[str, Any]) -> types.GenerateContentResponse:
    """The SDK's own class, which knows every field."""
    response = types.GenerateContentResponse.model_validate(written)
    assert response.model_dump(mode="json", by_alias=True, exclude_none=True) == written
    return response


@every_reply
@pytest.mark.parametrize("body", [{}, WITH_THOUGHTS], ids=["", "with thoughts"])
def test_it_is_the_sdks_own_class_and_is_recognised_when_it_is_sent_back(
    dialect: Gemini, reply: MakeReply, said: dict[str, Any], body: dict[str, Any]
) -> None:
    answer = reply(**said)
    written = dialect.write(answer, request(), "1", body)

    response = typed(written)
    assert response.response_id == "1"
    _, sent_back = messages(HI, written["candidates"][0]["content"])
    assert is_sent_back(answer, sent_back)


@every_reply
def test_the_events_put_together_are_the_whole_answer(
    dialect: Gemini, reply: MakeReply, said: dict[str, Any]
) -> None:
    answer = reply(**said)
    whole = dialect.write(answer, request(), "1", WITH_THOUGHTS)

    events = [*dialect.events(whole, WITH_THOUGHTS)]

    *earlier, last = [typed(event) for event in events]
    assert all(event.candidates[0].finish_reason is None for event in earlier if event.candidates)
    assert not any(event.usage_metadata for event in earlier)
    assert {**events[-1], "candidates": None} == {**whole, "candidates": None}
    assert last.candidates is not None
    assert last.candidates[0].finish_reason == whole["candidates"][0]["finishReason"]
    contents = [event["candidates"][0]["content"] for event in events]
    assert all(content["parts"] for content in contents)  # the SDK's chats drop an empty one
    assert messages(HI, *contents) == messages(HI, whole["candidates"][0]["content"])


@pytest.mark.parametrize(
    ("config", "shown"),
    [
        ({"includeThoughts": True}, True),
        ({"include_thoughts": True}, True),
        ({"includeThoughts": False}, False),
        ({"thinkingBudget": 100}, False),
        (5, False),
    ],
)
def test_thoughts_are_shown_to_who_asks_for_them(
    dialect: Gemini, reply: MakeReply, config: Any, shown: bool
) -> None:
    body = {"generationConfig": {"thinkingConfig": config}}
    written = dialect.write(reply(reasoning="Hm."), request(), "1", body)

    thoughts = [{"text": "Hm.", "thought": True}] if shown else []
    assert written["candidates"][0]["content"]["parts"] == [*thoughts, {"text": "Hello."}]


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({}, "STOP"),
        ({"finish_reason": "length"}, "MAX_TOKENS"),
        ({"finish_reason": "tool_calls", "calls": (("add", "{}"),)}, "STOP"),
        ({"stop_string": "END"}, "STOP"),
    ],
)
def test_the_reason_of_the_end_is_the_apis_own(
    dialect: Gemini, reply: MakeReply, said: dict[str, Any], reason: str
) -> None:
    written = dialect.write(reply(**said), request(), "1", {})

    assert written["candidates"][0]["finishReason"] == reason


TOKENS = (TokenLogprob("The quick brown f", -1.5), TokenLogprob("", -0.5), TokenLogprob("ox", -2.0))


def test_log_probabilities_stand_beside_the_parts_and_a_stream_has_them_in_pieces(
    dialect: Gemini, reply: MakeReply
) -> None:
    answer = replace(
        reply("The quick brown fox", reasoning="Hm.", calls=(("add", "{}"),)), logprobs=TOKENS
    )
    whole = dialect.write(answer, request(), "1", WITH_THOUGHTS)

    tokens = [{"token": one.text, "logProbability": one.logprob} for one in TOKENS]
    assert whole["candidates"][0]["logprobsResult"] == {"chosenCandidates": tokens}
    typed(whole)
    thought, first, second, call = [
        event["candidates"][0] for event in dialect.events(whole, WITH_THOUGHTS)
    ]
    assert first["logprobsResult"]["chosenCandidates"] == tokens[:1]
    assert second["logprobsResult"]["chosenCandidates"] == tokens[1:]
    assert [part["text"] for part in (first["content"]["parts"] + second["content"]["parts"])] == [
        "The quick brown f",
        "ox",
    ]
    assert "logprobsResult" not in {**thought, **call}


def test_usage_counts_the_tokens(dialect: Gemini, reply: MakeReply) -> None:
    assert dialect.write(reply(), request(), "1", {})["usageMetadata"] == {
        "promptTokenCount": 11,
        "candidatesTokenCount": 3,
        "totalTokenCount": 14,
    }


@pytest.mark.parametrize("arguments", ["no JSON", "[1]", "5", "[" * 3000])
def test_arguments_that_are_no_object_are_given_whole(
    dialect: Gemini, reply: MakeReply, arguments: str
) -> None:
    written = dialect.write(reply("", calls=(("add", arguments),)), request(), "1", {})

    [part] = written["candidates"][0]["content"]["parts"]
    assert part["functionCall"]["args"] == {"arguments": arguments}


@pytest.mark.parametrize(
    ("status", "name"),
    [(400, "INVALID_ARGUMENT"), (404, "NOT_FOUND"), (429, "RESOURCE_EXHAUSTED"), (418, "UNKNOWN")],
)
def test_a_refusal_has_the_apis_form(dialect: Gemini, status: int, name: str) -> None:
    error = {"message": "No.", "type": "invalid_request_error", "param": "p", "code": "c"}
    kind = "type.googleapis.com/google.rpc.ErrorInfo"
    written = {
        "error": {
            "code": status,
            "message": "No.",
            "status": name,
            "details": [{"@type": kind, "reason": "c", "domain": "evert"}],
        }
    }

    assert dialect.error(error, status) == written
    assert dialect.error_event(error, status) == f"data: {json.dumps(written)}\n\n".encode()


def test_a_refusal_without_a_code_names_its_type_or_is_an_invalid_request(dialect: Gemini) -> None:
    def reason(**error: Any) -> str:
        [detail] = dialect.error({"message": "No.", **error}, 400)["error"]["details"]
        return str(detail["reason"])

    assert reason(code=None, type="rate_limit_error") == "rate_limit_error"
    assert reason() == "invalid_request_error"
