"""Renders long texts in threads, because they would block all other episodes on the event loop.

A tokenizer needs about a second for a few megabytes, so at most ``max_chars`` characters are
rendered on the event loop at once. If there is more text, rendering raises a ``LongTextError``
before it changes anything, and ``LongTexts`` repeats the rendering in a thread with a copy of the
renderer. Tokenizers cannot be interrupted, so prompts that are certain to exceed the limit are
rejected beforehand (``least_tokens``). Huge texts can take seconds, so they get their own thread
and their own copy of the renderer.
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
"""A tokenizer needs milliseconds for this many characters. Longer texts go to a thread."""

HUGE_TEXT = 200_000
"""A tokenizer may need a second for this many characters. Longer texts go to another thread."""

CHARACTERS = 4  # per token, roughly


class LongTextError(Exception):
    """The text is too long to be rendered on the event loop."""


def check_text(value: object, max_chars: int | None) -> None:
    """Raise ``LongTextError`` if a value has more than ``max_chars`` characters."""
    if max_chars is None:
        return
    try:
        length = _length(value, max_chars)
    except Exception as error:  # raised by a custom object, which will be rejected later
        raise LongTextError from error
    if length > max_chars:
        raise LongTextError


def _length(value: object, max_chars: int) -> int:
    """Count the characters in a value, stopping once there are more than ``max_chars``."""
    count = 0
    queue: list[Any] = [value]
    for item in queue:  # the queue grows during the loop
        kind = type(item)
        if kind is dict and len(item) == 2 and type(content := item.get("content")) is str:
            count += len(content)  # most messages
        elif isinstance(item, str):
            count += str.__len__(item)
        elif kind is list:
            queue += item
            count += 1  # so that the loop ends if a list contains itself
        elif kind is dict or isinstance(item, Mapping):
            queue += item
            queue += item.values()
        elif isinstance(item, (list, tuple)):
            queue += item
            count += 1
        elif hasattr(item, "model_fields_set"):  # an SDK object
            queue += vars(item).values()
            queue.append(getattr(item, "__pydantic_extra__", None))
        if count > max_chars:
            break
    return count


def check_tokens(count: int, max_chars: int | None) -> None:
    """Raise ``LongTextError`` if ``count`` tokens make more than about ``max_chars`` characters."""
    if max_chars is not None and count * CHARACTERS > max_chars:
        raise LongTextError


class LongTexts:
    """Renders texts for one Env. ``longest`` is the maximum number of tokens in a prompt."""

    def __init__(self, renderer: PromptRenderer, longest: int | None = None) -> None:
        self._renderer = renderer
        self._longest = longest
        self._task: asyncio.Task[Any] | None = None
        self._is_over = False

    async def render(self, work: Work[T], request: ChatRequest | None = None) -> T:
        """Call ``work`` on the event loop or, for long texts, in a thread without a length limit.

        Raises:
            EnvClosedError: ``stop`` was called in the meantime.
            openai.BadRequestError: The prompt of ``request`` is certain to be too long.
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
        """Stop waiting because the Env is closed, and drop work that has not started."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()


# -- the minimum length of a prompt ----------------------------------------------------------------

_COUNTED = (("[!-~]", "[!-~]"), (" [A-Za-z](?=[ -~])", "(?:^|\u0120)[A-Za-z]"))
"""Patterns for characters and word starts, in text and in tokens (where U+0120 is a space)."""

_maxima: WeakKeyDictionary[PromptRenderer, list[int]] = WeakKeyDictionary()


def least_tokens(messages: Sequence[Any], renderer: PromptRenderer) -> int:
    """Return a lower bound on the tokens in a prompt with these messages, or 0 if unknown.

    One bound is the number of characters in the messages divided by the number of characters in the
    longest token. The other bound is the same ratio for word starts. The larger bound is returned.
    Both are only known if the tokenizer preserves all text and the renderer is one of the
    Cookbook's, which include every message in full.
    """
    maxima = _maxima.get(renderer)
    if maxima is None:
        maxima = _maxima[renderer] = _token_maxima(renderer.renderer)
    texts = [text for message in messages for text in _prompt_texts(message)]
    parts = [t[at : at + LONG_TEXT] for t in texts for at in range(0, len(t), LONG_TEXT)]
    counts = (sum(len(re.findall(pattern, part)) for part in parts) for pattern, _ in _COUNTED)
    return max((count // limit for count, limit in zip(counts, maxima, strict=False)), default=0)


def _token_maxima(renderer: Any) -> list[int]:
    """Return each pattern's maximum number of matches in a single token, or [] if unknown."""
    backend: Any = getattr(renderer.tokenizer, "backend_tokenizer", None)
    is_known = isinstance(getattr(backend, "model", None), BPE)
    is_known = is_known and isinstance(backend.normalizer, NFC | None)
    vocabulary = renderer.tokenizer.get_vocab() if is_known else {}
    is_ours = type(renderer).__module__.startswith("tinker_cookbook.")
    if not is_ours or not vocabulary.keys() >= {*ByteLevel.alphabet()}:
        return []
    return [max(len(re.findall(pattern, token)) for token in vocabulary) for _, pattern in _COUNTED]


def _prompt_texts(message: Any) -> list[str]:
    fields = message if type(message) is dict else {}
    role, text = fields.get("role"), fields.get("content")
    is_shown = type(role) is str and role in ("system", "developer", "user", "tool")
    return [text.strip()] if is_shown and type(text) is str else []
