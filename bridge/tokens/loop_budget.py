"""Long texts are rendered in threads: on the event loop they would hold up every other episode.

Rendering takes a tokenizer a second for some megabytes. So what is done on the loop is given a
limit, ``most``, and what finds more text in its way raises ``LongTextError`` before it has changed
anything; ``LongTexts`` then has the same done again in a thread, with the renderer's copy for
threads. A tokenizer cannot be stopped: so what must be longer than the limit is refused before
(``least_tokens``), and what takes seconds has a thread and a copy apart from all others.
"""

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from tokenizers.models import BPE  # type: ignore[import-untyped]
from tokenizers.normalizers import NFC  # type: ignore[import-untyped]
from tokenizers.pre_tokenizers import ByteLevel  # type: ignore[import-untyped]

from evert.bridge.chat.bad_requests import context_length_exceeded
from evert.bridge.chat.request import ChatRequest
from evert.bridge.errors import EnvClosedError
from evert.bridge.off_loop import off_loop, threads
from evert.bridge.tokens.renderer import PromptRenderer

T = TypeVar("T")
Work = Callable[[PromptRenderer, int | None], T]

LONG_TEXT = 20_000
"""Characters that take a tokenizer some milliseconds: more is rendered off the loop."""

HUGE_TEXT = 200_000
"""Characters that may take it a second: more is rendered apart from what is only long."""

CHARACTERS = 4  # of a token, about


class LongTextError(Exception):
    """There is more text to render than was allowed here."""


def check_text(value: object, most: int | None) -> None:
    """Raise ``LongTextError`` if a request, or a part of one, holds more characters; None: any."""
    if most is None:
        return
    try:
        found = _length(value, most)
    except Exception as error:  # an agent's own kind of object: who reads it refuses it
        raise LongTextError from error
    if found > most:
        raise LongTextError


def _length(value: object, most: int) -> int:
    """Characters of a value, counted until there are more than ``most``."""
    found = 0
    inside: list[Any] = [value]
    for one in inside:  # grows on the way
        kind = type(one)
        if kind is dict and len(one) == 2 and type(content := one.get("content")) is str:
            found += len(content)  # most messages
        elif isinstance(one, str):
            found += str.__len__(one)
        elif kind is list:
            inside += one
            found += 1  # so that one that holds itself comes to an end
        elif kind is dict or isinstance(one, Mapping):
            inside += one
            inside += one.values()
        elif isinstance(one, (list, tuple)):
            inside += one
            found += 1
        elif hasattr(one, "model_fields_set"):  # an SDK's
            inside += vars(one).values()
            inside.append(getattr(one, "__pydantic_extra__", None))
        if found > most:
            break
    return found


def check_tokens(count: int, most: int | None) -> None:
    """The same, of text that is known by its number of tokens."""
    if most is not None and count * CHARACTERS > most:
        raise LongTextError


class LongTexts:
    """What is rendered for one Env; ``longest`` is the most tokens of a prompt, None: any."""

    def __init__(self, renderer: PromptRenderer, longest: int | None = None) -> None:
        self._renderer = renderer
        self._longest = longest
        self._task: asyncio.Task[Any] | None = None
        self._is_over = False

    async def rendered(self, work: Work[T], request: ChatRequest | None = None) -> T:
        """What ``work`` makes of a renderer and of a limit; in a thread if that is in its way."""
        try:
            return work(self._renderer, LONG_TEXT)
        except LongTextError:
            self._task = asyncio.ensure_future(self._off_loop(work, request))
        try:
            return await self._task  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            if self._is_over:
                raise EnvClosedError("The environment was closed before its prompt.") from None
            raise

    async def _off_loop(self, work: Work[T], request: ChatRequest | None) -> T:
        copy = self._renderer.off_loop
        messages = () if request is None else request.messages
        if self._longest is not None:
            least = await off_loop(least_tokens, messages, self._renderer)
            if least > self._longest:
                raise context_length_exceeded(least, self._longest)
        try:
            check_text(messages, HUGE_TEXT)
        except LongTextError:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(threads(1), lambda: work(copy.off_loop, None))
        return await off_loop(work, copy, None)

    def stop(self) -> None:
        """The Env is given up: nobody waits, and what has not begun is not done."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()


# -- how short a prompt can be ---------------------------------------------------------------------

_COUNTED = (("[!-~]", "[!-~]"), (" [A-Za-z](?=[ -~])", "(?:^|\u0120)[A-Za-z]"))
"""What is counted in a text, and in a token of it, where a space is U+0120: characters, words."""

_most: WeakKeyDictionary[PromptRenderer, list[int]] = WeakKeyDictionary()


def least_tokens(messages: Sequence[Any], renderer: PromptRenderer) -> int:
    """Tokens that a prompt of these messages has at least; 0: nobody knows.

    A token holds only so many characters of a text, and begins only so many words. That is sure of
    tokenizers that lose nothing of a text, and of the Cookbook's renderers, which show what is said
    to the model.
    """
    most = _most.get(renderer)
    if most is None:
        most = _most[renderer] = _most_in_a_token(renderer.renderer)
    texts = [text for message in messages for text in _told(message)]
    parts = [t[at : at + LONG_TEXT] for t in texts for at in range(0, len(t), LONG_TEXT)]
    counted = (sum(len(re.findall(pattern, part)) for part in parts) for pattern, _ in _COUNTED)
    return max((count // each for count, each in zip(counted, most, strict=False)), default=0)


def _most_in_a_token(renderer: Any) -> list[int]:
    """The highest count of each kind in any token; empty where a token may stand for any text."""
    backend: Any = getattr(renderer.tokenizer, "backend_tokenizer", None)
    known = isinstance(getattr(backend, "model", None), BPE)
    known = known and isinstance(backend.normalizer, NFC | None)
    vocabulary = renderer.tokenizer.get_vocab() if known else {}
    is_ours = type(renderer).__module__.startswith("tinker_cookbook.")
    if not is_ours or not vocabulary.keys() >= {*ByteLevel.alphabet()}:
        return []
    return [max(len(re.findall(one, token)) for token in vocabulary) for _, one in _COUNTED]


def _told(message: Any) -> list[str]:
    fields = message if type(message) is dict else {}
    role, text = fields.get("role"), fields.get("content")
    is_told = type(role) is str and role in ("system", "developer", "user", "tool")
    return [text.strip()] if is_told and type(text) is str else []
