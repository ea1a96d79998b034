"""Keys and values of finished rows, kept for a prompt that begins with the same tokens."""

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np
from torch import Tensor


class PrefixCache:
    """Keys and values of finished rows, found again by the tokens they stand for."""

    def __init__(self, max_tokens: int) -> None:
        """Keep at most ``max_tokens`` tokens in all; the least recently used go first."""
        self._max_tokens = max_tokens
        self._entries: OrderedDict[bytes, list[tuple[Tensor, Tensor]]] = OrderedDict()
        self._lengths: dict[int, int] = {}
        self.tokens = 0

    def put(self, tokens: Sequence[int], layers: list[tuple[Tensor, Tensor]]) -> None:
        """Remember ``layers``: keys and values [Hkv, len(tokens), D] of each layer."""
        key = np.asarray(tokens, dtype=np.int32).tobytes()
        if key in self._entries or len(tokens) > self._max_tokens:
            return
        self._entries[key] = layers
        self._count(len(tokens), 1)
        while self.tokens > self._max_tokens:
            oldest, _ = self._entries.popitem(last=False)
            self._count(len(oldest) // 4, -1)

    def longest(self, prompt: Sequence[int]) -> tuple[int, list[tuple[Tensor, Tensor]]]:
        """The longest remembered beginning of ``prompt``, shorter than it; length 0 if none."""
        key = np.asarray(prompt, dtype=np.int32).tobytes()
        for length in sorted((n for n in self._lengths if n < len(prompt)), reverse=True):
            layers = self._entries.get(key[: 4 * length])
            if layers is not None:
                self._entries.move_to_end(key[: 4 * length])
                return length, layers
        return 0, []

    def _count(self, length: int, change: int) -> None:
        self.tokens += length * change
        self._lengths[length] = self._lengths.get(length, 0) + change
        if not self._lengths[length]:
            del self._lengths[length]
