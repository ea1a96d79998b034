"""Shared helpers for the dialects: the table of fields, output formats and forced tools."""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.fields import FieldPolicy, is_absent, read_object
from evert.bridge.chat.formats import ANY_OBJECT, ReplyFormat
from evert.bridge.chat.schemas import check_schema
from evert.bridge.clients.dialects.shapes import get


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("fields.toml").read_text())


BUILT_IN_TOOLS = frozenset(_table()["responses"]["built_in_tools"])
"""OpenAI's built-in tools. Coding agents send them, but they are never shown to the policy."""


def field_policy(api: str) -> FieldPolicy:
    """Return the field policy for an API, given its name in ``fields.toml``."""
    rules = _table()[api]
    ignored = frozenset([*rules["ignored"], *_table()["common"]["ignored"]])
    refused = {
        name: (rule.get("passes", []), rule["advice"]) for name, rule in rules["refused"].items()
    }
    return FieldPolicy(frozenset(rules["honoured"]), ignored, refused)


def read_format(
    value: object,
    must_call: tuple[str, ...],
    param: str,
    within: str = "",
    *,
    tools: Sequence[Any] | None = None,
) -> ReplyFormat | None:
    """Return the output format required by a field and the tools, or None if they require none.

    Unless the field is missing, it is an object with a type and a schema. ``within`` is the key of
    the inner object that contains the schema, or "" if the field itself contains it.
    """
    spec = {"type": None} if is_absent(value) else read_object(value, param) or {}
    kind, text = spec.get("type", ""), None
    if kind == "json_object":
        text = ANY_OBJECT
    elif kind == "json_schema":
        text = schema_text(get(spec.get(within) if within else spec, "schema"), param)
    elif kind is not None and kind != "text":
        raise bad_request(
            f"'{param}' has the type {kind!r:.200}; expected one of 'text', 'json_object' and "
            "'json_schema'.",
            param=param,
        )
    strict = tuple(_strict_schemas(tools or ()))
    return ReplyFormat(text, must_call, strict) if text is not None or must_call or strict else None


def _strict_schemas(tools: Sequence[Any]) -> Iterator[tuple[str, object]]:
    for tool in tools:
        function = get(tool, "function")
        if get(function, "strict") is True and isinstance(get(function, "parameters"), Mapping):
            yield str(get(function, "name")), get(function, "parameters")


def schema_text(schema: object, param: str) -> str:
    """Serialize a JSON schema. Raises a 400 error if it is not valid."""
    if not isinstance(schema, Mapping):
        raise bad_request(f"'{param}' needs a JSON schema, got {schema!r:.200}.", param=param)
    try:
        text = json.dumps(schema)
        check_schema(text)
    except Exception as error:  # validators may raise anything for an invalid schema
        raise bad_request(
            f"'{param}' is not a valid JSON schema: {error!s:.300}", param=param
        ) from None
    return text


def forced_tools(
    choice: object, name: object, tools: Sequence[Any] | None, param: str = "tool_choice"
) -> tuple[str, ...]:
    """Return the tools that the reply must choose from, or () if no call is required."""
    names = tuple(str(get(get(tool, "function"), "name")) for tool in tools or ())
    if name is not None:
        if name not in names:
            raise bad_request(
                f"'{param}' requires the unknown tool {name!r:.200}. Tools: {', '.join(names)}.",
                param=param,
            )
        return (str(name),)
    if choice in ("required", "any"):
        if not names:
            raise bad_request(f"'{param}'={choice!r} needs tools to choose from.", param=param)
        return names
    return ()


def openai_forced_tools(
    choice: object, name: object, tools: Sequence[Any] | None, form: str
) -> tuple[str, ...]:
    """Return the tools that the reply must choose from, according to OpenAI's ``tool_choice``.

    ``name`` is the tool selected by ``choice``, or None. Error messages show
    ``form`` as an example.
    """
    if is_absent(choice) or choice in ("auto", "none"):
        return ()
    if isinstance(name, str) or choice == "required":
        return forced_tools(choice, name, tools)
    raise bad_request(
        f"'tool_choice'={choice!r:.200}; expected 'auto', 'none', 'required' or {form}.",
        param="tool_choice",
    )
