"""Encodes only the new part of a prompt that is rendered whole.

Control tokens split text for the tokenizer, so the text before one is encoded the same way whatever
follows. A conversation's next prompt usually begins like the last one, so its tokens are known up
to the last control token that both share.
"""

from collections.abc import Callable
from typing import NamedTuple

from evert.bridge.tokens.escaping import ControlTokens


class ControlPosition(NamedTuple):
    """Where a control token is, in the text and among the tokens."""

    name: str
    character: int
    token: int


class Rendering(NamedTuple):
    """A prompt's text, its tokens, and its control tokens in order."""

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
    """A prompt's rendering; the beginning that it shares with the ``last`` one is reused."""
    places = last.places[: _shared(text, last, control)]
    start = places.pop() if places else ControlPosition("", 0, 0)
    new = encode(text[start.character :])
    marks = [*control.pattern.finditer(text, start.character)]
    at = [number for number, token in enumerate(new, start.token) if token in control.by_id]
    tokens = last.tokens[: start.token] + new
    names = [control.by_id[tokens[number]] for number in at]
    if [mark[0] for mark in marks] != names:  # a text spells a control token, or a token spells one
        return Rendering(text, tokens, [])
    new_places = [
        ControlPosition(mark[0], mark.start(), number)
        for mark, number in zip(marks, at, strict=True)
    ]
    return Rendering(text, tokens, places + new_places)


def _shared(text: str, last: Rendering, control: ControlTokens) -> int:
    """Number of the last prompt's control tokens that are in the text at the same place."""
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
