"""Requests of every API: the gate that fields pass, what is read of them, the 400s."""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import anthropic
import openai
import pytest
from tests.kit import tool, user

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

MESSAGES = [user("Hi")]
TOOL = tool("add")
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


# -- the gate ------------------------------------------------------------------------------------


def test_fields_that_are_honoured_or_ignored_pass_and_values_that_are_refused_do_not() -> None:
    for strict in (True, False):
        known = {"messages": object(), "temperature": object(), "n": 1, "partly": 1}
        POLICY.check(known, strict=strict)
        for field, value in (("n", 2), ("n", True), ("n", [*range(1000)]), ("partly", 2)):
            error = refusal(partial(POLICY.check, {field: value}, strict=strict))
            assert error.message.startswith(f"'{field}'={value!r:.200} is not supported. ")
            assert error.param == field
    error = refusal(partial(POLICY.check, {"temprature": 1}, strict=True))
    assert error.param == "temprature"
    assert error.message == (
        "Unknown field 'temprature'. The fields that evert knows are listed in docs/requests.md."
    )


def test_an_unknown_field_over_the_wire_passes_with_one_warning_a_name_and_few_in_all(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evert.bridge.chat.fields._warned", set())
    with caplog.at_level(logging.WARNING, "evert.bridge.chat.fields"):
        for _ in range(3):
            POLICY.check({"brand_new": 1, "other": 2}, strict=False)
        for number in range(1_000):
            POLICY.check({f"made_up_{number}{'x' * 1_000}": 1}, strict=False)

    assert caplog.messages[:2] == [
        f"An agent sends the field {name!r}, which evert does not know: it is ignored."
        for name in ("brand_new", "other")
    ]
    assert len(caplog.messages) == MOST_WARNED
    assert caplog.messages[-1].endswith("it is ignored. Further ones are not told.")
    assert max(map(len, caplog.messages)) < 250


ABSENT = [None, openai.NOT_GIVEN, openai.omit, anthropic.NOT_GIVEN, anthropic.omit]


def test_an_absent_field_is_neither_refused_nor_unknown() -> None:
    for absent in ABSENT:
        assert is_absent(absent)
        POLICY.check({"n": absent, "temprature": absent}, strict=True)
    for value in (0, "", False, [], {}, "NotGiven", object()):
        assert not is_absent(value), value


# -- what is read --------------------------------------------------------------------------------


def test_what_is_well_formed_is_read() -> None:
    assert read_messages(MESSAGES) is MESSAGES  # not copied
    assert read_messages(tuple(MESSAGES)) == tuple(MESSAGES)
    assert read_model("gpt-4o-mini", "policy") == "gpt-4o-mini"
    for absent in ("", *ABSENT):
        assert read_model(absent, "policy") == "policy"
    tools = [TOOL]
    read = read_tool_list(tools)
    tools.append(TOOL)
    assert read == read_tool_list((TOOL,)) == [TOOL]
    assert read_tool_list([]) is read_tool_list(None) is None
    nothing: list[Any] = [None, openai.omit, []]
    for stop, stops in (
        *((absent, ()) for absent in nothing),
        *((form, ("END",)) for form in ("END", ["END"], ("END",))),
        (["END", "\n"], ("END", "\n")),
    ):
        assert read_stop(stop) == stops


def test_the_smallest_token_cap_counts() -> None:
    caps: list[tuple[dict[str, Any], int | None]] = [
        ({}, None),
        ({"a": 5}, 5),
        ({"b": 6}, 6),
        ({"a": 5, "b": 6}, 5),
        ({"a": 7, "b": 6}, 6),
        ({"a": None, "b": 6}, 6),
        ({"a": openai.omit, "b": openai.NOT_GIVEN}, None),
        ({"a": 1, "c": 0}, 1),
    ]
    assert [read_cap(fields, "a", "b") for fields, _ in caps] == [cap for _, cap in caps]


REFUSED: dict[str, tuple[Callable[[Any], Any], str, list[Any]]] = {
    "messages": (
        read_messages,
        "must be a non-empty list of messages, got ",
        [None, [], (), "Hi", MESSAGES[0], 5, openai.NOT_GIVEN, iter(MESSAGES)],
    ),
    "model": (
        lambda value: read_model(value, "policy"),
        "must be a string, got {!r}.",
        [5, ["policy"], {"name": "policy"}],
    ),
    "tools": (read_tool_list, "must be a list of tools, got ", [5, "add", {"add": TOOL}, TOOL]),
    "max_tokens": (
        lambda value: read_cap({"max_tokens": value}, "max_tokens"),
        "must be a positive integer, got {!r}.",
        [0, -1, 1.5, "10", True, [5], {}],
    ),
    "stop_sequences": (
        lambda value: read_stop(value, "stop_sequences"),
        "must be a non-empty string or a list of them, got {!r}.",
        ["", [""], ["END", ""], [1], 5, {"END": 1}, ["END", None]],
    ),
}


def test_what_is_of_another_form_is_refused_with_what_was_expected() -> None:
    for field, (read, told, values) in REFUSED.items():
        for value in values:
            error = refusal(partial(read, value))
            assert error.param == field, value
            assert error.message.startswith(f"'{field}' {told.format(value)}"), value


# -- the errors themselves -----------------------------------------------------------------------


def test_a_400_is_the_sdks_own_with_status_body_and_request() -> None:
    error = bad_request("No.", param="messages[0]", code="some_code")

    assert type(error) is openai.BadRequestError
    assert (error.status_code, error.message, str(error)) == (400, "No.", "No.")
    told = (error.param, error.code, error.type)
    assert told == ("messages[0]", "some_code", "invalid_request_error")
    assert error.response.status_code == 400
    assert error.request.url.path == "/v1/chat/completions"
    assert error.request.url.host.endswith(".invalid")  # no address that could ever be reached
    library = openai.DefaultHttpxClient.__mro__[1].__module__.partition(".")[0]
    assert type(error.response).__module__.partition(".")[0] == library
    assert (bad_request("No.").param, bad_request("No.").code) == (None, None)


def test_a_prompt_that_is_too_long_has_the_code_and_the_sentences_on_which_agents_compact() -> None:
    error = context_length_exceeded(5000, 4096)

    assert (error.code, error.param) == ("context_length_exceeded", "messages")
    assert error.message == (
        "prompt is too long: 5000 tokens > 4096 maximum. This model's maximum context length is "
        "4096 tokens, however your messages resulted in 5000 tokens. Please reduce the length of "
        "the messages."
    )


# -- the native handle ---------------------------------------------------------------------------


async def test_the_native_handle_is_strict_about_names_and_says_how_to_stream() -> None:
    async def agent(client: Any) -> float:
        told = {"temprature": "Unknown", "stream": "Take client.openai", "n": "not supported"}
        values = {"temprature": 1, "stream": True, "n": 3}
        for name, advice in told.items():
            with pytest.raises(openai.BadRequestError, match=advice) as caught:
                await client.chat.completions.create(messages=MESSAGES, **{name: values[name]})
            assert caught.value.param == name
        return 1.0

    ended: Any = await ChatAgentEnv(agent).initial_observation()
    assert ended.reward == 1.0
