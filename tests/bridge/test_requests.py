"""Requests, whatever API they came by: the gate that fields pass, what is read of them, the 400s.

1. A field is honoured, ignored or refused; a refused value is a 400 that names the field and says
   what to do instead, but for the values that ask for nothing.
2. A field that no policy knows is an error for the native handle; over the wire it is let pass,
   with one warning a name.
3. An explicit null, and the SDKs' own markers for "not passed", are the same as an absent field.
4. What is read is of the right form, or it is a 400 that says what was expected.
5. Every 400 is a genuine ``openai.BadRequestError``, as it would come over the network.
"""

import logging
import pickle
from collections.abc import Callable, Mapping
from typing import Any

import anthropic
import openai
import pytest

from evert import ChatAgentEnv
from evert.bridge.chat.bad_requests import bad_request, context_length_exceeded
from evert.bridge.chat.fields import (
    MOST_WARNED,
    FieldPolicy,
    is_absent,
    read_cap,
    read_messages,
    read_model,
    read_stop,
    read_tool_list,
)
from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.request import ChatRequest

MESSAGES = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
POLICY = FieldPolicy(
    honoured=frozenset({"messages", "partly"}),
    ignored=frozenset({"temperature"}),
    refused={
        "n": ([1], "Call again."),
        "partly": ([1, 3], "Say another number."),
    },
)


def refusal(read: Callable[[], Any]) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        read()
    return caught.value


def check(*, strict: bool = True, **fields: Any) -> None:
    POLICY.check(fields, strict=strict)


# -- the gate ------------------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
def test_honoured_and_ignored_fields_pass_whatever_they_hold(strict: bool) -> None:
    check(messages=object(), temperature=object(), strict=strict)


@pytest.mark.parametrize("strict", [True, False])
def test_a_refused_value_is_a_400_that_says_what_to_do(strict: bool) -> None:
    error = refusal(lambda: check(n=2, strict=strict))

    assert error.message == "'n'=2 is not supported. Call again."
    assert error.param == "n"


def test_a_value_that_asks_for_nothing_passes() -> None:
    check(n=1)


def test_a_truth_is_no_number() -> None:
    assert refusal(lambda: check(n=True)).param == "n"


def test_a_field_may_be_honoured_and_still_be_refused_for_some_values() -> None:
    check(partly=1)
    assert refusal(lambda: check(partly=2)).param == "partly"


def test_a_long_refused_value_is_cut_in_the_message() -> None:
    error = refusal(lambda: check(n=[*range(1000)]))

    assert len(error.message) < 300
    assert error.message.endswith(" is not supported. Call again.")


def test_an_unknown_field_is_an_error_where_fields_are_arguments() -> None:
    error = refusal(lambda: check(temprature=1))

    assert error.param == "temprature"
    assert error.message == (
        "Unknown field 'temprature'. The fields that evert knows are listed in docs/requests.md."
    )


def test_an_unknown_field_over_the_wire_passes_with_one_warning_a_name(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evert.bridge.chat.fields._warned", set())
    with caplog.at_level(logging.WARNING, "evert.bridge.chat.fields"):
        for _ in range(3):
            check(brand_new_one=1, brand_new_two=2, strict=False)

    assert [record.getMessage() for record in caplog.records] == [
        f"An agent sends the field 'brand_new_{number}', which evert does not know: it is ignored."
        for number in ("one", "two")
    ]


def test_an_agent_that_makes_up_fields_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evert.bridge.chat.fields._warned", set())
    with caplog.at_level(logging.WARNING, "evert.bridge.chat.fields"):
        for number in range(1_000):
            check(**{f"made_up_{number}{'x' * 1_000}": 1}, strict=False)

    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == MOST_WARNED
    assert messages[-1].endswith("it is ignored. Further ones are not told.")
    assert max(map(len, messages)) < 250


ABSENT: dict[str, Any] = {
    "null": None,
    "openai's NOT_GIVEN": openai.NOT_GIVEN,
    "openai's omit": openai.omit,
    "anthropic's NOT_GIVEN": anthropic.NOT_GIVEN,
    "anthropic's omit": anthropic.omit,
}
every_absence = pytest.mark.parametrize("absent", ABSENT.values(), ids=ABSENT)


@every_absence
def test_an_absent_field_is_neither_refused_nor_unknown(absent: object) -> None:
    assert is_absent(absent)
    check(n=absent, temprature=absent)


@pytest.mark.parametrize("value", [0, "", False, [], {}, "NotGiven", object()])
def test_every_other_value_is_there(value: object) -> None:
    assert not is_absent(value)


# -- what is read --------------------------------------------------------------------------------


def test_messages_are_taken_as_they_are_and_not_copied() -> None:
    assert read_messages(MESSAGES) is MESSAGES
    assert read_messages(tuple(MESSAGES)) == tuple(MESSAGES)


@pytest.mark.parametrize(
    "value",
    [None, [], (), "Hi", {"role": "user", "content": "Hi"}, 5, openai.NOT_GIVEN, iter(MESSAGES)],
    ids=lambda value: type(value).__name__,
)
def test_messages_must_be_a_non_empty_list(value: Any) -> None:
    error = refusal(lambda: read_messages(value))

    assert error.param == "messages"
    assert error.message.startswith("'messages' must be a non-empty list of messages, got ")


def test_the_model_that_was_asked_for_is_kept() -> None:
    assert read_model("gpt-4o-mini", "policy") == "gpt-4o-mini"


@pytest.mark.parametrize("value", ["", *ABSENT.values()])
def test_no_model_is_the_policy(value: Any) -> None:
    assert read_model(value, "policy") == "policy"


@pytest.mark.parametrize("value", [5, ["policy"], {"name": "policy"}])
def test_a_model_must_be_named_by_a_string(value: Any) -> None:
    error = refusal(lambda: read_model(value, "policy"))

    assert error.param == "model"
    assert error.message == f"'model' must be a string, got {value!r}."


def test_tools_are_a_list_and_an_empty_one_is_none() -> None:
    assert read_tool_list([TOOL]) == read_tool_list((TOOL,)) == [TOOL]
    assert read_tool_list([]) is read_tool_list(None) is None


def test_a_list_of_tools_is_copied() -> None:
    tools = [TOOL]
    read = read_tool_list(tools)
    tools.append(TOOL)

    assert read == [TOOL]


@pytest.mark.parametrize("value", [5, "add", {"add": TOOL}, TOOL], ids=repr)
def test_tools_must_be_a_list(value: Any) -> None:
    error = refusal(lambda: read_tool_list(value))

    assert error.param == "tools"
    assert error.message.startswith("'tools' must be a list of tools, got ")


@pytest.mark.parametrize(
    ("fields", "cap"),
    [
        ({}, None),
        ({"a": 5}, 5),
        ({"b": 6}, 6),
        ({"a": 5, "b": 6}, 5),
        ({"a": 7, "b": 6}, 6),
        ({"a": None, "b": 6}, 6),
        ({"a": openai.omit, "b": openai.NOT_GIVEN}, None),
        ({"a": 1, "c": 0}, 1),
    ],
)
def test_the_smallest_token_cap_counts(fields: Mapping[str, Any], cap: int | None) -> None:
    assert read_cap(fields, "a", "b") == cap


@pytest.mark.parametrize("value", [0, -1, 1.5, "10", True, [5], {}])
def test_a_token_cap_must_be_a_positive_integer(value: Any) -> None:
    error = refusal(lambda: read_cap({"max_tokens": value}, "max_tokens"))

    assert error.param == "max_tokens"
    assert error.message == f"'max_tokens' must be a positive integer, got {value!r}."


@pytest.mark.parametrize(
    ("value", "stops"),
    [
        (None, ()),
        (openai.omit, ()),
        ([], ()),
        ("END", ("END",)),
        (["END", "\n"], ("END", "\n")),
        (("END",), ("END",)),
    ],
)
def test_stop_is_a_string_or_a_list_of_them(value: Any, stops: tuple[str, ...]) -> None:
    assert read_stop(value) == stops


@pytest.mark.parametrize("value", ["", [""], ["END", ""], [1], 5, {"END": 1}, ["END", None]])
def test_stop_of_another_form_is_refused(value: Any) -> None:
    error = refusal(lambda: read_stop(value, "stop_sequences"))

    assert error.param == "stop_sequences"
    assert error.message == (
        f"'stop_sequences' must be a non-empty string or a list of them, got {value!r}."
    )


def test_a_request_is_frozen_and_travels() -> None:
    sent = ChatRequest("policy", MESSAGES, [TOOL], 3, ("END",), ReplyFormat(must_call=("add",)))

    assert pickle.loads(pickle.dumps(sent)) == sent
    with pytest.raises(AttributeError):
        sent.model = "other"  # type: ignore[misc]


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


def test_a_prompt_that_is_too_long_has_the_code_and_the_sentences_on_which_agents_compact() -> None:
    error = context_length_exceeded(5000, 4096)

    assert error.code == "context_length_exceeded"
    assert error.param == "messages"
    assert error.message == (
        "prompt is too long: 5000 tokens > 4096 maximum. This model's maximum context length is "
        "4096 tokens, however your messages resulted in 5000 tokens. Please reduce the length of "
        "the messages."
    )


# -- the native handle ---------------------------------------------------------------------------


async def test_the_native_handle_is_strict_about_names_and_says_how_to_stream() -> None:
    errors: list[openai.BadRequestError] = []

    async def agent(client: Any) -> float:
        for fields in ({"temprature": 1}, {"stream": True}, {"n": 3}):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.chat.completions.create(messages=MESSAGES, **fields)
            errors.append(caught.value)
        return 1.0

    await ChatAgentEnv(agent).initial_observation()

    assert [error.param for error in errors] == ["temprature", "stream", "n"]
    assert "Take client.openai" in errors[1].message
