"""Long texts are rendered in threads: on the event loop they would hold up every other episode.

Rendering takes a tokenizer a second for some megabytes. So what is done on the loop is given a
limit, ``most``, and what finds more text in its way raises ``LongTextError`` before it has changed
anything; ``rendered`` then does the same again in a thread, with the renderer's copy for threads.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from evert.bridge.offloop import off_loop
from evert.bridge.rendering import PromptRenderer

T = TypeVar("T")

LONG_TEXT = 20_000
"""Characters that take a tokenizer some milliseconds: more is rendered off the loop."""

CHARACTERS = 4
"""Of a token, about."""


class LongTextError(Exception):
    """There is more text to render than was allowed here."""


def check_text(value: object, most: int | None) -> None:
    """Check that a request, or a part of one, holds no more text than ``most`` characters.

    Args:
        value: Strings, lists, dicts, and SDK objects of them.
        most: None for any number.

    Raises:
        LongTextError: It holds more.
    """
    if most is None:
        return
    found = 0
    inside: list[Any] = [value]
    for one in inside:  # grows on the way
        kind = type(one)
        if kind is dict and len(one) == 2 and type(content := one.get("content")) is str:
            found += len(content)  # most messages
        elif kind is str:
            found += len(one)
        elif kind is list:
            inside += one
            found += 1  # so that one that holds itself comes to an end
        elif kind is dict or isinstance(one, Mapping):
            inside += one
            inside += one.values()
        elif isinstance(one, (list, tuple)):
            inside += one
            found += 1
        elif isinstance(one, str):
            found += len(one)
        elif hasattr(one, "model_fields_set"):  # an SDK's
            inside += vars(one).values()
            inside.append(getattr(one, "__pydantic_extra__", None))
        if found > most:
            raise LongTextError


def check_tokens(count: int, most: int | None) -> None:
    """The same for text that is known by its number of tokens.

    Raises:
        LongTextError: It is longer.
    """
    if most is not None and count * CHARACTERS > most:
        raise LongTextError


async def rendered(renderer: PromptRenderer, work: Callable[[PromptRenderer, int | None], T]) -> T:
    """What ``work`` makes of a renderer and of a limit; in a thread if the limit is in its way."""
    try:
        return work(renderer, LONG_TEXT)
    except LongTextError:
        return await off_loop(work, renderer.off_loop, None)
