"""Stores the keys and values of a batch, row by row.

Shapes: B rows, L tokens per row, Hkv key heads, D head size.
"""

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter

import torch
from torch import Tensor

from evert.trainers.engine.models.lean import LeanModel

_LENGTH_STEP = 64  # lengths are rounded up to multiples of this, so that the cache rarely grows


class RowCache:
    """Keys and values, with the same capacity for every row."""

    def __init__(self, model: LeanModel) -> None:
        self._shape = model.key_heads, model.head_size
        self._like = model.embedding
        self.keys = [self._empty(0, 0) for _ in model.layers]  # [B, Hkv, L, D] for each layer
        self.values = [self._empty(0, 0) for _ in model.layers]  # same shapes as ``keys``
        self.places = torch.arange(0, device=self._like.device)  # [L] 0, 1, ...

    @property
    def length(self) -> int:
        """Number of tokens that fit in a row."""
        return self.keys[0].shape[2]

    def reserve(self, rows: int, length: int) -> None:
        """Make room for ``rows`` rows of ``length`` tokens. Rows after those may be discarded."""
        have_rows, have_length = self.keys[0].shape[0], self.length
        if rows <= have_rows and length <= have_length:
            return
        if rows > have_rows:
            rows = max(rows, 2 * have_rows)
        if length > have_length:
            length = max(length + _LENGTH_STEP, have_length * 3 // 2)
            length = -(-length // _LENGTH_STEP) * _LENGTH_STEP
        length = max(length, have_length)
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                tensors[layer] = self._empty(rows, length)
                tensors[layer][:have_rows, :, :have_length] = old[:rows]
        self.places = torch.arange(length, device=self._like.device)

    def move(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        """Copy the first ``length`` tokens of each source row to its target row.

        If consecutive sources are the same row, their targets must be consecutive rows.
        """
        runs = [
            (row, [pair[1] for pair in run])
            for row, run in groupby(zip(sources, targets, strict=True), key=itemgetter(0))
        ]
        for tensor in (*self.keys, *self.values):
            part = tensor[:, :, :length]
            for source, rows in runs:
                part[rows[0] : rows[-1] + 1] = part[source]

    def read(self, row: int, start: int, end: int) -> Tensor:
        """Copy part of a row: [2 * layers, Hkv, end - start, D], all keys before all values."""
        span = slice(start, end)
        return torch.stack([tensor[row, :, span] for tensor in (*self.keys, *self.values)])

    def write(self, row: int, start: int, piece: Tensor) -> None:
        """Write keys and values returned by ``read`` to a row."""
        for tensor, part in zip((*self.keys, *self.values), piece, strict=True):
            tensor[row, :, start : start + piece.shape[2]] = part

    def _empty(self, rows: int, length: int) -> Tensor:
        # Initialize with zeros: uninitialized memory may contain NaN, and even if it is masked,
        # 0 * NaN is NaN.
        heads, size = self._shape
        return self._like.new_zeros(rows, heads, length, size)
