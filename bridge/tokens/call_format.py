"""How a chat template writes tool calls, and the reader of calls in that format.

A format is made of *literals with holes*: fixed texts, cut into tokens (tags, words, marks), in
which an id, an index, a name or a key may stand. White space in them does not count. A literal
stands ``before`` the first call, ``between`` two calls and ``after`` the last. There are four kinds
of calls between them:

    Objects   JSON with the name and the arguments, or a list of such objects
    Named     the name, then the arguments as an object
    Keyed     the name, then each argument between marks
    Python    a list of calls in Python

Reading is tolerant of what models write, and strict about what it delivers: a call has the name of
a tool that was offered, and its arguments are JSON.
"""

import ast
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

from tinker_cookbook.renderers.base import Message, ToolCall, UnparsedToolCall

from evert.bridge.tokens.call_values import (
    Schemas,
    bare,
    nested,
    of_string,
    past_space,
    read_value,
    schemas_of,
    typed,
    unexpected,
)

ID, INDEX, NAME, KEY, TYPE = (f"\0{n}\0" for n in range(5))
"""Holes of a literal."""

Literal = tuple[str, ...]
"""Tokens and holes."""

_NAME = r"[\w.\-]+"
_KEY = r"[^\n<>/\s][^\n<>]{0,199}?"
_HOLES = {
    ID: r"[^\s<>|\[\]\"']+?",
    INDEX: r"\d+",
    NAME: _NAME,
    KEY: r"[^\s<>]+?",
    TYPE: r"\w+",
}
_TOKEN = re.compile(
    r"\0\d\0|<[^<>\s\0]*>|\]<\]\w+\[>\[|\[/?[A-Z_]+\]|<[^<>\s\0\]]*(?=[\s\0])|\s+|\w+|.", re.DOTALL
)
_MOST_ENDS = 3
"""How many closing brackets, from the last one on, may end a list of calls in Python."""


class Call(NamedTuple):
    """A function's name, its arguments, and the id that the model wrote; None if it wrote none."""

    name: str
    arguments: dict[str, Any]
    id: str | None = None


def literal(text: str) -> Literal:
    """A text as tokens."""
    return tuple(_TOKEN.findall(text))


def solid(tokens: Iterable[str]) -> list[str]:
    """The tokens that are not white space."""
    return [token for token in tokens if not token.isspace()]


@lru_cache(1024)
def pattern(tokens: Literal) -> str:
    """A regular expression for a literal; its first id and its first index are named groups."""
    groups = {ID: "id", INDEX: "index"}
    pieces = []
    for token in solid(tokens):
        piece = _HOLES.get(token) or re.escape(token)
        group = groups.pop(token, None)
        pieces.append(f"(?P<{group}>{piece})" if group else piece)
    return r"\s*".join(pieces)


def _unnamed(tokens: Literal) -> str:
    """The same without groups, for use inside another expression."""
    return re.sub(r"\(\?P<(?:id|index)>", "(?:", pattern(tokens))


@dataclass
class _Cursor:
    """A place in a text, with the tools that were offered; None if they are unknown."""

    text: str
    tools: Schemas | None
    at: int = 0
    id: str | None = None  # the next call's
    index: str | None = None

    def schema(self, name: str) -> Any:
        return (self.tools or {}).get(name, {})

    def matches(self, expression: str) -> re.Match[str] | None:
        return re.compile(expression).match(self.text, past_space(self.text, self.at))

    def past(self, tokens: Literal) -> None:
        """Go past a literal. Raises ValueError if the text holds something else."""
        match = self.matches(pattern(tokens))
        if match is None:
            shown = "".join(_SHOWN.get(token, token) for token in tokens)
            raise unexpected(self.text, self.at, repr(shown))
        self.at = match.end()
        groups = match.groupdict()
        self.id, self.index = groups.get("id", self.id), groups.get("index", self.index)

    def name(self) -> str:
        match = self.matches(_NAME)
        if match is None:
            raise unexpected(self.text, self.at, "the name of a function")
        self.at = match.end()
        return match[0]

    def value(self, quote: str) -> Any:
        value, self.at = read_value(self.text, self.at, quote)
        return value


_SHOWN = {ID: "ID", INDEX: "INDEX", NAME: "NAME", KEY: "KEY", TYPE: "TYPE"}


@dataclass(frozen=True)
class CallFormat:
    """How one template writes tool calls.

    Attributes:
        before: What stands before the first call.
        after: What stands after the last call.
        between: What stands between two calls; None: a reply has only one.
        text_after: Whether the reply's text stands after its calls.
        names_in_ids: Whether the model writes an id as ``functions.NAME:INDEX``.
    """

    before: Literal
    after: Literal
    between: Literal | None = None
    text_after: bool = False
    names_in_ids: bool = False

    def read_into(self, message: Message, tools: Sequence[Any] | None = None) -> None:
        """Move the calls from a message's text to ``tool_calls``.

        Calls that cannot be read stay in the text, and go to ``unparsed_tool_calls``.

        Args:
            message: Its content is a text.
            tools: Those that were offered; None if they are unknown.
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
            rest = text[start + end :].strip()
            message["content"] = "\n".join(filter(None, [text[:start].rstrip(), rest]))
            if (again := self.first_mark(rest)) is None:
                return
            text, start, error = rest, again, ValueError("a call cannot be read")
            break
        if error is not None and self._mark:
            broken = UnparsedToolCall(raw_text=text[start:], error=str(error))
            message["unparsed_tool_calls"] = [broken]

    def first_mark(self, text: str) -> int | None:
        """Where the calls begin; None if there are none, or nothing marks them."""
        match = re.search(pattern(self._mark), text) if self._mark else None
        return None if match is None else match.start()

    def read(self, text: str, schemas: Schemas | None = None) -> tuple[list[Call], int]:
        """The calls at the beginning of a text, and where they end.

        Raises:
            ValueError: The text holds something else.
        """
        try:
            return self._read(text, schemas, to_end=not self.text_after)
        except ValueError:
            if self.text_after or not self._mark:
                raise
            return self._read(text, schemas, to_end=False)  # a model may go on after its calls

    def written(self, calls: Sequence[Call]) -> str:
        """Calls in this format, for a template that shows none."""
        texts = [self._written(number, call) for number, call in enumerate(calls)]
        before, after = "".join(self.before), "".join(self.after)
        if self.between is None:
            return f"{before}[{', '.join(texts)}]{after}"
        return before + "".join(self.between).join(texts) + after

    def _written(self, number: int, call: Call) -> str:
        raise NotImplementedError

    def first(self, text: str) -> tuple[list[Call], int]:
        """The first call of a text, and where it ends. Raises ValueError."""
        cursor = _Cursor(text, None)
        cursor.past(self.before)
        return self._one(cursor, to_end=False), cursor.at

    def _read(self, text: str, schemas: Schemas | None, *, to_end: bool) -> tuple[list[Call], int]:
        cursor = _Cursor(text, schemas)
        calls: list[Call] = []
        readable: tuple[list[Call], int] | None = None  # up to a call after which a reply may go on
        cursor.past(self.before)
        after = _unnamed(self.after) + (r"\s*\Z" if to_end else "")
        while True:
            try:
                calls += self._one(cursor, to_end=to_end)
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
            cursor.past(self.between)

    def _one(self, cursor: _Cursor, *, to_end: bool) -> list[Call]:
        """The call at the cursor, or the list of calls."""
        raise NotImplementedError

    @cached_property
    def _mark(self) -> Literal:
        """The fixed text that begins the first call; empty if nothing marks it."""
        holes = [at for at, token in enumerate(self.before) if token in _HOLES]
        return tuple(solid(self.before[: holes[0]] if holes else self.before))

    def _starts(self, text: str, schemas: Schemas | None) -> list[int]:
        """Where calls may begin. Without a mark: at the start, or with the name of a known tool."""
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

    def _made(self, cursor: _Cursor, name: str, arguments: Any) -> Call:
        call_id, index = cursor.id, cursor.index
        cursor.id = cursor.index = None
        if self.names_in_ids and index is not None:
            call_id = f"functions.{name}:{index}"
        return call_of(name, arguments, call_id)


@dataclass(frozen=True)
class Objects(CallFormat):
    """``keys`` are those of the name, the arguments and the id.

    A name of None: the name is the object's only key. An id of None: it has no id.
    """

    keys: tuple[str | None, str, str | None] = ("name", "arguments", None)

    def _written(self, number: int, call: Call) -> str:
        return json.dumps({"name": call.name, "arguments": call.arguments})

    def _one(self, cursor: _Cursor, *, to_end: bool) -> list[Call]:
        value = cursor.value("")
        return [self._of(one) for one in (value if isinstance(value, list) else [value])]

    def _of(self, value: Any) -> Call:
        name, arguments, call_id = self.keys
        if not isinstance(value, dict) or (name is None and len(value) != 1):
            raise ValueError(f"expected an object of a call, got {value!r:.80}")
        if name is None:
            return call_of(*next(iter(value.items())), None)
        if name not in value:
            raise ValueError(f"expected an object with {name} and {arguments}, got {value!r:.80}")
        keys = [key for key in (arguments, "arguments", "parameters") if key in value]
        if not keys and len(value) > 1:
            raise ValueError(f"expected an object with {name} and {arguments}, got {value!r:.80}")
        given = None if call_id is None else value.get(call_id)
        return call_of(value[name], value[keys[0]] if keys else {}, given)


@dataclass(frozen=True)
class Named(CallFormat):
    """``middle`` stands between the name and its arguments; ``quote`` around their strings."""

    middle: Literal = ()
    quote: str = ""

    def _written(self, number: int, call: Call) -> str:
        index = (call.id or "").rpartition(":")[2]
        index = index if index.isdigit() else str(number)
        middle = "".join(index if token == INDEX else token for token in self.middle)
        return f"{call.name}{middle}{json.dumps(call.arguments)}"

    def _one(self, cursor: _Cursor, *, to_end: bool) -> list[Call]:
        name = cursor.name()
        cursor.past(self.middle)
        return [self._made(cursor, name, cursor.value(self.quote))]


@dataclass(frozen=True)
class Keyed(CallFormat):
    """Arguments between marks.

    Attributes:
        middle: What stands between the name and the first key.
        colons: What stands between the key and the value of a string, and of another value.
        close: What stands after a value.
        comma: What stands between ``close`` and the next key.
        empty: What stands after the name if there are no arguments; None if that is unknown.
        cdata: Whether strings may stand in CDATA sections.
    """

    middle: Literal = ()
    colons: tuple[Literal, Literal] = ((), ())
    close: Literal = ()
    comma: Literal = ()
    empty: Literal | None = None
    cdata: bool = False

    def _one(self, cursor: _Cursor, *, to_end: bool) -> list[Call]:
        name = cursor.name()
        if self.empty is not None:
            nothing = cursor.matches(_unnamed(self.empty) + rf"(?=\s*(?:{self._ends(to_end)}))")
            if nothing is not None:
                cursor.past(self.empty)
                return [self._made(cursor, name, {})]
        cursor.past(self.middle)
        schema, arguments = cursor.schema(name), {}
        while True:
            key, value = self._argument(cursor, schema, to_end=to_end)
            arguments[key] = value
            more = cursor.matches(_unnamed(self.comma) + rf"\s*(?={self._key})")
            if more is None:
                return [self._made(cursor, name, arguments)]
            cursor.at = more.end()

    def _argument(self, cursor: _Cursor, schema: Any, *, to_end: bool) -> tuple[str, Any]:
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
            return key, nested(value, mark, schema.get(key))
        if self.cdata and value.startswith("<![CDATA[") and value.endswith("]]>"):
            return key, value[9:-3]
        says_type = self.colons[0] != self.colons[1]
        return key, typed(value, schema.get(key), is_json=not is_string if says_type else None)

    def _close(self, cursor: _Cursor, key: str, start: int, *, to_end: bool) -> re.Match[str]:
        """The end of a value: a ``close`` that a complete continuation follows."""
        tokens = tuple(key if token == KEY else token for token in self.close)
        key_again = rf"{_unnamed(self.comma)}\s*{self._key}"
        follows = re.compile(rf"\s*(?:{self._ends(to_end)}|{key_again})")
        for close in re.compile(_unnamed(tokens)).finditer(cursor.text, start):
            if follows.match(cursor.text, close.end()):
                return close
        raise unexpected(cursor.text, start, "a value that ends")

    @cached_property
    def _key(self) -> str:
        string, other = map(_unnamed, self.colons)
        return rf"(?P<key>{_KEY})\s*(?:(?P<string>{string})|{other})"

    def _ends(self, to_end: bool) -> str:
        """What may follow the last value of a call."""
        ends = [_unnamed(self.after) + (r"\s*\Z" if to_end else "")]
        if self.between is not None:
            starts = [one for one in (self.middle, self.empty) if one is not None]
            ends += [rf"{_unnamed(self.between)}\s*{_NAME}\s*{_unnamed(one)}" for one in starts]
        return "|".join(ends)


@dataclass(frozen=True)
class Python(CallFormat):
    """``[look_up(q="cats"), now()]``; strings may lack their quotes."""

    _begin = r"\[\s*(?:{names})\("

    def _written(self, number: int, call: Call) -> str:
        pairs = call.arguments.items() if isinstance(call.arguments, dict) else ()
        return f"{call.name}({', '.join(f'{key}={value!r}' for key, value in pairs)})"

    def _one(self, cursor: _Cursor, *, to_end: bool) -> list[Call]:
        start = past_space(cursor.text, cursor.at)
        if not cursor.text.startswith("[", start):
            raise unexpected(cursor.text, start, "a list of calls")
        end = re.compile(r"\s*" + _unnamed(self.after) + (r"\s*\Z" if to_end else ""))
        closes = [match.end() for match in re.finditer(r"\]", cursor.text[: start + 50_000])]
        for close in [at for at in closes if end.match(cursor.text, at)][: -_MOST_ENDS - 1 : -1]:
            source = cursor.text[start:close]
            try:
                calls = _python_calls(source, cursor)
            except (SyntaxError, ValueError, MemoryError, TypeError):
                continue
            cursor.at = close
            return calls
        return self._unquoted(cursor, start, end)

    def _unquoted(self, cursor: _Cursor, start: int, end: re.Pattern[str]) -> list[Call]:
        """A list that is not Python: cut at the known names and keys."""
        text, at = cursor.text, start + 1
        names = "|".join([*map(re.escape, cursor.tools or ()), _NAME])
        opens = re.compile(rf"\s*,?\s*({names})\(")
        closes = re.compile(rf"\)(?=\s*(?:,\s*(?:{names})\(|\]{end.pattern}))")
        calls: list[Call] = []
        while (opened := opens.match(text, at)) is not None:
            closed = closes.search(text, opened.end())
            if closed is None:
                break
            calls.append(_unquoted_call(opened[1], text[opened.end() : closed.start()], cursor))
            at = closed.end()
        if not calls or not text.startswith("]", past_space(text, at)):
            raise unexpected(text, start, "a list of calls")
        cursor.at = past_space(text, at) + 1
        return calls


def _python_calls(source: str, cursor: _Cursor) -> list[Call]:
    tree = ast.parse(source, mode="eval").body
    if not isinstance(tree, ast.List):
        raise ValueError("expected a list of calls")
    return [_python_call(node, source, cursor) for node in tree.elts]


def _python_call(node: ast.expr, source: str, cursor: _Cursor) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("expected a call with named arguments")
    name, arguments = ast.unparse(node.func), {}
    schema = cursor.schema(name)
    for keyword in node.keywords:
        if keyword.arg is None:
            raise ValueError("expected named arguments")
        text = ast.get_source_segment(source, keyword.value) or ""
        value = ast.literal_eval(keyword.value)
        read = of_string if isinstance(value, str) else bare
        shown = value if isinstance(value, str) else text
        arguments[keyword.arg] = read(shown, schema.get(keyword.arg))
    return call_of(name, arguments, None)


def _unquoted_call(name: str, body: str, cursor: _Cursor) -> Call:
    schema = cursor.schema(name)
    keys = "|".join(map(re.escape, schema)) or r"\w+"
    first, *pieces = re.split(rf"(?:^|,\s*|(?<=[\"'\]}}\d]))({keys})=", body)
    if first.strip():
        raise ValueError(f"expected named arguments, got {first[:80]!r}")
    pairs = zip(pieces[::2], pieces[1::2], strict=True)
    return call_of(name, {key: bare(value, schema.get(key)) for key, value in pairs}, None)


def _space(tokens: Literal) -> str:
    return "".join(token for token in tokens if token.isspace())


def call_of(name: Any, arguments: Any, call_id: Any) -> Call:
    """A call; arguments may be JSON as a text. Raises ValueError if it is none."""
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not name.strip() or not isinstance(arguments, dict):
        raise ValueError(f"expected a name and an object of arguments, got {name!r:.80}")
    return Call(name, arguments, call_id if isinstance(call_id, str) and call_id else None)


def as_tool_calls(calls: Sequence[Call], schemas: Schemas | None) -> list[ToolCall]:
    """Calls as the Cookbook has them.

    Raises:
        ValueError: A tool was not offered, or a value is not JSON (NaN).
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


HERMES_CALLS = Objects(
    literal("<tool_call>\n"),
    literal("\n</tool_call>"),
    literal("\n</tool_call>\n<tool_call>\n"),
)
"""The format of Nous Research's Hermes, which other models such as Qwen's use too."""
