"""Renders long texts in threads: on the event loop they would block every other episode.

A tokenizer takes a second for some megabytes. So work on the loop has a limit of characters,
``most``. If there is more text, it raises a ``LongTextError`` before it changes anything, and
``LongTexts`` repeats it in a thread, with the renderer's copy for threads. A tokenizer cannot be
stopped. So a prompt that is far beyond the prompt's limit is refused beforehand (``least_tokens``),
and huge texts, which may take seconds, have a thread and a copy apart from all others.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from evert.bridge.chat.bad_requests import context_length_exceeded
from evert.bridge.chat.request import ChatRequest
from evert.bridge.errors import EnvClosedError
from evert.bridge.off_loop import off_loop, threads
from evert.bridge.tokens.renderer import PromptRenderer

T = TypeVar("T")
Work = Callable[[PromptRenderer, int | None], T]

LONG_TEXT = 20_000
"""Characters that take a tokenizer some milliseconds; longer texts are rendered in a thread."""

HUGE_TEXT = 200_000
"""Characters that may take a tokenizer a second; longer texts have a separate thread."""

CHARACTERS = 4  # per token, about


class LongTextError(Exception):
    """There is more text to render than is allowed here."""


def check_text(value: object, most: int | None) -> None:
    """Raise ``LongTextError`` if a value has more than ``most`` characters; None: no limit."""
    if most is None:
        return
    try:
        found = _length(value, most)
    except Exception as error:  # an agent's own object: its reader will refuse it
        raise LongTextError from error
    if found > most:
        raise LongTextError


def _length(value: object, most: int) -> int:
    """Characters of a value, counted until there are more than ``most``."""
    found = 0
    inside: list[Any] = [value]
    for one in inside:  # grows in the loop
        kind = type(one)
        if kind is dict and len(one) == 2 and type(content := one.get("content")) is str:
            found += len(content)  # most messages
        elif isinstance(one, str):
            found += str.__len__(one)
        elif isinstance(one, (list, tuple)):
            inside += one
            found += 1  # so that a list that holds itself ends the loop
        elif kind is dict or isinstance(one, Mapping):
            inside += one
            inside += one.values()
        elif hasattr(one, "model_fields_set"):  # an SDK object
            inside += vars(one).values()
            inside.append(getattr(one, "__pydantic_extra__", None))
        if found > most:
            break
    return found


def check_tokens(count: int, most: int | None) -> None:
    """Raise ``LongTextError`` if ``count`` tokens have more than about ``most`` characters."""
    if most is not None and count * CHARACTERS > most:
        raise LongTextError


class LongTexts:
    """Renders texts for one Env; ``longest`` is the most tokens of a prompt, None for no limit."""

    def __init__(self, renderer: PromptRenderer, longest: int | None = None) -> None:
        self._renderer = renderer
        self._longest = longest
        self._task: asyncio.Task[Any] | None = None
        self._is_over = False

    async def rendered(self, work: Work[T], request: ChatRequest | None = None) -> T:
        """Call ``work`` with a renderer and a limit; past the limit, again in a thread without one.

        Raises:
            EnvClosedError: ``stop`` was called meanwhile.
            openai.BadRequestError: The prompt of ``request`` is certainly too long.
        """
        try:
            return work(self._renderer, LONG_TEXT)
        except LongTextError:
            self._task = asyncio.ensure_future(self._off_loop(work, request))
        try:
            return await self._task  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            if self._is_over:
                raise EnvClosedError("The Env was closed before its prompt was rendered.") from None
            raise

    async def _off_loop(self, work: Work[T], request: ChatRequest | None) -> T:
        copy = self._renderer.off_loop
        messages = () if request is None else request.messages
        if self._longest is not None:
            least = least_tokens(messages)
            if least > self._longest:
                raise context_length_exceeded(least, self._longest)
        try:
            check_text(messages, HUGE_TEXT)
        except LongTextError:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(threads(1), lambda: work(copy.off_loop, None))
        return await off_loop(work, copy, None)

    def stop(self) -> None:
        """End the waiting, since the Env is closed; work that has not begun is dropped."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()


# -- how short a prompt can be ---------------------------------------------------------------------

LONGEST_TOKEN = 500  # characters; those of known tokenizers have at most 128


def least_tokens(messages: Sequence[Any]) -> int:
    """The fewest tokens that a prompt of these messages can have.

    Only plain texts count: an image is few tokens, and a template may leave out a reply's thought.
    """
    told = (m.get("content") for m in messages if type(m) is dict and m.get("role") != "assistant")
    return sum(len(text) for text in told if type(text) is str) // LONGEST_TOKEN
