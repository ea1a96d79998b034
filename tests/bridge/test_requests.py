"""What becomes of each field of a chat request.

1. Every parameter of the SDK's ``chat.completions.create`` has exactly one policy: honoured,
   ignored, or refused.
2. Honoured fields reach the ``ChatRequest``; ignored ones change nothing; refused ones are a 400
   that names the field and says what to do instead.
3. An explicit null, and the SDK's own markers for "not passed", are the same as an absent field.
4. Every 400 is a genuine ``openai.BadRequestError``, as it would come over the network.
"""

import inspect
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_overloads

import openai
import pytest
from openai.resources.chat.completions import AsyncCompletions, Completions

from evert.bridge.requests import (
    HONOURED_FIELDS,
    IGNORED_FIELDS,
    REFUSED_FIELDS,
    ChatRequest,
    bad_request,
    context_length_exceeded,
)

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def request(**fields: Any) -> ChatRequest:
    return ChatRequest.from_fields({"messages": MESSAGES, **fields}, "policy")


def refusal(**fields: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        request(**fields)
    return caught.value


def sdk_parameters() -> set[str]:
    names: set[str] = set()
    for resource in (Completions, AsyncCompletions):
        for create in (resource.create, *get_overloads(resource.create)):
            names.update(inspect.signature(create).parameters)
    return names - {"self"}


# -- the table -----------------------------------------------------------------------------------


def test_every_parameter_of_the_sdk_has_exactly_one_policy() -> None:
    always_refused = set(REFUSED_FIELDS) - HONOURED_FIELDS  # the rest is refused for some values
    for name in sorted(sdk_parameters()):
        policies = [name in names for names in (HONOURED_FIELDS, IGNORED_FIELDS, always_refused)]
        assert sum(policies) == 1, f"{name} has {sum(policies)} policies"


def test_the_overloads_of_the_sdk_are_seen() -> None:
    assert {"messages", "stream", "extra_body", "timeout"} <= sdk_parameters()
    assert len(get_overloads(Completions.create)) >= 3


def test_no_ignored_field_is_refused_for_some_values() -> None:
    assert not IGNORED_FIELDS & set(REFUSED_FIELDS)
    assert not IGNORED_FIELDS & HONOURED_FIELDS


# -- honoured ------------------------------------------------------------------------------------


def test_a_request_of_messages_alone_has_the_policys_name_and_no_more() -> None:
    assert request() == ChatRequest("policy", MESSAGES)


def test_messages_are_taken_as_they_are_and_not_copied() -> None:
    assert request().messages is MESSAGES
    assert request(messages=tuple(MESSAGES)).messages == tuple(MESSAGES)


def test_the_model_that_was_asked_for_is_kept() -> None:
    assert request(model="gpt-4o-mini").model == "gpt-4o-mini"
    assert request(model="").model == "policy"
    assert request(model=None).model == "policy"


def test_tools_are_kept_and_an_empty_list_is_none() -> None:
    assert request(tools=[TOOL]).tools == [TOOL]
    assert request(tools=(TOOL,)).tools == [TOOL]
    assert request(tools=[]).tools is None
    assert request(tools=None).tools is None


def test_tool_choice_auto_keeps_the_tools_and_none_hides_them() -> None:
    assert request(tools=[TOOL], tool_choice="auto").tools == [TOOL]
    assert request(tools=[TOOL], tool_choice="none").tools is None


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6}, 6),
        ({"max_tokens": 5, "max_completion_tokens": 6}, 5),
        ({"max_tokens": 7, "max_completion_tokens": 6}, 6),
        ({"max_tokens": None, "max_completion_tokens": 6}, 6),
        ({"max_tokens": 1}, 1),
    ],
)
def test_the_smaller_token_cap_counts(fields: Mapping[str, Any], cap: int | None) -> None:
    assert request(**fields).max_tokens == cap


@pytest.mark.parametrize(
    ("stop", "stops"),
    [
        (None, ()),
        ([], ()),
        ("END", ("END",)),
        (["END", "\n"], ("END", "\n")),
        (("END",), ("END",)),
    ],
)
def test_stop_is_a_string_or_a_list_of_them(stop: Any, stops: tuple[str, ...]) -> None:
    assert request(stop=stop).stop == stops


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n", 1),
        ("stream", False),
        ("logprobs", False),
        ("tool_choice", "auto"),
        ("response_format", {"type": "text"}),
        ("logit_bias", {}),
        ("modalities", ["text"]),
        ("modalities", ("text",)),
    ],
)
def test_a_value_that_asks_for_nothing_special_passes(name: str, value: Any) -> None:
    assert request(**{name: value}) == request()


# -- ignored -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(IGNORED_FIELDS))
def test_an_ignored_field_changes_nothing(name: str) -> None:
    assert request(**{name: object()}) == request()


# -- refused -------------------------------------------------------------------------------------

REFUSED_VALUES: dict[str, list[Any]] = {
    "n": [2, 0, "1"],
    "stream": [True, 1],
    "logprobs": [True, 5],
    "top_logprobs": [0, 5],
    "tool_choice": ["required", {"type": "function", "function": {"name": "add"}}],
    "response_format": [{"type": "json_object"}, {"type": "json_schema"}, "text", {}, int],
    "logit_bias": [{"50256": -100}],
    "modalities": [["text", "audio"], ["audio"], [], "text", 5],
    "audio": [{"voice": "alloy", "format": "wav"}],
    "functions": [[], [{"name": "add"}]],
    "function_call": ["auto", {"name": "add"}],
    "web_search_options": [{}],
    "moderation": [{"model": "omni-moderation-latest"}],
}


def test_every_refused_field_has_a_value_here() -> None:
    assert set(REFUSED_VALUES) == set(REFUSED_FIELDS)


@pytest.mark.parametrize(
    ("name", "value"),
    [(name, value) for name, values in REFUSED_VALUES.items() for value in values],
)
def test_a_refused_field_is_a_400_that_says_what_to_do(name: str, value: Any) -> None:
    error = refusal(**{name: value})

    assert error.message == f"'{name}'={value!r} is not supported. {REFUSED_FIELDS[name][1]}"
    assert error.param == name
    assert error.status_code == 400


def test_a_long_refused_value_is_cut_in_the_message() -> None:
    error = refusal(logit_bias={number: 1 for number in range(1000)})

    assert len(error.message) < 300
    assert "is not supported. The Env carries no logit bias" in error.message


@pytest.mark.parametrize("name", ["temprature", "max_output_tokens", "input", "thinking"])
def test_an_unknown_field_is_refused_by_name(name: str) -> None:
    error = refusal(**{name: 1})

    assert error.param == name
    assert error.message == (
        f"Unknown field '{name}'. Fields evert knows are listed in evert.bridge.requests "
        "(honoured, ignored, refused)."
    )


def test_an_unknown_field_that_is_null_asks_for_nothing() -> None:
    assert request(temprature=None) == request()


# -- absent in three spellings -------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(sdk_parameters() - {"messages"}))
@pytest.mark.parametrize(
    "absent", [None, openai.NOT_GIVEN, openai.omit], ids=["null", "NOT_GIVEN", "omit"]
)
def test_an_absent_field_is_absent_in_every_spelling(name: str, absent: object) -> None:
    assert request(**{name: absent}) == request()


# -- wrong forms ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "messages",
    [None, [], (), "Hi", {"role": "user", "content": "Hi"}, 5, openai.NOT_GIVEN, iter(MESSAGES)],
    ids=lambda value: type(value).__name__,
)
def test_messages_must_be_a_non_empty_list(messages: Any) -> None:
    error = refusal(messages=messages)

    assert error.param == "messages"
    assert error.message.startswith("'messages' must be a non-empty list of messages, got ")


def test_a_request_without_messages_says_so() -> None:
    with pytest.raises(openai.BadRequestError, match="'messages' must be a non-empty list"):
        ChatRequest.from_fields({}, "policy")


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "10", True, [5]])
def test_a_token_cap_must_be_a_positive_integer(name: str, value: Any) -> None:
    error = refusal(**{name: value})

    assert error.param == name
    assert error.message == f"'{name}' must be a positive integer, got {value!r}."


@pytest.mark.parametrize("stop", ["", [""], ["END", ""], [1], 5, {"END": 1}, ["END", None]])
def test_stop_of_another_form_is_refused(stop: Any) -> None:
    error = refusal(stop=stop)

    assert error.param == "stop"
    assert error.message == f"'stop' must be a non-empty string or a list of them, got {stop!r}."


@pytest.mark.parametrize("model", [5, ["policy"], {"name": "policy"}])
def test_a_model_must_be_named_by_a_string(model: Any) -> None:
    error = refusal(model=model)

    assert error.param == "model"
    assert error.message == f"'model' must be a string, got {model!r}."


@pytest.mark.parametrize("tools", [5, "add", {"add": TOOL}, TOOL], ids=repr)
def test_tools_must_be_a_list(tools: Any) -> None:
    error = refusal(tools=tools)

    assert error.param == "tools"
    assert error.message.startswith("'tools' must be a list of tools, got ")


# -- the errors themselves -----------------------------------------------------------------------


def test_a_400_is_the_sdks_own_with_status_body_and_request() -> None:
    error = bad_request("No.", param="messages[0]", code="some_code")

    assert type(error) is openai.BadRequestError
    assert isinstance(error, openai.APIStatusError)
    assert (error.status_code, error.message, str(error)) == (400, "No.", "No.")
    assert (error.param, error.code, error.type) == (
        "messages[0]",
        "some_code",
        "invalid_request_error",
    )
    assert error.response.status_code == 400
    assert error.request.url.path == "/v1/chat/completions"
    assert error.request.url.host.endswith(".invalid")  # no address that could ever be reached


def test_the_response_is_of_the_library_that_the_sdk_uses() -> None:
    library = openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]

    assert type(bad_request("No.").response).__module__.partition(".")[0] == library


def test_param_and_code_may_be_missing() -> None:
    error = bad_request("No.")

    assert error.param is None
    assert error.code is None


def test_a_prompt_that_is_too_long_has_the_code_on_which_agents_compact() -> None:
    error = context_length_exceeded(5000, 4096)

    assert error.code == "context_length_exceeded"
    assert error.param == "messages"
    assert error.message == (
        "The prompt is too long: this model's maximum context length is 4096 tokens, however your "
        "messages resulted in 5000 tokens. Please reduce the length of the messages."
    )


def test_a_request_is_frozen_and_travels() -> None:
    sent = request(tools=[TOOL], stop="END", max_tokens=3)

    assert pickle.loads(pickle.dumps(sent)) == sent
    with pytest.raises(AttributeError):
        sent.model = "other"  # type: ignore[misc]


# -- the README ----------------------------------------------------------------------------------


def test_the_readme_names_every_field_with_its_policy() -> None:
    readme = (Path(__file__).parent.parent.parent / "README.md").read_text()
    table = readme.partition("## Request fields")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| `")]
    for name in IGNORED_FIELDS:
        assert any(f"`{name}`" in row and "| ignored" in row for row in rows), name
    for name in REFUSED_FIELDS:
        assert any(f"`{name}`" in row and "refused" in row for row in rows), name
    named = set(re.findall(r"`([a-z_]+)`", "".join(row.split("|")[1] for row in rows)))
    assert named == {*HONOURED_FIELDS, *IGNORED_FIELDS, *REFUSED_FIELDS}
