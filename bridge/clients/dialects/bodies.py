"""The JSON object that a request's body is, read without holding the event loop.

A short body is read where it arrives. A long one goes to a thread (``off_loop.py``), which must not
hold the interpreter either: the standard library's parser, in C, lets nobody else run until it is
done, 0.2 s for 64 MiB of text and 7 s for as many brackets. There its Python half walks lists and
objects, and long strings are read piece by piece.
"""

import codecs
import json
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from json.decoder import JSONArray, JSONObject, scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from typing import Any

from evert.bridge.chat.bad_requests import bad_request

LONG_BODY = 2**17
"""Bytes that are read, at worst, in 20 ms: what has more goes to a thread."""

MAX_DEPTH = 100
"""Levels of lists and objects in a body; what copies or checks a deeper one would break."""

MAX_VALUES = 2**18
"""Values in a body, at any depth; 64 MiB of brackets would be gigabytes of empty lists."""

PIECE = 2**21
"""Bytes that are decoded at a time: some milliseconds."""

_HEX = "[0-9a-fA-F]"
_PAIR = rf"\\u[dD][89abAB]{_HEX}{{2}}\\u[dD][c-fC-F]{_HEX}{{2}}"
_STRETCH = re.compile(rf'(?:[^"\\]{{1,64}}+|{_PAIR}|\\u{_HEX}{{4}}|\\[^u]){{0,32768}}+', re.DOTALL)
"""Up to two million characters of a string, its escapes whole."""


def read_body(content: bytes) -> Mapping[str, Any]:
    """The object."""
    try:
        is_long = len(content) > LONG_BODY
        body = _Decoder().decode(_text(content)) if is_long else json.loads(content)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"The body is no JSON: {error}.") from None
    if _is_deeper(body, MAX_DEPTH):
        raise bad_request(f"The body is nested more than {MAX_DEPTH} levels deep.")
    if not isinstance(body, dict):
        raise bad_request(f"The body must be a JSON object, got {body!r:.200}.")
    return body


def _text(content: bytes) -> str:
    decoder = codecs.getincrementaldecoder(json.detect_encoding(content))("surrogatepass")
    starts = range(0, len(content), PIECE)
    return "".join([decoder.decode(content[at : at + PIECE], at == starts[-1]) for at in starts])


class _Decoder(json.JSONDecoder):
    """Reads as ``json.loads`` does, in Python but for numbers, short strings and keys."""

    def __init__(self) -> None:
        super().__init__()
        self._left = MAX_VALUES
        self.parse_string = _string
        self.parse_array = lambda place, scan: JSONArray(place, partial(self._value, scan))
        self.parse_object = lambda place, strict, scan, *rest: JSONObject(
            place, strict, partial(self._value, scan), *rest
        )
        self.scan_once = py_make_scanner(self)

    def _value(self, scan: Callable[[str, int], Any], text: str, index: int) -> Any:
        self._left -= 1
        if self._left < 0:
            raise bad_request(f"The body has more than {MAX_VALUES} values.")
        return scan(text, index)


def _string(text: str, begin: int, strict: bool = True) -> tuple[str, int]:
    """The string that begins at an index, and the index after its closing quote."""
    pieces: list[str] = []
    while True:
        end = _STRETCH.match(text, begin).end()  # type: ignore[union-attr]  # it may be empty
        if end == begin or text.startswith('"', end):
            piece, end = scanstring(text, begin, strict)
            return "".join([*pieces, piece]), end
        pieces.append(scanstring(f'{text[begin:end]}"', 0, strict)[0])
        begin = end


def _is_deeper(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth + 1):
        level = [inner for one in level for inner in _inside(one)]
        if not level:
            return False
    return True


def _inside(value: object) -> Collection[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
