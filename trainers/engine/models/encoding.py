"""Makes tokenizers thread-safe.

Whether a Hugging Face tokenizer splits special tokens is mutable state. The Cookbook's Qwen
renderers change this state temporarily, possibly in several threads at once
(``rl/message_env.py``). Without a lock, encoding can then raise ``Already borrowed``, or encode
``<|im_end|>`` in a message's text as the special token.
"""

from threading import Lock
from typing import Any


class LockedEncode:
    """Wraps a tokenizer's ``_encode_plus``, which all public methods call, in a lock."""

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
    """Make a tokenizer safe to share between threads and return it."""
    state = getattr(tokenizer, "__dict__", {})
    if hasattr(type(tokenizer), "_encode_plus") and "_encode_plus" not in state:
        tokenizer._encode_plus = LockedEncode(tokenizer)
    return tokenizer
