"""Gemini function declarations and schemas, and restoring call ids that agents leave out."""

import json
from collections.abc import Callable
from typing import Any

import openai
import pytest
from tests.bridge.clients.dialects.apis import HI, Fields, called

from evert.bridge.chat.schemas import first_error
from evert.bridge.clients.dialects.gemini_tools import (
    REMEMBERED,
    CallIds,
    json_schema,
    read_fields,
    read_tools,
)


def refusal(read: Callable[..., Any], *arguments: Any) -> openai.BadRequestError:
    with pytest.raises(openai.BadRequestError) as caught:
        read(*arguments)
    return caught.value


def test_snake_case_fields_become_camel_case_and_nulls_are_dropped() -> None:
    fields = {"max_output_tokens": 1, "topP": 2, "stop": 3, "a__b": 4, "text": None}

    assert read_fields(fields, "p") == {"maxOutputTokens": 1, "topP": 2, "stop": 3, "aB": 4}
    values: list[Any] = [None, 5, "x", []]
    for value in values:
        error = refusal(read_fields, value, "contents[0]")
        assert error.param == "contents[0]"
        assert error.message == f"'contents[0]' must be an object, got {value!r}."


PLAIN = {
    "$defs": {"D": {"type": "integer", "minimum": 1}}, "type": "object",
    "properties": {"x": {"$ref": "#/$defs/D"}, "y": {"type": ["string", "null"]}},
    "additionalProperties": False,
}  # fmt: skip
SCHEMAS: dict[str, tuple[Fields, Fields]] = {
    "a JSON schema": (PLAIN, PLAIN),
    "types in capitals, all the way down": (
        {"type": "OBJECT", "required": ["type"], "anyOf": [{"type": "BOOLEAN"}],
            "properties": {"type": {"type": "STRING"},
                "any_of": {"type": "ARRAY", "items": {"type": "INTEGER"}}},
            "additionalProperties": {"type": "NUMBER"}, "defs": {"D": {"type": "NULL"}}},
        {"type": "object", "required": ["type"], "anyOf": [{"type": "boolean"}],
            "properties": {"type": {"type": "string"},
                "any_of": {"type": "array", "items": {"type": "integer"}}},
            "additionalProperties": {"type": "number"}, "$defs": {"D": {"type": "null"}}}),
    "a reference": ({"ref": "#/defs/D"}, {"$ref": "#/$defs/D"}),
    "numbers of 64 bits as text": (
        {"min_items": "1", "maxLength": 5, "minProperties": "-1", "maximum": 2.5},
        {"minItems": 1, "maxLength": 5, "minProperties": "-1", "maximum": 2.5}),
    "what JSON schemas do not know": (
        {"type": "TYPE_UNSPECIFIED", "propertyOrdering": ["x"], "example": 1, "title": "T"},
        {"title": "T"}),
    "not nullable": ({"type": "STRING", "nullable": False}, {"type": "string"}),
    "nullable": ({"type": "STRING", "nullable": True}, {"type": ["string", "null"]}),
    "a nullable enum": ({"type": "STRING", "enum": ["a"], "nullable": True},
        {"type": ["string", "null"], "enum": ["a", None]}),
    "any of some or null": ({"anyOf": [{"type": "STRING"}], "nullable": True},
        {"anyOf": [{"type": "string"}, {"type": "null"}]}),
    "anything or null": ({"nullable": True}, {}),
}  # fmt: skip


def test_schemas_become_json_schemas() -> None:
    for row, (schema, expected) in SCHEMAS.items():
        assert json_schema(schema, "p") == expected, row
        if schema.get("nullable"):
            assert first_error(json.dumps(expected), None) is None, row


def test_a_nested_schema_must_be_an_object() -> None:
    for schema, place in [
        (None, "p"),
        ({"properties": {"x": 5}}, "p.properties.x"),
        ({"anyOf": [5]}, "p.anyOf"),
        ({"items": "x"}, "p.items"),
    ]:
        assert refusal(json_schema, schema, "p").param == place


def test_the_declarations_of_several_tools_become_functions_in_order() -> None:
    number = {"type": "object", "properties": {"x": {"type": "integer"}}}
    add = {"name": "add", "description": "It.", "parametersJsonSchema": number}
    look = {"name": "look", "parameters": {"type": "OBJECT"}, "response": {"type": "STRING"}}
    tools = [{"functionDeclarations": [add]}, {"function_declarations": [look, {"name": "end"}]}]

    functions = read_tools(tools)
    assert [tool["type"] for tool in functions] == ["function"] * 3
    assert [tool["function"] for tool in functions] == [
        {"name": "add", "description": "It.", "parameters": number},
        {"name": "look", "description": None, "parameters": {"type": "object"}},
        {"name": "end", "description": None, "parameters": None},
    ]
    nothing: list[Any] = [None, [], [{}], [{"functionDeclarations": []}]]
    for none in nothing:
        assert read_tools(none) == []


def part(id: str, **args: Any) -> Fields:
    return {"functionCall": {"id": id, "name": "add", "args": args}}


def calling(*calls: tuple[str | None, int], name: str = "add") -> Fields:
    """Return a model message with one call per (id, argument) pair."""
    tool_calls = [called(id, name, json.dumps({"x": x})) for id, x in calls]
    return {"role": "assistant", "content": "", "tool_calls": tool_calls}


def result(id: str | None = None, name: str = "add") -> Fields:
    return {"role": "tool", "tool_call_id": id, "name": name, "content": "{}"}


RESTORED: dict[str, tuple[list[Fields], list[str | None]]] = {
    "calls and their results": (
        [HI, calling((None, 1), (None, 1), (None, 2)), result(), result(), result()],
        ["a", "b", "c"] * 2),
    "calls that go on": (
        [HI, calling((None, 1)), result(), calling((None, 1)), result()], ["a", "a", "d", "d"]),
    "those that have one": (
        [HI, calling(("mine", 1), (None, 1)), result("other"), result("mine"), result()],
        ["mine", "a", "other", "mine", "a"]),
    "other arguments": ([HI, calling((None, 3)), result()], [None, None]),
    "another function": (
        [HI, calling((None, 1), name="look"), result(name="look")], [None, None]),
    "another question": (
        [{"role": "user", "content": "Ho"}, calling((None, 1)), result()], [None, None]),
    "one more question": ([HI, HI, calling((None, 1))], [None]),
    "no question": ([calling((None, 1))], [None]),
    "one more call": ([HI, calling((None, 1), (None, 1), (None, 1))], ["a", "b", None]),
}  # fmt: skip


@pytest.mark.parametrize("row", RESTORED)
def test_ids_are_restored_for_the_policys_calls_but_not_for_the_agents_own(row: str) -> None:
    ids = CallIds()
    ids.remember([HI], [{"text": "So:"}, part("a", x=1), part("b", x=1), part("c", x=2)])
    ids.remember([HI, calling(("a", 1)), result("a")], [part("d", x=1)])
    messages, expected = RESTORED[row]
    ids.restore(messages)
    found: list[str | None] = []
    for message in messages:
        found += [call["id"] for call in message.get("tool_calls", ())]
        found += [message["tool_call_id"]] if message["role"] == "tool" else []
    assert found == expected


def test_only_the_ids_of_the_latest_calls_are_remembered() -> None:
    ids = CallIds()
    for number in range(REMEMBERED + 9):
        ids.remember([HI], [part(f"id {number}", x=number)])
    forgotten, latest = calling((None, 8)), calling((None, 9))
    ids.restore([HI, forgotten])
    ids.restore([HI, latest])
    assert [message["tool_calls"][0]["id"] for message in (forgotten, latest)] == [None, "id 9"]
