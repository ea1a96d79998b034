"""What the dialects' readers share: formats, forced tools, flags."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest

from evert.bridge.chat.fields import read_flag
from evert.bridge.chat.formats import ANY_OBJECT, ReplyFormat
from evert.bridge.clients.dialects.fields import forced_tools, read_format

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def tools(*names: str) -> list[Any]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def refusal(read: Callable[..., Any], *arguments: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        read(*arguments)
    return caught.value


def test_a_format_is_none_any_object_or_a_schema_as_json_and_tools_that_are_forced() -> None:
    for kind in (None, "text"):
        assert read_format(kind, None, (), "p") is None
        assert read_format(kind, None, ("add",), "p") == ReplyFormat(None, ("add",))
    assert read_format("json_object", None, (), "p") == ReplyFormat(ANY_OBJECT)
    assert read_format("json_object", None, ("add",), "p") == ReplyFormat(ANY_OBJECT, ("add",))
    assert read_format("json_schema", SCHEMA, (), "p") == ReplyFormat(json.dumps(SCHEMA))


def test_another_kind_is_refused_with_the_kinds_there_are() -> None:
    others: list[Any] = ["", "json", "grammar", 5, ["text"], {}]
    for kind in others:
        error = refusal(read_format, kind, None, (), "text.format")
        assert error.param == "text.format"
        assert error.message == (
            f"'text.format' has the type {kind!r}; expected 'text', 'json_object' or 'json_schema'."
        )


def test_what_is_no_json_schema_is_refused() -> None:
    others: list[Any] = [None, "{}", 5, [], True]
    for schema in others:
        error = refusal(read_format, "json_schema", schema, (), "p")
        assert error.message.startswith("'p' needs a JSON schema, got "), schema
        assert error.param == "p"
    broken: list[Any] = [
        {"type": "no such type"},
        {"properties": []},
        {"required": "x"},
        {"pattern": "("},
        {"minimum": "1"},
        {"enum": 5},
        {"anyOf": {}},
        {1: {2}},
        {"$schema": 5, "type": 5},
    ]
    for schema in broken:
        error = refusal(read_format, "json_schema", schema, (), "p")
        assert error.message.startswith("'p' is no valid JSON schema: "), schema
        assert error.param == "p"
        assert len(error.message) < 400


def test_forced_is_nothing_any_of_the_tools_or_one_by_its_name() -> None:
    offered = tools("add", "look")
    for choice in (None, "auto", "none", "tool"):
        assert forced_tools(choice, None, offered) == forced_tools(choice, None, None) == ()
    for choice in ("required", "any"):
        assert forced_tools(choice, None, offered) == ("add", "look")
    assert forced_tools(None, "look", offered) == ("look",)


def test_a_tool_that_is_not_offered_cannot_be_forced() -> None:
    for offered in (None, [], tools("add"), [None, 5, {"function": None}]):
        error = refusal(forced_tools, None, "look", offered)
        assert "names the tool 'look'; offered" in error.message, offered
        assert error.param == "tool_choice"
    for choice in ("required", "any"):
        error = refusal(forced_tools, choice, None, None)
        assert "needs tools to choose from" in error.message
        assert error.param == "tool_choice"


def test_a_flag_is_true_false_or_absent() -> None:
    for value, flag in [(True, True), (False, False), (None, False), (openai.omit, False)]:
        assert read_flag({"stream": value}, "stream") is flag
    assert read_flag({}, "stream") is False
    others: list[Any] = [0, 1, "true", [], {}]
    for other in others:
        error = refusal(read_flag, {"stream": other}, "stream")
        assert error.param == "stream"
        assert error.message == f"'stream' must be true or false, got {other!r}."
