"""The four types of call formats that templates use, with their parsers.

Objects   a JSON object with the name and the arguments, or a list of such objects
Named     the name, then the arguments as an object
Keyed     the name, then each argument between marks
Python    a list of calls in Python
"""

import ast
import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from evert.bridge.tokens.call_format import (
    INDEX,
    KEY,
    NAME_PATTERN,
    CallFormat,
    Cursor,
    FunctionCall,
    Literal,
    call_of,
    literal,
    plain_pattern,
)
from evert.bridge.tokens.call_values import (
    past_space,
    read_bare,
    read_nested,
    read_quoted,
    read_typed,
    unexpected,
)

_KEY = r"[^\n<>/\s][^\n<>]{0,199}?"
_MOST_ENDS = 3
"""How many closing brackets to try as the end of a Python list, starting with the last one."""


@dataclass(frozen=True)
class Objects(CallFormat):
    """Calls are JSON objects. ``keys`` contains the keys for the name, the arguments and the id.

    If the key for the name is None, the name itself is the object's only key. If the key for the id
    is None, the format has no ids.
    """

    keys: tuple[str | None, str, str | None] = ("name", "arguments", None)

    def _write_call(self, number: int, call: FunctionCall) -> str:
        return json.dumps({"name": call.name, "arguments": call.arguments})

    def _read_calls(self, cursor: Cursor, *, to_end: bool) -> list[FunctionCall]:
        value = cursor.value("")
        return [self._call_of(item) for item in (value if isinstance(value, list) else [value])]

    def _call_of(self, value: Any) -> FunctionCall:
        name, arguments, call_id = self.keys
        if not isinstance(value, dict) or (name is None and len(value) != 1):
            raise ValueError(f"expected an object with a call, got {value!r:.80}")
        if name is None:
            return call_of(*next(iter(value.items())), None)
        if name not in value:
            raise ValueError(f"expected an object with {name} and {arguments}, got {value!r:.80}")
        keys = [key for key in (arguments, "arguments", "parameters") if key in value]
        if not keys and len(value) > 1:
            raise ValueError(f"expected an object with {name} and {arguments}, got {value!r:.80}")
        written_id = None if call_id is None else value.get(call_id)
        return call_of(value[name], value[keys[0]] if keys else {}, written_id)


@dataclass(frozen=True)
class Named(CallFormat):
    """A call consists of a name, ``middle`` and arguments, with ``quote`` around each string."""

    middle: Literal = ()
    quote: str = ""

    def _write_call(self, number: int, call: FunctionCall) -> str:
        index = (call.id or "").rpartition(":")[2]
        index = index if index.isdigit() else str(number)
        middle = "".join(index if token == INDEX else token for token in self.middle)
        return f"{call.name}{middle}{json.dumps(call.arguments)}"

    def _read_calls(self, cursor: Cursor, *, to_end: bool) -> list[FunctionCall]:
        name = cursor.name()
        cursor.skip(self.middle)
        return [self._make_call(cursor, name, cursor.value(self.quote))]


@dataclass(frozen=True)
class Keyed(CallFormat):
    """A call consists of the name, then each argument's key and value between marks.

    Attributes:
        middle: Text between the name and the first key.
        colons: Text between a key and its value: first for strings, then for other types.
        close: Text after a value.
        comma: Text between ``close`` and the next key.
        empty: Text after the name if there are no arguments, or None if unknown.
        cdata: Whether strings can be in CDATA sections.
    """

    middle: Literal = ()
    colons: tuple[Literal, Literal] = ((), ())
    close: Literal = ()
    comma: Literal = ()
    empty: Literal | None = None
    cdata: bool = False

    def _read_calls(self, cursor: Cursor, *, to_end: bool) -> list[FunctionCall]:
        name = cursor.name()
        if self.empty is not None:
            ends = rf"(?=\s*(?:{self._ends(to_end)}))"
            match = cursor.matches(plain_pattern(self.empty) + ends)
            if match is not None:
                cursor.skip(self.empty)
                return [self._make_call(cursor, name, {})]
        cursor.skip(self.middle)
        schema, arguments = cursor.schema(name), {}
        while True:
            key, value = self._argument(cursor, schema, to_end=to_end)
            arguments[key] = value
            next_key = cursor.matches(plain_pattern(self.comma) + rf"\s*(?={self._key})")
            if next_key is None:
                return [self._make_call(cursor, name, arguments)]
            cursor.at = next_key.end()

    def _argument(self, cursor: Cursor, schema: Any, *, to_end: bool) -> tuple[str, Any]:
        match = cursor.matches(self._key)
        if match is None:
            raise unexpected(cursor.text, cursor.at, "a key")
        key, is_string = match["key"], match["string"] is not None
        close = self._close(cursor, key, match.end(), to_end=to_end)
        value = cursor.text[match.end() : close.start()]
        cursor.at = close.end()
        colon = self.colons[0 if is_string else 1]
        value = value.removeprefix(_space(colon[-1:])).removesuffix(_space(self.close[:1]))
        if KEY in self.close:
            mark = "".join(self.close[: self.close.index(KEY)]).removesuffix("</")
            return key, read_nested(value, mark, schema.get(key))
        if self.cdata and value.startswith("<![CDATA[") and value.endswith("]]>"):
            return key, value[9:-3]
        says_type = self.colons[0] != self.colons[1]
        return key, read_typed(value, schema.get(key), is_json=not is_string if says_type else None)

    def _close(self, cursor: Cursor, key: str, start: int, *, to_end: bool) -> re.Match[str]:
        """Find the end of a value: the first ``close`` followed by another argument or the end."""
        tokens = tuple(key if token == KEY else token for token in self.close)
        next_argument = rf"{plain_pattern(self.comma)}\s*{self._key}"
        continuation = re.compile(rf"\s*(?:{self._ends(to_end)}|{next_argument})")
        for close in re.compile(plain_pattern(tokens)).finditer(cursor.text, start):
            if continuation.match(cursor.text, close.end()):
                return close
        raise unexpected(cursor.text, start, "a terminated value")

    @cached_property
    def _key(self) -> str:
        string_colon, other_colon = map(plain_pattern, self.colons)
        return rf"(?P<key>{_KEY})\s*(?:(?P<string>{string_colon})|{other_colon})"

    def _ends(self, to_end: bool) -> str:
        """Return a pattern for what can follow the last value of a call."""
        ends = [plain_pattern(self.after) + (r"\s*\Z" if to_end else "")]
        if self.between is not None:
            starts = [start for start in (self.middle, self.empty) if start is not None]
            ends += [
                rf"{plain_pattern(self.between)}\s*{NAME_PATTERN}\s*{plain_pattern(start)}"
                for start in starts
            ]
        return "|".join(ends)


@dataclass(frozen=True)
class Python(CallFormat):
    """Calls are a list such as ``[look_up(q="cats"), now()]``. Strings may be unquoted."""

    _begin = r"\[\s*(?:{names})\("

    def _write_call(self, number: int, call: FunctionCall) -> str:
        pairs = call.arguments.items() if isinstance(call.arguments, dict) else ()
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in pairs)})"

    def _read_calls(self, cursor: Cursor, *, to_end: bool) -> list[FunctionCall]:
        start = past_space(cursor.text, cursor.at)
        if not cursor.text.startswith("[", start):
            raise unexpected(cursor.text, start, "a list of calls")
        end = re.compile(r"\s*" + plain_pattern(self.after) + (r"\s*\Z" if to_end else ""))
        closes = [match.end() for match in re.finditer(r"\]", cursor.text[: start + 50_000])]
        for close in [at for at in closes if end.match(cursor.text, at)][: -_MOST_ENDS - 1 : -1]:
            source = cursor.text[start:close]
            try:
                calls = _python_calls(source, cursor)
            except (SyntaxError, ValueError, MemoryError, TypeError):
                continue
            cursor.at = close
            return calls
        return self._read_unquoted(cursor, start, end)

    def _read_unquoted(
        self, cursor: Cursor, start: int, end: re.Pattern[str]
    ) -> list[FunctionCall]:
        """Parse a list that is not valid Python by splitting it at the known names and keys."""
        text, at = cursor.text, start + 1
        names = "|".join([*map(re.escape, cursor.tools or ()), NAME_PATTERN])
        opens = re.compile(rf"\s*,?\s*({names})\(")
        closes = re.compile(rf"\)(?=\s*(?:,\s*(?:{names})\(|\]{end.pattern}))")
        calls: list[FunctionCall] = []
        while (opening := opens.match(text, at)) is not None:
            closing = closes.search(text, opening.end())
            if closing is None:
                break
            calls.append(_unquoted_call(opening[1], text[opening.end() : closing.start()], cursor))
            at = closing.end()
        if not calls or not text.startswith("]", past_space(text, at)):
            raise unexpected(text, start, "a list of calls")
        cursor.at = past_space(text, at) + 1
        return calls


def _python_calls(source: str, cursor: Cursor) -> list[FunctionCall]:
    tree = ast.parse(source, mode="eval").body
    if not isinstance(tree, ast.List):
        raise ValueError("expected a list of calls")
    return [_python_call(node, source, cursor) for node in tree.elts]


def _python_call(node: ast.expr, source: str, cursor: Cursor) -> FunctionCall:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("expected a call with named arguments")
    name, arguments = ast.unparse(node.func), {}
    schema = cursor.schema(name)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("expected named arguments")
        text = ast.get_source_segment(source, keyword.value) or ""
        value = ast.literal_eval(keyword.value)
        convert = read_quoted if isinstance(value, str) else read_bare
        raw = value if isinstance(value, str) else text
        arguments[keyword.arg] = convert(raw, schema.get(keyword.arg))
    return call_of(name, arguments, None)


def _unquoted_call(name: str, body: str, cursor: Cursor) -> FunctionCall:
    schema = cursor.schema(name)
    keys = "|".join(map(re.escape, schema)) or r"\w+"
    first, *pieces = re.split(rf"(?:^|,\s*|(?<=[\"'\]}}\d]))({keys})=", body)
    if first.strip():
        raise ValueError(f"expected named arguments, got {first[:80]!r}")
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return call_of(name, {key: read_bare(value, schema.get(key)) for key, value in pairs}, None)


def _space(tokens: Literal) -> str:
    return "".join(token for token in tokens if token.isspace())


HERMES_CALLS = Objects(
    literal("<tool_call>\n"),
    literal("\n</tool_call>"),
    literal("\n</tool_call>\n<tool_call>\n"),
)
"""The format of Nous Research's Hermes models, also used by Qwen and other models."""
