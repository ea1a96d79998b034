"""Renders long texts in threads, because on the event loop they would block all other episodes.

A tokenizer takes a second for a few megabytes, so the event loop renders at most ``max_chars``
characters at once. If there is more text, rendering raises a ``LongTextError`` before it changes
anything, and ``LongTexts`` renders again in a thread, with a copy of the renderer. A tokenizer
cannot be stopped, so a prompt that is certain to exceed its limit is refused first
(``least_tokens``). Huge texts may take seconds, and get a thread and a copy of their own.
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
"""A tokenizer needs milliseconds for this many characters; longer texts go to a thread."""

HUGE_TEXT = 200_000
"""A tokenizer may need a second for this many characters; longer texts get their own thread."""

CHARACTERS = 4  # per token, roughly


class LongTextError(Exception):
    """There is more text than may be rendered on the event loop."""


def check_text(value: object, max_chars: int | None) -> None:
    """Raise ``LongTextError`` if a value has more than ``max_chars`` characters; None: no limit."""
    if max_chars is None:
        return
    try:
        length = _length(value, max_chars)
    except Exception as error:  # from an agent's own object, which will be refused when read
        raise LongTextError from error
    if length > max_chars:
        raise LongTextError


def _length(value: object, max_chars: int) -> int:
    """Count the characters in a value; stop at more than ``max_chars``."""
    count = 0
    queue: list[Any] = [value]
    for item in queue:  # grows in the loop
        kind = type(item)
        if kind is dict and len(item) == 2 and type(content := item.get("content")) is str:
            count += len(content)  # most messages
        elif isinstance(item, str):
            count += str.__len__(item)
        elif kind is list:
            queue += item
            count += 1  # so that a list that contains itself ends the loop
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
    """Raise ``LongTextError`` if ``count`` tokens have more than about ``max_chars`` characters."""
    if max_chars is not None and count * CHARACTERS > max_chars:
        raise LongTextError


class LongTexts:
    """Renders texts for one Env; ``longest`` is the prompt's token limit, or None."""

    def __init__(self, renderer: PromptRenderer, longest: int | None = None) -> None:
        self._renderer = renderer
        self._longest = longest
        self._task: asyncio.Task[Any] | None = None
        self._is_over = False

    async def render(self, work: Work[T], request: ChatRequest | None = None) -> T:
        """Call ``work`` with a limit; if it raises ``LongTextError``, without one in a thread.

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
        """Stop waiting, since the Env is closed; drop work that has not begun."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()


# -- the minimum length of a prompt ----------------------------------------------------------------

_COUNTED = (("[!-~]", "[!-~]"), (" [A-Za-z](?=[ -~])", "(?:^|\u0120)[A-Za-z]"))
"""Patterns for characters and for word starts: in a text, and in tokens (U+0120 is a space)."""

_maxima: WeakKeyDictionary[PromptRenderer, list[int]] = WeakKeyDictionary()


def least_tokens(messages: Sequence[Any], renderer: PromptRenderer) -> int:
    """Return the minimum number of tokens in a prompt of these messages; 0 if unknown.

    The minimum follows from the maximum number of characters, and of word starts, in any token. It
    is known only for tokenizers that preserve all text, and for the Cookbook's renderers, which
    show the model every message in full.
    """
    maxima = _maxima.get(renderer)
    if maxima is None:
        maxima = _maxima[renderer] = _token_maxima(renderer.renderer)
    texts = [text for message in messages for text in _prompt_texts(message)]
    parts = [t[at : at + LONG_TEXT] for t in texts for at in range(0, len(t), LONG_TEXT)]
    counts = (sum(len(re.findall(pattern, part)) for part in parts) for pattern, _ in _COUNTED)
    return max((count // limit for count, limit in zip(counts, maxima, strict=False)), default=0)


def _token_maxima(renderer: Any) -> list[int]:
    """Return each pattern's maximum count in a token; empty if a token may represent any text."""
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
