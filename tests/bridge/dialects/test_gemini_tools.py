"""Gemini's function declarations and schemas, and the ids of calls that come back without."""

import json
from collections.abc import Callable
from enum import Enum
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from evert.bridge.chat.schemas import first_error
from evert.bridge.clients.dialects.gemini_tools import (
    CallIds,
    json_schema,
    read_calling,
    read_fields,
    read_tools,
)

NUMBER = {"type": "object", "properties": {"x": {"type": "integer"}}}
ADD = {"name": "add", "description": "It.", "parameters": {"type": "OBJECT"}}


def named(*names: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": name}} for name in names]


def refusal(read: Callable[..., Any], *arguments: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        read(*arguments)
    return caught.value


# -- fields --------------------------------------------------------------------------------------


def test_a_field_has_one_name_and_null_is_none() -> None:
    given = {"max_output_tokens": 1, "topP": 2, "stop": 3, "a__b": 4, "text": None}

    assert read_fields(given, "p") == {"maxOutputTokens": 1, "topP": 2, "stop": 3, "aB": 4}
    others: list[Any] = [None, 5, "x", []]
    for value in others:
        error = refusal(read_fields, value, "contents[0]")
        assert error.param == "contents[0]"
        assert error.message == f"'contents[0]' must be an object, got {value!r}."


# -- schemas -------------------------------------------------------------------------------------


def test_types_in_capitals_are_json_s_all_the_way_down() -> None:
    given = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING"},
            "any_of": {"type": "ARRAY", "items": {"type": "INTEGER"}},
        },
        "required": ["type"],
        "anyOf": [{"type": "BOOLEAN"}],
        "additionalProperties": {"type": "NUMBER"},
        "defs": {"D": {"type": "NULL"}},
    }

    assert json_schema(given, "p") == {
        "type": "object",
        "properties": {
            "type": {"type": "string"},
            "any_of": {"type": "array", "items": {"type": "integer"}},
        },
        "required": ["type"],
        "anyOf": [{"type": "boolean"}],
        "additionalProperties": {"type": "number"},
        "$defs": {"D": {"type": "null"}},
    }


def test_numbers_of_64_bits_may_be_text() -> None:
    given = {"min_items": "1", "maxLength": 5, "minProperties": "-1", "maximum": 2.5}
    written = {"minItems": 1, "maxLength": 5, "minProperties": "-1", "maximum": 2.5}

    assert json_schema(given, "p") == written


def test_what_is_nullable_may_be_null() -> None:
    rows: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({"type": "STRING"}, {"type": ["string", "null"]}),
        ({"type": "STRING", "enum": ["a"]}, {"type": ["string", "null"], "enum": ["a", None]}),
        ({"anyOf": [{"type": "STRING"}]}, {"anyOf": [{"type": "string"}, {"type": "null"}]}),
        ({}, {}),
    ]
    for given, written in rows:
        assert json_schema({**given, "nullable": True}, "p") == written
        assert first_error(json.dumps(written), None) is None
    assert json_schema({"type": "STRING", "nullable": False}, "p") == {"type": "string"}


def test_what_json_schemas_do_not_know_is_left_out_and_one_stays_as_it_is() -> None:
    given = {"type": "TYPE_UNSPECIFIED", "propertyOrdering": ["x"], "example": 1, "title": "T"}
    schema = {
        "$defs": {"D": {"type": "integer", "minimum": 1}},
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/D"}, "y": {"type": ["string", "null"]}},
        "additionalProperties": False,
    }

    assert json_schema(given, "p") == {"title": "T"}
    assert json_schema(schema, "p") == schema
    assert json_schema({"ref": "#/defs/D"}, "p") == {"$ref": "#/defs/D"}


def test_a_schema_within_must_be_an_object() -> None:
    for schema, place in [
        (None, "p"),
        ({"properties": {"x": 5}}, "p.properties.x"),
        ({"anyOf": [5]}, "p.anyOf"),
        ({"items": "x"}, "p.items"),
    ]:
        assert refusal(json_schema, schema, "p").param == place


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    colour: Colour | None = None
    names: list[str] = []


def test_what_the_sdk_makes_of_a_class_fits_what_fits_the_class(
    sent: Callable[..., dict[str, Any]],
) -> None:
    body = sent(response_mime_type="application/json", response_schema=Point)
    schema = json.dumps(json_schema(body["generationConfig"]["responseSchema"], "p"))
    rows: list[tuple[dict[str, Any], bool]] = [
        ({"x": 1}, True),
        ({"x": 1, "colour": None, "names": ["a"]}, True),
        ({"x": 1, "colour": "red"}, True),
        ({"x": 1, "colour": "green"}, False),
        ({"x": 1, "names": [5]}, False),
        ({"x": "1"}, False),
        ({}, False),
    ]
    for value, fits in rows:
        assert (first_error(schema, value) is None) is fits, value


def test_what_the_sdk_makes_of_a_function_is_its_signature(
    sent: Callable[..., dict[str, Any]],
) -> None:
    def add(x: int, names: list[str], why: str = "so") -> int:
        """Add it."""
        return x

    [tool] = read_tools(sent(tools=[add])["tools"])
    assert tool["function"]["description"] == "Add it."
    parameters = tool["function"]["parameters"]
    assert parameters["required"] == ["x", "names"]
    kinds = {name: one["type"] for name, one in parameters["properties"].items()}
    assert kinds == {"x": "integer", "names": "array", "why": "string"}
    assert parameters["properties"]["names"]["items"]["type"] == "string"


# -- functions -----------------------------------------------------------------------------------


def test_declarations_of_several_tools_are_functions_in_their_order() -> None:
    add, look = (
        {"name": "add", "description": "It.", "parametersJsonSchema": NUMBER},
        {"name": "look", "parameters": {"type": "OBJECT"}, "response": {"type": "STRING"}},
    )

    assert read_tools([{"functionDeclarations": [add]}, {"function_declarations": [look]}]) == [
        {
            "type": "function",
            "function": {"name": "add", "description": "It.", "parameters": NUMBER},
        },
        {
            "type": "function",
            "function": {"name": "look", "description": None, "parameters": {"type": "object"}},
        },
    ]


def test_no_tools_are_no_functions_and_a_function_may_have_no_parameters() -> None:
    nothing: list[Any] = [None, [], [{}], [{"functionDeclarations": []}]]
    for tools in nothing:
        assert read_tools(tools) == []
    [function] = read_tools([{"functionDeclarations": [{"name": "end"}]}])
    assert function["function"]["parameters"] is None


def test_nothing_is_forced_but_by_the_mode_any() -> None:
    rows: list[tuple[Any, bool]] = [
        (None, True),
        ({}, True),
        ({"functionCallingConfig": {}}, True),
        ({"functionCallingConfig": {"mode": "AUTO"}}, True),
        ({"functionCallingConfig": {"mode": "MODE_UNSPECIFIED"}}, True),
        ({"functionCallingConfig": {"mode": "VALIDATED", "allowedFunctionNames": ["add"]}}, True),
        ({"function_calling_config": {"mode": "NONE"}}, False),
        ({"retrievalConfig": {"languageCode": "en"}}, True),
    ]
    for config, may_call in rows:
        assert read_calling(config, named("add")) == (may_call, ()), config


def test_one_of_all_or_of_some_functions_is_forced() -> None:
    def forced(**more: Any) -> tuple[str, ...]:
        config = {"functionCallingConfig": {"mode": "ANY", **more}}
        return read_calling(config, named("add", "look", "end"))[1]

    assert forced() == forced(allowedFunctionNames=[]) == ("add", "look", "end")
    assert forced(allowed_function_names=["end", "add"]) == ("end", "add")


# -- ids -----------------------------------------------------------------------------------------

HI = {"role": "user", "content": "Hi"}
HO = {"role": "user", "content": "Ho"}


def part(id: str | None, name: str = "add", **args: Any) -> dict[str, Any]:
    return {"functionCall": {"id": id, "name": name, "args": args}}


def calling(*parts: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {
            "id": one["functionCall"]["id"],
            "type": "function",
            "function": {
                "name": one["functionCall"]["name"],
                "arguments": json.dumps(one["functionCall"]["args"]),
            },
        }
        for one in parts
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def result(id: str | None = None, name: str = "add") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "name": name, "content": "{}"}


def restored(ids: CallIds, *messages: dict[str, Any]) -> list[Any]:
    """The ids of calls and results, in their order."""
    ids.restore(messages)
    found: list[Any] = []
    for message in messages:
        found += [call["id"] for call in message.get("tool_calls", ())]
        found += [message["tool_call_id"]] if message["role"] == "tool" else []
    return found


@pytest.fixture
def ids() -> CallIds:
    """Of an answer to HI that calls add twice with the same argument, and once with another."""
    ids = CallIds()
    ids.remember([HI], [{"text": "So:"}, part("a", x=1), part("b", x=1), part("c", x=2)])
    return ids


def test_calls_get_their_ids_again_and_results_those_of_their_calls(ids: CallIds) -> None:
    call = calling(part(None, x=1), part(None, x=1), part(None, x=2))

    assert restored(ids, HI, call, result(), result(), result()) == ["a", "b", "c"] * 2


def test_where_a_conversation_goes_on_every_call_gets_its_own(ids: CallIds) -> None:
    before = [HI, calling(part("a", x=1)), result("a")]
    ids.remember(before, [part("d", x=1)])

    conversation = [HI, calling(part(None, x=1)), result(), calling(part(None, x=1)), result()]
    assert restored(ids, *conversation) == ["a", "a", "d", "d"]


def test_a_call_of_the_agents_own_making_gets_none(ids: CallIds) -> None:
    assert restored(ids, HI, calling(part(None, x=3)), result()) == [None, None]
    assert restored(ids, HI, calling(part(None, "look", x=1)), result(name="look")) == [None, None]
    assert restored(ids, HO, calling(part(None, x=1)), result()) == [None, None]
    assert restored(ids, HI, HI, calling(part(None, x=1))) == [None]
    assert restored(ids, calling(part(None, x=1))) == [None]
    three_of_two = calling(*[part(None, x=1)] * 3)
    assert restored(ids, HI, three_of_two) == ["a", "b", None]


def test_what_has_an_id_keeps_it(ids: CallIds) -> None:
    call = calling(part("mine", x=1), part(None, x=1))

    found = restored(ids, HI, call, result("other"), result("mine"), result())
    assert found == ["mine", "a", "other", "mine", "a"]
