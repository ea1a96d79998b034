"""Tools in Gemini's API: function declarations, schema conversion and call ids.

The API has two types of schemas. ``parametersJsonSchema`` and ``responseJsonSchema`` are JSON
schemas. ``parameters`` and ``responseSchema`` are a subset of OpenAPI schemas (uppercase types,
``nullable``, 64-bit numbers as strings), which ``json_schema`` converts to JSON schemas. In
practice, clients also send OpenAPI schemas in the JSON schema fields.
"""

import hashlib
import json
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from evert.bridge.chat.bad_requests import malformed, unexpected
from evert.bridge.chat.fields import is_absent, read_list, read_tool_list
from evert.bridge.clients.dialects.fields import forced_tools
from evert.bridge.clients.dialects.shapes import function_tool, placed

_MODES = ("MODE_UNSPECIFIED", "AUTO", "VALIDATED", "COMPOSITIONAL", "ANY", "NONE")

_TOOLS = (
    "{'functionDeclarations': [...]}. Searches, code execution and the hosted API's other tools "
    "are not supported. Define functions instead."
)

_SCHEMAS = ("items", "additionalProperties")
_MAPS = {"properties": "properties", "defs": "$defs", "$defs": "$defs"}
_COUNTS = {f"{end}{of}" for end in ("min", "max") for of in ("Items", "Length", "Properties")}
_LEFT_OUT = {"propertyOrdering", "example", "nullable"}

REMEMBERED = 2**14
"""Maximum number of calls whose ids are stored. The oldest ones are dropped."""


def read_fields(value: object, place: str) -> dict[str, Any]:
    """Convert an object's keys to camel case and drop null values.

    Google APIs accept both ``max_output_tokens`` and ``maxOutputTokens`` for the same field.
    """
    if not isinstance(value, Mapping):
        raise malformed(place, "an object", value)
    return {_camel(name): inner for name, inner in value.items() if not is_absent(inner)}


def _camel(name: str) -> str:
    first, *words = name.split("_")
    return first + "".join(word[:1].upper() + word[1:] for word in words)


# -- schemas -------------------------------------------------------------------------------------


def json_schema(schema: object, place: str) -> dict[str, Any]:
    """Convert an OpenAPI schema to a JSON schema. Fields that exist in both formats are kept."""
    fields = read_fields(schema, place)
    result: dict[str, Any] = {}
    for name, value in fields.items():
        where = f"{place}.{name}"
        if name in _MAPS and isinstance(value, Mapping):
            inner = {
                key: json_schema(subschema, f"{where}.{key}") for key, subschema in value.items()
            }
            result[_MAPS[name]] = inner
        elif name == "anyOf" and isinstance(value, list):
            result[name] = [json_schema(subschema, where) for subschema in value]
        elif name in _SCHEMAS and not isinstance(value, bool):
            result[name] = json_schema(value, where)
        elif name in _COUNTS and isinstance(value, str) and value.isdecimal():
            result[name] = int(value)
        elif name == "ref" and isinstance(value, str):
            result["$ref"] = value.replace("#/defs/", "#/$defs/", 1)
        elif name not in _LEFT_OUT:
            result[name] = value
    return _typed(result, nullable=fields.get("nullable") is True)


def schema_in(
    fields: Mapping[str, Any], json_name: str, openapi_name: str, place: str = ""
) -> object:
    """Return the schema from one of two fields as a JSON schema, or None if both are missing."""
    name = json_name if json_name in fields else openapi_name
    schema = fields.get(name)
    in_capitals = isinstance(schema, Mapping) and str(schema.get("type")).isupper()
    is_json = schema is None or (name == json_name and not in_capitals)
    return schema if is_json else json_schema(schema, f"{place}{name}")


def _typed(schema: dict[str, Any], *, nullable: bool) -> dict[str, Any]:
    kind = schema.get("type")
    if isinstance(kind, str):
        schema["type"] = kind.lower()
    if kind == "TYPE_UNSPECIFIED":
        del schema["type"]
    if not nullable:
        return schema
    if isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
    if isinstance(schema.get("enum"), list):
        schema["enum"] = [*schema["enum"], None]
    if isinstance(schema.get("anyOf"), list):
        schema["anyOf"] = [*schema["anyOf"], {"type": "null"}]
    return schema


# -- tools ---------------------------------------------------------------------------------------


def read_tools(tools: object) -> list[dict[str, Any]]:
    """Convert the functions of all tools to the chat completions format."""
    functions: list[dict[str, Any]] = []
    for tool, place in placed(read_tool_list(tools) or (), "tools"):
        fields = read_fields(tool, place)
        declarations = fields.pop("functionDeclarations", [])
        if fields or not isinstance(declarations, list):
            raise unexpected(place, tool, _TOOLS)
        functions += [
            _function(*declaration)
            for declaration in placed(declarations, f"{place}.functionDeclarations")
        ]
    return functions


def _function(declaration: object, place: str) -> dict[str, Any]:
    fields = read_fields(declaration, place)
    parameters = schema_in(fields, "parametersJsonSchema", "parameters", f"{place}.")
    return function_tool(fields.get("name"), fields.get("description"), parameters)


def read_calling(config: object, tools: Sequence[Any]) -> tuple[bool, tuple[str, ...]]:
    """Return whether ``toolConfig`` allows calls, and the tools that the reply must choose from."""
    outer = read_fields({} if is_absent(config) else config, "toolConfig")
    place = "toolConfig.functionCallingConfig"
    calling = read_fields(outer.get("functionCallingConfig", {}), place)
    mode = calling.get("mode", "AUTO")
    if mode not in _MODES:
        raise unexpected(f"{place}.mode", mode, f"one of {', '.join(_MODES[1:])}.")
    if mode != "ANY":
        return mode != "NONE", ()
    allowed = calling.get("allowedFunctionNames") or ()
    names = read_list(allowed, f"{place}.allowedFunctionNames", "names")
    if not names:
        return True, forced_tools("any", None, tools, place)
    return True, tuple(tool for name in names for tool in forced_tools(None, name, tools, place))


# -- ids -----------------------------------------------------------------------------------------


class CallIds:
    """Stores the ids of a rollout's tool calls, for agents that send calls back without ids.

    The API does not require ids, and some clients (such as LiteLLM) drop them. We recognise a call
    by its index in the conversation, the message before it, its name and its arguments.
    """

    def __init__(self) -> None:
        self._ids: OrderedDict[bytes, list[str]] = OrderedDict()

    def remember(self, messages: Sequence[Any], parts: Iterable[Mapping[str, Any]]) -> None:
        """Store the ids of the tool calls in ``parts``, the policy's reply to ``messages``."""
        ids = defaultdict(list)
        for call in (part["functionCall"] for part in parts if "functionCall" in part):
            ids[_place(messages, call["name"], call["args"])].append(call["id"])
        for place in ids:
            self._ids[place] = ids[place]
            self._ids.move_to_end(place)
        while len(self._ids) > REMEMBERED:
            self._ids.popitem(last=False)

    def restore(self, messages: Sequence[dict[str, Any]]) -> None:
        """Restore missing call ids, and set the id of each result to the id of its call."""
        unanswered: list[tuple[object, object]] = []
        for index, message in enumerate(messages):
            calls = message.get("tool_calls", ())
            if any(call["id"] is None for call in calls):
                self._restore(messages[:index], calls)
            unanswered += [(call["function"]["name"], call["id"]) for call in calls]
            if message["role"] == "tool":
                _restore_result(message, unanswered)

    def _restore(self, before: Sequence[Any], calls: Sequence[dict[str, Any]]) -> None:
        unused: dict[bytes, Iterator[str]] = {}
        for call in calls:
            function = call["function"]
            place = _place(before, function["name"], json.loads(function["arguments"]))
            ids = unused.setdefault(place, iter(self._ids.get(place, ())))
            call["id"] = next(ids, None) if call["id"] is None else call["id"]


def _place(before: Sequence[Any], name: object, arguments: object) -> bytes:
    text = json.dumps([len(before), before[-1:], name, arguments], sort_keys=True)
    return hashlib.sha256(text.encode()).digest()


def _restore_result(result: dict[str, Any], unanswered: list[tuple[object, object]]) -> None:
    """Match a result to a call by id. If it has no id, use the function's oldest open call."""
    call_id = result["tool_call_id"]
    matches = [
        call for call in unanswered if call[call_id is not None] == (call_id or result["name"])
    ]
    if matches:
        unanswered.remove(matches[0])
        result["tool_call_id"] = matches[0][1]
