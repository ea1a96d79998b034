"""How a chat template writes tool calls, and how evert reads calls in that format.

A format consists of *literals*: fixed text, split into tokens (tags, words, marks), with *holes*
for an id, an index, a name or a key. White space in a literal is ignored. There are literals
``before`` the first call, ``between`` two calls and ``after`` the last call. ``call_kinds.py``
reads the calls themselves.

The parser accepts sloppy text but is strict about the result: a call must name a tool that was
offered, and its arguments must be JSON.
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
"""The holes that a literal may have."""

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
    """A function's name, its arguments, and the id, if the model wrote one."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


def literal(text: str) -> Literal:
    """Split a text into tokens."""
    return tuple(_TOKEN.findall(text))


def non_space(tokens: Iterable[str]) -> list[str]:
    """Return the tokens that are not white space."""
    return [token for token in tokens if not token.isspace()]


@lru_cache(1024)
def pattern(tokens: Literal) -> str:
    """Return a regular expression for a literal; its first id and first index are named groups."""
    groups = {ID: "id", INDEX: "index"}
    pieces = []
    for token in non_space(tokens):
        piece = _HOLES.get(token) or re.escape(token)
        group = groups.pop(token, None)
        pieces.append(f"(?P<{group}>{piece})" if group else piece)
    return r"\s*".join(pieces)


def plain_pattern(tokens: Literal) -> str:
    """Return ``pattern(tokens)`` without groups, for use inside another expression."""
    return re.sub(r"\(\?P<(?:id|index)>", "(?:", pattern(tokens))


@dataclass
class Cursor:
    """A position in a text, with the schemas of the offered tools; None if they are unknown."""

    text: str
    tools: Schemas | None
    at: int = 0
    id: str | None = None  # of the next call
    index: str | None = None

    def schema(self, name: str) -> Any:
        """Return the schemas of a tool's parameters, by parameter name."""
        return (self.tools or {}).get(name, {})

    def matches(self, expression: str) -> re.Match[str] | None:
        """Match an expression at the cursor, after white space."""
        return re.compile(expression).match(self.text, past_space(self.text, self.at))

    def skip(self, tokens: Literal) -> None:
        """Skip a literal. Raises ValueError if the text is different."""
        match = self.matches(pattern(tokens))
        if match is None:
            expected = "".join(_HOLE_NAMES.get(token, token) for token in tokens)
            raise unexpected(self.text, self.at, repr(expected))
        self.at = match.end()
        groups = match.groupdict()
        self.id, self.index = groups.get("id", self.id), groups.get("index", self.index)

    def name(self) -> str:
        """Read a function's name. Raises ValueError if there is none."""
        match = self.matches(NAME_PATTERN)
        if match is None:
            raise unexpected(self.text, self.at, "the name of a function")
        self.at = match.end()
        return match[0]

    def value(self, quote: str) -> Any:
        """Read a value, as ``read_value`` does."""
        value, self.at = read_value(self.text, self.at, quote)
        return value


_HOLE_NAMES = {ID: "ID", INDEX: "INDEX", NAME: "NAME", KEY: "KEY", TYPE: "TYPE"}


@dataclass(frozen=True)
class CallFormat:
    """How a template writes tool calls.

    Attributes:
        before: Text before the first call.
        after: Text after the last call.
        between: Text between two calls; None if a reply has at most one call.
        text_after: Whether the reply's text follows its calls.
        names_in_ids: Whether the model writes an id as ``functions.NAME:INDEX``.
    """

    before: Literal
    after: Literal
    between: Literal | None = None
    text_after: bool = False
    names_in_ids: bool = False

    def read_into(self, message: Message, tools: Sequence[Any] | None = None) -> None:
        """Move the calls in a message's text to ``tool_calls``.

        Calls that cannot be read stay in the text, and are added to ``unparsed_tool_calls``.

        Args:
            message: A message whose content is a string.
            tools: The tools that were offered; None if they are unknown.
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
            text, start, error = tail, next_mark, ValueError("a call cannot be read")
            break
        if error is not None and self._mark:
            broken = UnparsedToolCall(raw_text=text[start:], error=str(error))
            message["unparsed_tool_calls"] = [broken]

    def first_mark(self, text: str) -> int | None:
        """Return where the calls begin; None if there are none, or no mark begins them."""
        match = re.search(pattern(self._mark), text) if self._mark else None
        return None if match is None else match.start()

    def read(self, text: str, schemas: Schemas | None = None) -> tuple[list[FunctionCall], int]:
        """Read the calls at the beginning of a text, and return them with their end.

        Raises:
            ValueError: The text does not begin with calls.
        """
        try:
            return self._read(text, schemas, to_end=not self.text_after)
        except ValueError:
            if self.text_after or not self._mark:
                raise
            return self._read(text, schemas, to_end=False)  # a model may continue after its calls

    def write(self, calls: Sequence[FunctionCall]) -> str:
        """Write calls as text in this format, for a template that shows no calls."""
        texts = [self._write_call(number, call) for number, call in enumerate(calls)]
        before, after = "".join(self.before), "".join(self.after)
        if self.between is None:
            return f"{before}[{', '.join(texts)}]{after}"
        return before + "".join(self.between).join(texts) + after

    def _write_call(self, number: int, call: FunctionCall) -> str:
        raise NotImplementedError

    def first(self, text: str) -> tuple[list[FunctionCall], int]:
        """Read the first call of a text; return it with its end, or raise a ValueError."""
        cursor = Cursor(text, None)
        cursor.skip(self.before)
        return self._read_calls(cursor, to_end=False), cursor.at

    def _read(
        self, text: str, schemas: Schemas | None, *, to_end: bool
    ) -> tuple[list[FunctionCall], int]:
        cursor = Cursor(text, schemas)
        calls: list[FunctionCall] = []
        readable: tuple[list[FunctionCall], int] | None = (
            None  # the calls before the last place where the calls may end
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
        """Read the call, or the list of calls, at the cursor."""
        raise NotImplementedError

    @cached_property
    def _mark(self) -> Literal:
        """The fixed text that begins the first call; empty if nothing marks it."""
        holes = [at for at, token in enumerate(self.before) if token in _HOLES]
        return tuple(non_space(self.before[: holes[0]] if holes else self.before))

    def _starts(self, text: str, schemas: Schemas | None) -> list[int]:
        """Return where calls may begin: at the mark; without one, at the start or a tool name."""
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
    """Make a call; arguments may be JSON text. Raises ValueError if the call is invalid."""
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not name.strip() or not isinstance(arguments, dict):
        raise ValueError(f"expected a name and an object with arguments, got {name!r:.80}")
    return FunctionCall(name, arguments, call_id if isinstance(call_id, str) and call_id else None)


def as_tool_calls(calls: Sequence[FunctionCall], schemas: Schemas | None) -> list[ToolCall]:
    """Convert calls to the Cookbook's form.

    Raises:
        ValueError: A tool was not offered, or a value is not JSON, such as NaN.
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
