"""How a chat template writes tool calls. ``find_format`` has it write some, and reads them back.

Fixed texts stand ``before`` the first call, ``between`` two calls and ``after`` the last. White
space in them does not count. A call is written in one of three ways. *Objects*: JSON with the name
and the arguments, or a list of such objects (Hermes, Qwen, Llama 3, Mistral, Granite, Phi).
*Named*: the name, then the arguments as JSON (DeepSeek, later Mistrals). *Keyed*: the name, then
each argument between marks (Qwen's coders, GLM).
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tinker_cookbook.renderers.base import Message, ToolCall, UnparsedToolCall

Call = tuple[str, dict[str, Any]]
"""A function's name and its arguments."""

FIRST: Call = ("qzname", {"qzkey": "qzvalue", "qzlast": "qzend"})
SECOND: Call = ("qzother", {"qzkey": "qzvalue", "qzlast": "qzend"})

_NAME = re.compile(r"[\w.\-]+")
_JSON = json.JSONDecoder()


@dataclass(frozen=True)
class CallFormat:
    """How one template writes tool calls."""

    before: str
    after: str
    between: str | None = None
    keys: tuple[str, str] | None = None  # of an object: the name's and the arguments'
    middle: str = ""  # between a name and its arguments
    colon: str = ""  # between a key and its value
    comma: str = ""  # between a value and the next key

    def read_into(self, message: Message) -> None:
        """Move the calls from a message's text to ``tool_calls``.

        Calls that cannot be read stay in the text, and go to ``unparsed_tool_calls``.
        """
        text = str(message["content"])
        mark = self.before.strip()
        start = text.find(mark) if mark else len(text) - len(text.lstrip())
        if start < 0 or (not mark and not text[start:].startswith("{")):
            return
        try:
            calls = list(self.read(text[start:]))
        except (ValueError, RecursionError) as error:
            if mark:
                broken = UnparsedToolCall(raw_text=text[start:], error=str(error))
                message["unparsed_tool_calls"] = [broken]
            return
        message["content"] = text[:start].rstrip()
        message["tool_calls"] = [
            ToolCall(function=ToolCall.FunctionBody(name=name, arguments=json.dumps(arguments)))
            for name, arguments in calls
        ]

    def read(self, text: str) -> Iterator[Call]:
        """The calls of a text.

        Raises:
            ValueError: The text holds something else.
        """
        at = _past(self.before, text, 0)
        while True:
            calls, at = self._one(text, at)
            yield from calls
            if text[at:].split() == self.after.split():
                return
            if self.between is None:
                raise ValueError(f"expected {self.after!r} after the call, got {text[at:]!r:.80}")
            at = _past(self.between, text, at)

    def _one(self, text: str, at: int) -> tuple[list[Call], int]:
        if self.keys is not None:
            value, at = _JSON.raw_decode(text, at)
            objects = value if isinstance(value, list) else [value]
            return [_of_object(one, *self.keys) for one in objects], at
        named = _NAME.match(text, at)
        if named is None:
            raise ValueError(f"expected the name of a function, got {text[at:]!r:.80}")
        at = _past(self.middle, text, named.end())
        if not self.colon:
            value, at = _JSON.raw_decode(text, at)
            return [_checked(named[0], value)], at
        arguments, at = self._arguments(text, at)
        return [(named[0], arguments)], at

    def _arguments(self, text: str, at: int) -> tuple[dict[str, Any], int]:
        arguments: dict[str, Any] = {}
        end = self.comma.split()[0]
        while True:
            split = text.find(self.colon.strip(), at)
            close = text.find(end, split)
            if split < 0 or close < 0:
                raise ValueError(f"expected a key and a value, got {text[at:]!r:.80}")
            value = text[split + len(self.colon.strip()) : close].removeprefix("\n")
            arguments[text[at:split].strip()] = _value(value.removesuffix("\n"))
            try:
                at = _past(self.comma, text, close)
            except ValueError:
                return arguments, close


_BEFORE, _AFTER = "<tool_call>\n", "\n</tool_call>"
HERMES_CALLS = CallFormat(_BEFORE, _AFTER, f"{_AFTER}\n{_BEFORE}", keys=("name", "arguments"))
"""The format of Nous Research's Hermes, which other models such as Qwen's use too."""


def hermes_text(functions: list[str]) -> str:
    """Calls in Hermes' format; each of ``functions`` is the JSON of a name and its arguments."""
    return "\n".join(f"{_BEFORE}{function}{_AFTER}" for function in functions)


def find_format(shown: Callable[[list[Call]], str]) -> CallFormat | None:
    """A template's format of calls; None if it shows none, or they cannot be read back.

    Args:
        shown: Returns the template's text for calls; "" if it refuses them.
    """
    one, two = shown([FIRST]), shown([FIRST, SECOND])
    found = _find(one)
    if found is None:
        return None
    if two and (split := _between(found, two)) is not None:
        found = CallFormat(**{**vars(found), "between": split})
    try:
        read = list(found.read(one)) == [FIRST]
    except (ValueError, RecursionError):
        return None
    return found if read else None


def _find(text: str) -> CallFormat | None:
    name, at, end = text.find("qzname"), -1, -1
    value: Any = None
    for found in re.finditer(r"[\[{]", text):
        try:
            value, end = _JSON.raw_decode(text, found.start())
        except ValueError:
            continue
        if "qzkey" in json.dumps(value):
            at = found.start()
            break
    if at < 0:
        return _keyed(text)
    inner = value[0] if isinstance(value, list) else value
    keys = {json.dumps(said): key for key, said in inner.items()}
    of_name, of_arguments = keys.get('"qzname"'), keys.get(json.dumps(FIRST[1]))
    if of_name is not None and of_arguments is not None:
        return CallFormat(text[:at], text[end:], keys=(of_name, of_arguments))
    if inner == FIRST[1] and 0 <= name < at:
        middle = text[name + len("qzname") : at]
        return CallFormat(text[:name], text[end:], middle=middle)
    return None


def _keyed(text: str) -> CallFormat | None:
    names = ("qzname", "qzkey", "qzvalue", "qzlast", "qzend")
    found = re.fullmatch("(.*?)" + "(.*?)".join(names) + "(.*)", text, re.DOTALL)
    if found is None or not all(mark.strip() for mark in found.group(3, 4)):
        return None
    before, middle, colon, comma, _, after = found.groups()
    return CallFormat(before, after, middle=middle, colon=colon, comma=comma)


def _between(found: CallFormat, text: str) -> str | None:
    """The text between two calls; None if ``text`` does not hold two in the format."""
    try:
        _, end = found._one(text, _past(found.before, text, 0))
        other = text.index("qzother", end)
    except (ValueError, RecursionError):
        return None
    start = text.rindex("{", end, other) if found.keys is not None else other
    return text[end:start]


def _past(literal: str, text: str, at: int) -> int:
    """The index after ``literal``, whose white space does not count."""
    for word in literal.split():
        at = _past_space(text, at)
        if not text.startswith(word, at):
            raise ValueError(f"expected {literal!r}, got {text[at:]!r:.80}")
        at += len(word)
    return _past_space(text, at)


def _past_space(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _of_object(value: Any, of_name: str, of_arguments: str) -> Call:
    if not isinstance(value, dict) or not {of_name, of_arguments} <= value.keys():
        raise ValueError(f"expected an object with {of_name} and {of_arguments}, got {value!r:.80}")
    return _checked(value[of_name], value[of_arguments])


def _checked(name: Any, arguments: Any) -> Call:
    if isinstance(arguments, str):
        arguments = json.loads(arguments)
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise ValueError(f"expected a name and an object of arguments, got {name!r:.80}")
    return name, arguments


def _value(text: str) -> Any:
    """An argument's value. A template writes a string as it is, and another value as JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text if isinstance(value, str) else value


def common(text: str, other: str) -> str:
    """The longest common prefix."""
    pairs = enumerate(zip(text, other, strict=False))
    return text[: next((at for at, (one, two) in pairs if one != two), min(len(text), len(other)))]
