"""Parses argument values as models write them, and converts them to the types in the tool schema.

Models write JSON, Python, or a mixture of both, with bare keys, single quotes or special quote
marks. ``read_value`` parses all of these. For formats in which values are plain text
(``<parameter=q>12``), ``read_typed`` converts the text to the schema's type, and ``read_nested``
parses nested elements.
"""

import ast
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

Schemas = dict[str, Mapping[str, Any]]
"""Maps each tool name to a dict from parameter names to their schemas."""

_JSON = json.JSONDecoder()
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_WORD = re.compile(r"[\w.\-$]+")
_QUOTED = re.compile(r"""(["'])(?:(?!\1)[^\\]|\\.)*+\1""", re.DOTALL)
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}
_UNREADABLE = (ValueError, SyntaxError, RecursionError, MemoryError, TypeError)


def schemas_of(tools: Iterable[Any]) -> Schemas:
    """Return the parameter schemas of tools in OpenAI's or the Cookbook's format."""
    functions = (tool.get("function", tool) for tool in tools)
    return {tool["name"]: _properties(tool.get("parameters")) for tool in functions}


def read_value(text: str, at: int, quote: str = "") -> tuple[Any, int]:
    """Parse the value that starts at ``at``. Returns the value and the index of its end.

    Args:
        text: Text that contains JSON, Python, or objects with bare keys.
        at: The index of the value, or of whitespace before it.
        quote: The mark around strings, or "" for ordinary quotes.

    Raises:
        ValueError: There is no value at this index.
    """
    at = past_space(text, at)
    if not quote:
        try:
            return _JSON.raw_decode(text, at)
        except ValueError:
            pass
    return _read_loose(text, at, quote)


def past_space(text: str, at: int) -> int:
    """Return the index of the next non-whitespace character."""
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def unexpected(text: str, at: int, expected: str) -> ValueError:
    """Create the error for text that does not continue as expected."""
    return ValueError(f"expected {expected}, got {text[at : at + 80]!r}")


def _read_loose(text: str, at: int, quote: str) -> tuple[Any, int]:
    at = past_space(text, at)
    if quote and text.startswith(quote, at):
        end = text.find(quote, at + len(quote))
        if end < 0:
            raise unexpected(text, at, "a terminated string")
        return text[at + len(quote) : end], end + len(quote)
    if quoted := _QUOTED.match(text, at):
        return _unquote(quoted[0]), quoted.end()
    if text[at : at + 1] in ("{", "["):
        return _read_container(text, at, quote)
    number, word = _NUMBER.match(text, at), _WORD.match(text, at)
    if number is not None and (word is None or number.end() >= word.end()):
        return json.loads(number[0]), number.end()
    if word is None:
        raise unexpected(text, at, "a value")
    return _WORDS.get(word[0], word[0]), word.end()


def _read_container(text: str, at: int, quote: str) -> tuple[Any, int]:
    """Parse an object or a list."""
    is_object = text[at] == "{"
    close = "}" if is_object else "]"
    keys: list[str] = []
    items: list[Any] = []
    at = past_space(text, at + 1)
    while not text.startswith(close, at):
        if items:
            at = _skip(",", text, at)
            if text.startswith(close, at):
                break  # after a trailing comma
        if is_object:
            key, at = _read_loose(text, at, quote)
            at = _skip(":", text, at)
            keys.append(str(key))
        item, at = _read_loose(text, at, quote)
        items.append(item)
        at = past_space(text, at)
    return dict(zip(keys, items, strict=True)) if is_object else items, at + 1


def _skip(mark: str, text: str, at: int) -> int:
    at = past_space(text, at)
    if not text.startswith(mark, at):
        raise unexpected(text, at, repr(mark))
    return past_space(text, at + len(mark))


def _unquote(text: str) -> Any:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        try:
            return ast.literal_eval(text.replace("\n", "\\n"))
        except _UNREADABLE as error:
            raise ValueError(f"expected a string, got {text[:80]!r}") from error


# -- types -----------------------------------------------------------------------------------------


def read_typed(text: str, schema: Any, *, is_json: bool | None = None) -> Any:
    """Convert text to the type in the schema.

    Args:
        text: The value as the model wrote it.
        schema: The parameter's JSON schema, or None if unknown.
        is_json: True if the format marks the value as JSON, False if it marks it as a string, None
            if it does not mark the type.
    """
    kinds = _kinds(schema)
    is_null = text.strip() in ("null", "None")
    is_string = is_json is None and "string" in kinds and kinds <= {"string", "null"}
    if is_json is False or (is_string and not (is_null and "null" in kinds)):
        return text
    value = _literal(text)
    return text if isinstance(value, str) and not is_json else value


def read_quoted(value: str, schema: Any) -> Any:
    """Return a quoted value as a string, or convert it if the schema does not allow strings."""
    kinds = _kinds(schema)
    return read_typed(value, schema) if kinds and "string" not in kinds else value


def read_bare(text: str, schema: Any) -> Any:
    """Parse a JSON or Python value, or a string with or without quotes."""
    stripped = text.strip()
    value = _literal(stripped)
    if not isinstance(value, str):
        return text if _kinds(schema) == {"string"} else value
    if value is not stripped:
        return read_quoted(value, schema)
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        text = text[1:-1]
    return read_typed(text, schema)


def read_nested(text: str, mark: str, schema: Any) -> Any:
    """Parse elements (``mark<NAME>...mark</NAME>``), or use ``read_typed`` for other text."""
    opened = re.compile(re.escape(mark) + r"<([\w.\-]+)>")
    if opened.match(text) is None:
        return read_typed(text, schema)
    elements: list[tuple[str, str]] = []
    at = 0
    while (element := opened.match(text, at)) is not None:
        start, end = element.end(), _end_of_element(text, mark, element[1], element.end())
        elements.append((element[1], text[start:end]))
        at = end + len(f"{mark}</{element[1]}>")
    if text[at:].strip():
        raise unexpected(text, at, "the end of a value")
    schema = schema if isinstance(schema, Mapping) else {}
    if {name for name, _ in elements} == {"item"} and schema.get("type", "array") == "array":
        return [read_nested(inner, mark, schema.get("items")) for _, inner in elements]
    inside = _properties(schema)
    return {name: read_nested(inner, mark, inside.get(name)) for name, inner in elements}


def _end_of_element(text: str, mark: str, name: str, at: int) -> int:
    depth = 1
    for tag in re.compile(re.escape(mark) + rf"<(/?){re.escape(name)}>").finditer(text, at):
        depth += -1 if tag[1] else 1
        if depth == 0:
            return tag.start()
    raise unexpected(text, at, f"the end of {name}")


def _literal(text: str) -> Any:
    """Parse a JSON or Python value. Any other text is returned unchanged."""
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(text)
            json.dumps(value)
        except _UNREADABLE:
            continue
        if isinstance(value, tuple):
            continue  # "1, 2" is text, not a tuple
        return value
    return text


def _kinds(schema: Any) -> set[str]:
    """Return the types listed in a schema, or an empty set if it does not list any."""
    if not isinstance(schema, Mapping):
        return set()
    kind = schema.get("type")
    kinds = {kind} if isinstance(kind, str) else set(kind) if isinstance(kind, list) else set()
    for key in ("anyOf", "oneOf", "allOf"):
        kinds |= {name for inner in schema.get(key) or () for name in _kinds(inner)}
    enum = schema.get("enum")
    if not kinds and isinstance(enum, list) and all(isinstance(choice, str) for choice in enum):
        return {"string"}
    return kinds


def _properties(schema: Any) -> Mapping[str, Any]:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    return properties if isinstance(properties, Mapping) else {}
