"""How a chat template writes tool calls, and how evert parses calls in that format.

A format consists of *literals*. A literal is fixed text, split into tokens (tags, words,
punctuation). Some of the tokens can be *holes*, which stand for an id, an index, a name, a key or a
type. Whitespace in a literal is ignored. There are literals ``before`` the first call, ``between``
two calls and ``after`` the last call. The calls themselves are parsed in ``call_kinds.py``.

The parser tolerates sloppy text but is strict about the result: the tool must have been offered,
and the arguments must be JSON.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from tinker_cookbook.renderers.base import Message, ToolCall, UnparsedToolCall

from evert.bridge.tokens.call_values import (
    Schemas,
    past_space,
    read_value,
    schemas_of,
    unexpected,
)

ID, INDEX, NAME, KEY, TYPE = (f"\0{n}\0" for n in range(5))
"""The holes that a literal can contain."""

Literal = tuple[str, ...]
"""A sequence of tokens and holes."""

NAME_PATTERN = r"[\w.\-]+"
_HOLES = {
    ID: r"[^\s<>|\[\]\"']+?",
    INDEX: r"\d+",
    NAME: NAME_PATTERN,
    KEY: r"[^\s<>]+?",
    TYPE: r"\w+",
}
_TOKEN = re.compile(
    r"\0\d\0|<[^<>\s\0]*>|\]<\]\w+\[>\[|\[/?[A-Z_]+\]|<[^<>\s\0\]]*(?=[\s\0])|\s+|\w+|.", re.DOTALL
)


class FunctionCall(NamedTuple):
    """A function name with its arguments, and the call id if the model wrote one."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


def literal(text: str) -> Literal:
    """Split a text into tokens."""
    return tuple(_TOKEN.findall(text))


def non_space(tokens: Iterable[str]) -> list[str]:
    """Return the tokens that are not whitespace."""
    return [token for token in tokens if not token.isspace()]


@lru_cache(1024)
def pattern(tokens: Literal) -> str:
    """Return a regular expression for a literal, with named groups for its id and its index."""
    groups = {ID: "id", INDEX: "index"}
    pieces = []
    for token in non_space(tokens):
        piece = _HOLES.get(token) or re.escape(token)
        group = groups.pop(token, None)
        pieces.append(f"(?P<{group}>{piece})" if group else piece)
    return r"\s*".join(pieces)


def plain_pattern(tokens: Literal) -> str:
    """Return ``pattern(tokens)`` without groups, so that it can be part of a larger pattern."""
    return re.sub(r"\(\?P<(?:id|index)>", "(?:", pattern(tokens))


@dataclass
class Cursor:
    """A position in a text, with the schemas of the offered tools (None if unknown)."""

    text: str
    tools: Schemas | None
    at: int = 0
    id: str | None = None  # of the next call
    index: str | None = None

    def schema(self, name: str) -> Any:
        """Return a tool's parameter schemas by parameter name."""
        return (self.tools or {}).get(name, {})

    def matches(self, expression: str) -> re.Match[str] | None:
        """Match an expression at the cursor, after any whitespace."""
        return re.compile(expression).match(self.text, past_space(self.text, self.at))

    def skip(self, tokens: Literal) -> None:
        """Skip a literal. Raises ValueError if the text does not match it."""
        match = self.matches(pattern(tokens))
        if match is None:
            expected = "".join(_HOLE_NAMES.get(token, token) for token in tokens)
            raise unexpected(self.text, self.at, repr(expected))
        self.at = match.end()
        groups = match.groupdict()
        self.id, self.index = groups.get("id", self.id), groups.get("index", self.index)

    def name(self) -> str:
        """Read a function name. Raises ValueError if there is none."""
        match = self.matches(NAME_PATTERN)
        if match is None:
            raise unexpected(self.text, self.at, "a function name")
        self.at = match.end()
        return match[0]

    def value(self, quote: str) -> Any:
        """Read a value with ``read_value``."""
        value, self.at = read_value(self.text, self.at, quote)
        return value


_HOLE_NAMES = {ID: "ID", INDEX: "INDEX", NAME: "NAME", KEY: "KEY", TYPE: "TYPE"}


@dataclass(frozen=True)
class CallFormat:
    """How a template writes tool calls.

    Attributes:
        before: Text before the first call.
        after: Text after the last call.
        between: Text between two calls, or None if a reply can contain only one call.
        text_after: Whether the reply's text comes after its calls.
        names_in_ids: Whether the model writes ids as ``functions.NAME:INDEX``.
    """

    before: Literal
    after: Literal
    between: Literal | None = None
    text_after: bool = False
    names_in_ids: bool = False

    def read_into(self, message: Message, tools: Sequence[Any] | None = None) -> None:
        """Move the calls in a message's text to ``tool_calls``.

        Calls that cannot be parsed stay in the text and are added to ``unparsed_tool_calls``.

        Args:
            message: A message with a string as content.
            tools: The tools that the request offered, or None if unknown.
        """
        text = str(message["content"])
        schemas = None if tools is None else schemas_of(tools)
        error: Exception | None = None
        for start in self._starts(text, schemas):
            try:
                calls, end = self.read(text[start:], schemas)
                message["tool_calls"] = as_tool_calls(calls, schemas)
            except (ValueError, RecursionError) as raised:
                error = raised
                continue
            tail = text[start + end :].strip()
            message["content"] = "\n".join(filter(None, [text[:start].rstrip(), tail]))
            if (next_mark := self.first_mark(tail)) is None:
                return
            text, start, error = tail, next_mark, ValueError("a call cannot be parsed")
            break
        if error is not None and self._mark:
            broken = UnparsedToolCall(raw_text=text[start:], error=str(error))
            message["unparsed_tool_calls"] = [broken]

    def first_mark(self, text: str) -> int | None:
        """Return the index of the mark that starts the calls, or None if there is no mark."""
        match = re.search(pattern(self._mark), text) if self._mark else None
        return None if match is None else match.start()

    def read(self, text: str, schemas: Schemas | None = None) -> tuple[list[FunctionCall], int]:
        """Parse the calls at the start of a text. Returns the calls and the index of their end.

        Raises:
            ValueError: The text does not start with calls.
        """
        try:
            return self._read(text, schemas, to_end=not self.text_after)
        except ValueError:
            if self.text_after or not self._mark:
                raise
            return self._read(text, schemas, to_end=False)  # the model may continue after its calls

    def write(self, calls: Sequence[FunctionCall]) -> str:
        """Write calls as text in this format, for templates that do not render calls."""
        texts = [self._write_call(number, call) for number, call in enumerate(calls)]
        before, after = "".join(self.before), "".join(self.after)
        if self.between is None:
            return f"{before}[{', '.join(texts)}]{after}"
        return before + "".join(self.between).join(texts) + after

    def _write_call(self, number: int, call: FunctionCall) -> str:
        raise NotImplementedError

    def first(self, text: str) -> tuple[list[FunctionCall], int]:
        """Parse the first call in a text. Returns the call and its end, or raises ValueError."""
        cursor = Cursor(text, None)
        cursor.skip(self.before)
        return self._read_calls(cursor, to_end=False), cursor.at

    def _read(
        self, text: str, schemas: Schemas | None, *, to_end: bool
    ) -> tuple[list[FunctionCall], int]:
        cursor = Cursor(text, schemas)
        calls: list[FunctionCall] = []
        readable: tuple[list[FunctionCall], int] | None = (
            None  # the calls before the last possible end; returned if the rest cannot be parsed
        )
        cursor.skip(self.before)
        after = plain_pattern(self.after) + (r"\s*\Z" if to_end else "")
        while True:
            try:
                calls += self._read_calls(cursor, to_end=to_end)
            except ValueError:
                if readable is None:
                    raise
                return readable
            more = None if self.between is None else cursor.matches(pattern(self.between))
            end = cursor.matches(after)
            if end is not None and (more is None or to_end):
                return calls, end.end()
            if more is None or self.between is None:
                raise unexpected(text, cursor.at, "the end of the call")
            readable = readable if end is None else ([*calls], end.end())
            cursor.skip(self.between)

    def _read_calls(self, cursor: Cursor, *, to_end: bool) -> list[FunctionCall]:
        """Parse the call or the list of calls at the cursor."""
        raise NotImplementedError

    @cached_property
    def _mark(self) -> Literal:
        """The fixed text at the start of the first call; empty if the format has none."""
        holes = [at for at, token in enumerate(self.before) if token in _HOLES]
        return tuple(non_space(self.before[: holes[0]] if holes else self.before))

    def _starts(self, text: str, schemas: Schemas | None) -> list[int]:
        """Return the indices where calls may start.

        If the format has a mark, this is the first mark. Otherwise, calls may start at the first
        character (ignoring whitespace) or at the name of an offered tool.
        """
        if self._mark:
            start = self.first_mark(text)
            return [] if start is None else [start]
        begin = past_space(text, 0)
        starts = [begin] if re.match(r"[\[{\w]", text[begin : begin + 1]) else []
        if schemas:
            names = "|".join(map(re.escape, schemas))
            offered = re.search(self._begin.format(names=names), text)
            starts += [] if offered is None else [offered.start()]
        return starts

    _begin = r'\[?\s*\{{\s*"\w+":\s*"(?:{names})"'

    def _make_call(self, cursor: Cursor, name: str, arguments: Any) -> FunctionCall:
        call_id, index = cursor.id, cursor.index
        cursor.id = cursor.index = None
        if self.names_in_ids and index is not None:
            call_id = f"functions.{name}:{index}"
        return call_of(name, arguments, call_id)


def call_of(name: Any, arguments: Any, call_id: Any) -> FunctionCall:
    """Create a call. Arguments may be JSON text. Raises ValueError if the call is invalid."""
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not name.strip() or not isinstance(arguments, dict):
        raise ValueError(f"expected a name and an object with arguments, got {name!r:.80}")
    return FunctionCall(name, arguments, call_id if isinstance(call_id, str) and call_id else None)


def as_tool_calls(calls: Sequence[FunctionCall], schemas: Schemas | None) -> list[ToolCall]:
    """Convert calls to the Cookbook's format.

    Raises:
        ValueError: A tool was not offered, or a value cannot be written as JSON (such as NaN).
    """
    names = ", ".join(schemas or ()) or "none"
    for call in calls:
        if schemas is not None and call.name not in schemas:
            raise ValueError(f"the tool {call.name!r:.80} was not offered; offered: {names}")
    bodies = [(call.name, json.dumps(call.arguments, allow_nan=False)) for call in calls]
    functions = [ToolCall.FunctionBody(name=name, arguments=text) for name, text in bodies]
    ids = [call.id for call in calls]
    return [
        ToolCall(id=call_id if ids.count(call_id) == 1 else None, function=function)
        for call_id, function in zip(ids, functions, strict=True)
    ]
