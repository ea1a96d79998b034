"""Learns how a chat template writes tool calls by comparing renderings that differ in one detail.

The template renders a made-up call, variants of it (without arguments, with numbers, with unusual
text), and a pair of calls. Made-up words reveal where names, keys, values and ids go. A number that
differs between calls is an index, and text that follows every value closes the value. Format types
are tried in turn until one can parse the rendered call.

Some formats cannot be learned from renderings. They are listed in ``TABLE`` and recognised by the
tokenizer's control tokens.
"""

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evert.bridge.tokens.call_format import (
    ID,
    INDEX,
    KEY,
    NAME,
    TYPE,
    CallFormat,
    FunctionCall,
    Literal,
    literal,
    non_space,
)
from evert.bridge.tokens.call_kinds import Keyed, Named, Objects, Python
from evert.bridge.tokens.call_values import read_value

ARGUMENTS = {"qzkey": "qzvalue", "qzlast": "qzend"}
FIRST = FunctionCall("qzname", ARGUMENTS)
SECOND = FunctionCall("qzother", ARGUMENTS)
NO_ARGUMENTS = FunctionCall("qzname", {})
NUMBERS = FunctionCall("qzname", {"qzkey": 70001, "qzlast": 70002})
ODD = FunctionCall("qzname", {"qzkey": "<qz> & </qz>", "qzlast": "qzend"})
TEXT = "Qzsay."

RenderCalls = Callable[[Sequence[FunctionCall], str], str]
"""Renders a text followed by calls. Raises ValueError if the template rejects them."""

TABLE: dict[str, CallFormat] = {
    "<|tool_list_start|>": Python(("<|tool_call_start|>",), ("<|tool_call_end|>",)),  # LFM2
    "<|tool_call_argument_begin|>": Named(  # Kimi K2
        literal("<|tool_calls_section_begin|><|tool_call_begin|>functions."),
        literal("<|tool_call_end|><|tool_calls_section_end|>"),
        literal("<|tool_call_end|><|tool_call_begin|>functions."),
        names_in_ids=True,
        middle=(":", INDEX, "<|tool_call_argument_begin|>"),
    ),
    "<|tool_call|>": Objects(("<|tool_call|>",), ()),  # Granite 3
}
"""Maps a control token to the call format of the models that use it."""


class NotLearnedError(ValueError):
    """The call format cannot be learned. The message shows which probe failed and its output."""


def from_table(names: Collection[str]) -> CallFormat | None:
    """Look up the format for a tokenizer's control tokens in ``TABLE``."""
    return next((form for mark, form in TABLE.items() if mark in names), None)


def learn_calls(render: RenderCalls) -> CallFormat:
    """Learn a template's call format.

    Raises:
        NotLearnedError: The template does not render calls, or renders them in an unknown format.
    """
    probes = _Probes.of(render)
    for learn in (_learn_objects, _learn_named, _learn_python, _learn_keyed):
        try:
            form = learn(probes)
            if form.read(probes.plain)[0][0][:2] == FIRST[:2]:
                return _with_place_of_text(form, probes, render)
        except (ValueError, RecursionError, IndexError):
            continue
    raise NotLearnedError(
        f"it renders the call {_words(FIRST)} in an unknown format: {probes.plain!r}"
    )


def losses(form: CallFormat, render: RenderCalls) -> list[str]:
    """List the types of calls that cannot be parsed back after the template has rendered them."""
    kinds = {
        "a call without arguments": [NO_ARGUMENTS],
        "arguments that are numbers": [NUMBERS],
        "several calls in one reply": [FIRST, SECOND],
    }
    return [kind for kind, calls in kinds.items() if not _is_read_back(form, calls, render)]


def _is_read_back(form: CallFormat, calls: Sequence[FunctionCall], render: RenderCalls) -> bool:
    try:
        calls_read, _ = form.read(render(calls, ""))
    except (ValueError, RecursionError):
        return False
    return [call[:2] for call in calls_read] == [call[:2] for call in calls]


@dataclass(frozen=True)
class _Probes:
    """Rendered calls. A field is "" if the template rejects its calls."""

    plain: str
    empty: str
    double: str
    numbers: str
    odd: str

    @classmethod
    def of(cls, render: RenderCalls) -> "_Probes":
        try:
            plain = render([FIRST], "")
        except ValueError as error:
            raise NotLearnedError(f"it rejects the call {_words(FIRST)}: {error}") from error
        missing = [word for word in ("qzname", "qzkey", "qzvalue") if word not in plain]
        if missing:
            raise NotLearnedError(
                f"it renders the call {_words(FIRST)} without {missing}: {plain!r}"
            )
        variants = [[NO_ARGUMENTS], [FIRST, SECOND], [NUMBERS], [ODD]]
        return cls(plain, *(_text_of(calls, render) for calls in variants))


def _text_of(calls: Sequence[FunctionCall], render: RenderCalls, preface: str = "") -> str:
    try:
        return render(calls, preface)
    except ValueError:
        return ""


def _words(call: FunctionCall) -> str:
    return f"{call.name}({json.dumps(call.arguments)})"


def _mask(text: str, keys: str = "") -> Literal:
    """Convert a text to a literal, replacing the made-up words with holes."""
    text = re.sub(r"functions\.(?:qzname|qzother):\d+", f"functions.{NAME}:{INDEX}", text)
    text = re.sub(r"qzcall\d{3}", ID, text)
    text = re.sub(r"qzname|qzother", NAME, text)
    return literal(re.sub(keys, KEY, text) if keys else text)


def _with_place_of_text(form: CallFormat, probes: _Probes, render: RenderCalls) -> CallFormat:
    text = _text_of([FIRST], render, TEXT)
    return replace(
        form,
        text_after=TEXT in text.rpartition("qzend")[2],
        names_in_ids=f"functions.{FIRST.name}:" in probes.plain,
    )


def _with_between(form: CallFormat, two: str, start: Callable[[int], int]) -> CallFormat:
    """If ``two`` has two calls in a row, record the text between them in the format.

    Args:
        form: The format of a single call.
        two: The rendering of two calls.
        start: Function that maps the end of the first call to the start of the second call.
    """
    try:
        _, end = form.first(two)
        between = _mask(two[end : start(end)])
    except (ValueError, RecursionError):
        return form
    before, between = _with_index(form.before, between)
    return replace(form, before=before, between=between)


def _with_index(before: Literal, between: Literal) -> tuple[Literal, Literal]:
    """Compare two literals from the end, and put an index hole in place of differing numbers."""
    first, second = list(before), list(between)
    for at in range(1, min(len(first), len(second)) + 1):
        if first[-at] != second[-at]:
            if not (first[-at].isdigit() and second[-at].isdigit()):
                break
            first[-at] = second[-at] = INDEX
    return tuple(first), tuple(second)


def _merge_index(first: Literal, second: Literal) -> Literal:
    """Return ``first``, with index holes for the numbers if ``second`` differs only in numbers."""
    pairs = [*zip(non_space(first), non_space(second), strict=False)]
    numbers = {a for a, b in pairs if a != b}
    digits = all(a.isdigit() and b.isdigit() for a, b in pairs if a != b)
    if len(non_space(first)) != len(non_space(second)) or not digits:
        return first
    return tuple(INDEX if token in numbers else token for token in first)


# -- the types of formats --------------------------------------------------------------------------


def _learn_objects(probes: _Probes) -> CallFormat:
    two = probes.double
    for opened in re.finditer(r"[\[{]", probes.plain):
        try:
            value, end = read_value(probes.plain, opened.start())
        except (ValueError, RecursionError):
            continue
        inner = value[0] if isinstance(value, list) and value else value
        if not isinstance(inner, dict) or inner == ARGUMENTS or "qzkey" not in json.dumps(inner):
            continue
        before, after = _mask(probes.plain[: opened.start()]), _mask(probes.plain[end:])
        form = Objects(before, after, keys=_keys(inner))
        return _with_between(form, two, lambda at: two.rindex("{", at, two.index("qzother", at)))
    raise NotLearnedError("it does not render calls as objects")


def _keys(value: dict[str, Any]) -> tuple[str | None, str, str | None]:
    if value == {FIRST.name: ARGUMENTS}:
        return None, "", None
    keys = {json.dumps(inner): key for key, inner in value.items()}
    arguments = json.dumps(ARGUMENTS)
    of_arguments = keys.get(arguments, keys.get(json.dumps(arguments)))
    ids = (key for text, key in keys.items() if re.search(r"qzcall\d|functions\.qz", text))
    if of_arguments is None or '"qzname"' not in keys:
        raise NotLearnedError("the object that represents a call has a different structure")
    return keys['"qzname"'], of_arguments, next(ids, None)


def _learn_named(probes: _Probes) -> CallFormat:
    text, two = probes.plain, probes.double
    start = text.rfind("qzname", 0, text.find("qzkey"))
    for opened in re.finditer(r"\{", text[start:]):
        at = start + opened.start()
        quote = text[at:].partition("qzkey")[2].partition("qzvalue")[0].lstrip(": ").strip()
        for mark in ("", quote):
            try:
                value, end = read_value(text, at, mark)
            except (ValueError, RecursionError):
                continue
            if value != ARGUMENTS:
                continue
            middle = _mask(text[start + len("qzname") : at])
            if "qzother" in two:
                tail = two[two.rindex("qzother") + len("qzother") :]
                middle = _merge_index(middle, _mask(tail[: tail.index("{")]))
            form = Named(_mask(text[:start]), _mask(text[end:]), middle=middle, quote=mark)
            return _with_between(form, two, lambda end: two.rindex("qzother", end))
    raise NotLearnedError("it does not render an object after the name")


def _learn_python(probes: _Probes) -> CallFormat:
    call = r"\[\s*qzname\(qzkey=(['\"]?)qzvalue\1,? ?qzlast=\1qzend\1\)\s*\]"
    match = re.search(call, probes.plain)
    if match is None:
        raise NotLearnedError("it does not render calls as a Python list")
    return Python(_mask(probes.plain[: match.start()]), _mask(probes.plain[match.end() :]))


def _learn_keyed(probes: _Probes) -> CallFormat:
    def mask(text: str) -> Literal:
        return _mask(text, "qzkey|qzlast")

    text = probes.plain
    place = _places(text, "qzvalue")
    before, middle, colon = _mask(text[: place.name]), *place.literals(text, mask)
    end = text.index("qzend", place.value)
    find = text.index if KEY in colon else text.rindex
    next_key = find("qzlast", place.value, end)
    gap = mask(text[place.value + len("qzvalue") : next_key])
    tail = mask(text[end + len("qzend") :])
    close = _shared_start(gap, tail)
    if not non_space(close):
        raise NotLearnedError("there is no text that closes a value")
    comma, after = gap[len(close) :], tail[len(close) :]
    while close[-1].isspace():
        close = close[:-1]
    other_colon = colon
    if "70001" in probes.numbers:
        other_colon = _places(probes.numbers, "70001").literals(probes.numbers, mask)[1] or colon
        other_colon = _with_type(other_colon, colon)
    form = Keyed(
        before,
        after,
        middle=middle,
        colons=(colon, other_colon),
        close=close,
        comma=comma,
        empty=_empty(probes.empty, after),
        cdata="<![CDATA[<qz>" in probes.odd,
    )
    return _with_second(form, probes.double, mask)


@dataclass(frozen=True)
class _Places:
    """The positions of the name, the first key and the value of that key."""

    name: int
    key: int
    value: int

    def literals(self, text: str, mask: Callable[[str], Literal]) -> tuple[Literal, Literal]:
        """Return the text between name and key, and the text between key and value."""
        middle = mask(text[self.name + len("qzname") : self.key])
        return middle, mask(text[self.key + len("qzkey") : self.value])


def _places(text: str, value: str) -> _Places:
    at = text.index(value)
    name = max(text.rfind(word, 0, text.index("qzkey")) for word in ("qzname", "qzother"))
    return _Places(name, text.index("qzkey", name), at)


def _with_type(colon: Literal, string_colon: Literal) -> Literal:
    """Return ``colon``, with a hole for the type if ``string_colon`` differs only in the type."""
    differs = [a != b for a, b in zip(colon, string_colon, strict=False)]
    if len(colon) != len(string_colon) or sum(differs) != 1:
        return colon
    at = differs.index(True)
    return (*colon[:at], TYPE, *colon[at + 1 :]) if colon[at].isalpha() else colon


def _shared_start(first: Literal, second: Literal) -> Literal:
    same = [a == b for a, b in zip(first, second, strict=False)]
    return first[: same.index(False) if False in same else len(same)]


def _empty(none: str, after: Literal) -> Literal | None:
    """Return the text after the name in a call without arguments, or None if unknown."""
    tail = _mask(none.rpartition("qzname")[2])
    count = len(non_space(after))
    if "qzname" not in none or (count and non_space(tail)[-count:] != non_space(after)):
        return None
    while count:
        count -= not tail[-1].isspace()
        tail = tail[:-1]
    return tail


def _with_second(form: Keyed, two: str, mask: Callable[[str], Literal]) -> Keyed:
    """If ``two`` has two calls in a row, record the text between them in the format."""
    if "qzother" not in two:
        return form
    name = two.rindex("qzother", 0, two.rindex("qzkey", 0, two.rindex("qzvalue")))
    second = mask(two[name + len("qzother") : two.index("qzkey", name)])
    middle, empty = _merge_index(form.middle, second), form.empty
    if empty is not None and INDEX in middle:
        empty = tuple(INDEX if token.isdigit() else token for token in empty)
    form = replace(form, middle=middle, empty=empty)
    between = mask(two[two.index("qzend") + len("qzend") : name])
    closing = non_space(form.close)
    while closing and between:
        if not between[0].isspace() and between[0] != closing.pop(0):
            return form
        between = between[1:]
    return replace(form, between=between)
