"""What the dialects' readers share.

1. A format is text, any JSON object, or a JSON schema; one that is none is a 400.
2. A forced tool is one of those offered.
3. A flag is true, false or absent.
"""

import json
from typing import Any

import openai
import pytest

from evert.bridge.chat.fields import read_flag
from evert.bridge.chat.formats import ANY_OBJECT, ReplyFormat
from evert.bridge.clients.dialects.fields import forced_tools, read_format

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}


def tools(*names: str) -> list[Any]:
    return [{"type": "function", "function": {"name": name}} for name in names]


# -- formats -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [None, "text"])
def test_text_is_no_format_at_all(kind: Any) -> None:
    assert read_format(kind, None, (), "response_format") is None


def test_an_object_is_the_schema_of_any_object() -> None:
    assert read_format("json_object", None, (), "response_format") == ReplyFormat(ANY_OBJECT)


def test_a_schema_is_kept_as_json() -> None:
    read = read_format("json_schema", SCHEMA, (), "response_format")

    assert read == ReplyFormat(json.dumps(SCHEMA))


def test_forced_tools_and_a_format_go_together() -> None:
    assert read_format(None, None, ("add",), "text") == ReplyFormat(None, ("add",))
    assert read_format("json_object", None, ("add",), "text") == ReplyFormat(ANY_OBJECT, ("add",))


@pytest.mark.parametrize("kind", ["", "json", "grammar", 5, ["text"], {}])
def test_another_kind_is_refused_with_the_kinds_there_are(kind: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        read_format(kind, None, (), "text.format")

    assert caught.value.param == "text.format"
    assert caught.value.message == (
        f"'text.format' has the type {kind!r}; expected 'text', 'json_object' or 'json_schema'."
    )


@pytest.mark.parametrize("schema", [None, "{}", 5, [], True])
def test_a_schema_must_be_an_object(schema: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="'p' needs a JSON schema, got") as caught:
        read_format("json_schema", schema, (), "p")

    assert caught.value.param == "p"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "no such type"},
        {"properties": []},
        {"required": "x"},
        {"pattern": "("},
        {"minimum": "1"},
        {"enum": 5},
        {"anyOf": {}},
        {1: {2}},
        {"$schema": 5, "type": 5},
    ],
    ids=str,
)
def test_what_is_no_json_schema_is_refused(schema: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="'p' is no valid JSON schema: ") as caught:
        read_format("json_schema", schema, (), "p")

    assert caught.value.param == "p"
    assert len(caught.value.message) < 400


# -- forced tools --------------------------------------------------------------------------------


@pytest.mark.parametrize("choice", [None, "auto", "none", "tool"])
def test_nothing_is_forced(choice: Any) -> None:
    assert forced_tools(choice, None, tools("add")) == ()
    assert forced_tools(choice, None, None) == ()


@pytest.mark.parametrize("choice", ["required", "any"])
def test_any_of_the_tools_will_do(choice: str) -> None:
    assert forced_tools(choice, None, tools("add", "look")) == ("add", "look")


def test_one_tool_is_forced_by_its_name() -> None:
    assert forced_tools(None, "look", tools("add", "look")) == ("look",)


@pytest.mark.parametrize("offered", [None, [], tools("add"), [None, 5, {"function": None}]])
def test_a_tool_that_is_not_offered_cannot_be_forced(offered: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="names the tool 'look'; offered") as caught:
        forced_tools(None, "look", offered)

    assert caught.value.param == "tool_choice"


@pytest.mark.parametrize("choice", ["required", "any"])
def test_without_tools_none_can_be_forced(choice: str) -> None:
    with pytest.raises(openai.BadRequestError, match="needs tools to choose from") as caught:
        forced_tools(choice, None, None)

    assert caught.value.param == "tool_choice"


# -- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("value", "flag"), [(True, True), (False, False), (None, False)])
def test_a_flag_is_a_boolean_and_false_when_it_is_absent(value: Any, flag: bool) -> None:
    assert read_flag({"stream": value}, "stream") is flag
    assert read_flag({}, "stream") is False
    assert read_flag({"stream": openai.omit}, "stream") is False


@pytest.mark.parametrize("value", [0, 1, "true", [], {}])
def test_a_flag_of_another_type_is_refused(value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        read_flag({"stream": value}, "stream")

    assert caught.value.param == "stream"
    assert caught.value.message == f"'stream' must be true or false, got {value!r}."
