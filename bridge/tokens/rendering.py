"""Encodes only the new part of a prompt, even though its text is rendered as a whole.

Tokenizers split text at control tokens, so the text before a control token is always encoded the
same way, no matter what follows. A prompt usually starts with the same text as the previous prompt
of the conversation. The tokens of this shared text are reused, up to its last control token.
"""

from collections.abc import Callable
from typing import NamedTuple

from evert.bridge.tokens.escaping import ControlTokens


class ControlPosition(NamedTuple):
    """The position of a control token: its index in the text, and its index in the tokens."""

    name: str
    character: int
    token: int


class Rendering(NamedTuple):
    """The text of a prompt, its tokens, and the positions of its control tokens in order."""

    text: str
    tokens: list[int]
    places: list[ControlPosition]


EMPTY = Rendering("", [], [])


def rendering_after(
    text: str,
    last: Rendering,
    control: ControlTokens,
    encode: Callable[[str], list[int]],
) -> Rendering:
    """Encode a prompt, reusing the tokens of the prefix that it shares with the ``last`` prompt."""
    places = last.places[: _shared(text, last, control)]
    start = places.pop() if places else ControlPosition("", 0, 0)
    new = encode(text[start.character :])
    marks = [*control.pattern.finditer(text, start.character)]
    at = [number for number, token in enumerate(new, start.token) if token in control.by_id]
    tokens = last.tokens[: start.token] + new
    names = [control.by_id[tokens[number]] for number in at]
    if [mark[0] for mark in marks] != names:  # some plain text looks like a control token
        return Rendering(text, tokens, [])
    new_places = [
        ControlPosition(mark[0], mark.start(), number)
        for mark, number in zip(marks, at, strict=True)
    ]
    return Rendering(text, tokens, places + new_places)


def _shared(text: str, last: Rendering, control: ControlTokens) -> int:
    """Count the control tokens of the last prompt that are in the same place in this text."""
    low, high = 0, min(len(text), len(last.text))
    while low < high:
        middle = (low + high + 1) // 2
        if text[low:middle] == last.text[low:middle]:
            low = middle
        else:
            high = middle - 1
    count = len(last.places)
    while count:
        place = last.places[count - 1]
        mark = control.pattern.match(text, place.character)
        if mark is not None and mark[0] == place.name and mark.end() <= low:
            return count
        count -= 1
    return 0
