"""Stores the common prefix of many rows in a batch (the stem) only once while they are decoded.

All rows' attention to the stem is computed as a single matrix product, as in Hydragen and cascade
attention. With many rows and a long common prompt, a step is two to four times faster than if each
row had a copy of the prompt.

Shapes: B rows, Hkv key heads, G queries per key head, D head size, P stem tokens, L columns per
row.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from evert.trainers.engine.models.products import float_product
from evert.trainers.engine.sampling.prefill import common_prefixes
from evert.trainers.engine.sampling.prefix_cache import KeyValues

_LEAST_SAVED = 2048  # minimum number of token copies that a stem must save
_LEAST_LENGTH = 128  # minimum number of tokens; shorter stems don't save time
_ROWS = {"cpu": 32}  # rows to process at once, so that their scores fit in the CPU cache


class Stem:
    """The keys and values of the common prefix."""

    def __init__(self, tokens: np.ndarray, pieces: Sequence[KeyValues]) -> None:
        self.tokens = tokens
        self.key_values = torch.cat([piece for [piece] in pieces], dim=2)
        """[2 layers, Hkv, P, D], with the keys of all layers before the values."""
        self._keys, self._values = self.key_values.chunk(2)

    def __len__(self) -> int:
        return len(self.tokens)

    def begins(self, row: np.ndarray) -> bool:
        """Return whether a row starts with the stem and is longer than it."""
        return len(row) > len(self) and bool((row[: len(self)] == self.tokens).all())

    def prepend(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Prepend the stem to the rows' keys and values: [B, Hkv, L, D] -> [B, Hkv, P + L, D]."""
        stem = self._keys[layer], self._values[layer]
        stem_keys, stem_values = (tensor.expand(len(keys), *tensor.shape) for tensor in stem)
        return torch.cat([stem_keys, keys], dim=2), torch.cat([stem_values, values], dim=2)

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        bias: Tensor,
        without_stem: Tensor | None,
    ) -> Tensor:
        """Compute attention of one token per row to the stem and the row's keys [B, Hkv, L, D].

        ``bias`` [B, 1, 1, L] is 0 for tokens that are part of a row, and -inf otherwise.
        ``without_stem`` [B] is True for rows that don't start with the stem (None if all do).
        Products are accumulated in float32. Returns a tensor [B, 1, Hkv G D].
        """
        limit = _ROWS.get(queries.device.type, len(queries))
        if len(queries) > limit:
            parts = []
            for at in (slice(i, i + limit) for i in range(0, len(queries), limit)):
                off = None if without_stem is None else without_stem[at]
                parts.append(self.attend(layer, queries[at], keys[at], values[at], bias[at], off))
            return torch.cat(parts)
        batch, heads, _, size = keys.shape
        grouped = queries.view(batch, heads, -1, size)
        row_scores = (float_product(grouped, keys.transpose(-1, -2)) + bias).transpose(0, 1)
        flat = grouped.transpose(0, 1).flatten(1, 2)
        stem_scores = float_product(flat, self._keys[layer].transpose(-1, -2))
        stem_scores = stem_scores.view(*row_scores.shape[:-1], -1)
        if without_stem is not None:
            stem_scores = stem_scores.masked_fill_(without_stem[None, :, None, None], float("-inf"))
        weights = torch.softmax(torch.cat([stem_scores, row_scores], dim=-1), dim=-1)
        on_stem, on_row = weights[..., : len(self)], weights[..., len(self) :]
        mixed = float_product(on_stem.flatten(1, 2), self._values[layer])
        mixed = mixed.view(*on_row.shape[:-1], size).transpose(0, 1)
        mixed = mixed + float_product(on_row.transpose(0, 1), values)
        return mixed.flatten(1)[:, None].to(queries.dtype)


def best_stem(rows: Sequence[np.ndarray], copies: Sequence[int]) -> np.ndarray | None:
    """Return the prefix that saves the most token copies, or None if no stem is worthwhile."""
    longest = max(map(len, rows))
    if longest <= _LEAST_LENGTH or sum(copies) * longest < _LEAST_SAVED:
        return None
    candidates = [(part.length, part.rows) for part in common_prefixes(rows)]
    candidates += [(len(row) - 1, [i]) for i, row in enumerate(rows)]
    saved = [length * (sum(copies[i] for i in members) - 1) for length, members in candidates]
    best = int(np.argmax(saved))
    length, members = candidates[best]
    # Rows that start with the stem store only their other tokens; other rows store all tokens. The
    # row that stores the most tokens determines the width of the cache.
    widest = max(len(row) - length * (i in members) for i, row in enumerate(rows))
    pays = min(length, longest - widest) >= _LEAST_LENGTH and saved[best] >= _LEAST_SAVED
    return rows[members[0]][:length] if pays else None
