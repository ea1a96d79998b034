"""Makes tokenizers thread-safe.

Hugging Face tokenizers keep "split special tokens" as state, and the Cookbook's Qwen renderers
change it temporarily, in several threads (``rl/message_env.py``). Concurrent threads raise
``Already borrowed``, or encode the text ``<|im_end|>`` of a message as the special token.
"""

from threading import Lock
from typing import Any


class LockedEncode:
    """A tokenizer's ``_encode_plus``, for one thread at a time: all public methods call it."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._lock = Lock()

    def __call__(self, *args: Any, **options: Any) -> Any:
        """See ``PreTrainedTokenizerBase._encode_plus``."""
        with self._lock:
            return type(self._tokenizer)._encode_plus(self._tokenizer, *args, **options)

    def __reduce__(self) -> Any:
        return LockedEncode, (self._tokenizer,)


def make_thread_safe(tokenizer: Any) -> Any:
    """Make a tokenizer safe to share between threads, and return it."""
    state = getattr(tokenizer, "__dict__", {})
    if hasattr(type(tokenizer), "_encode_plus") and "_encode_plus" not in state:
        tokenizer._encode_plus = LockedEncode(tokenizer)
    return tokenizer
