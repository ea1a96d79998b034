"""Continuous batching over a ``LeanModel``.

Each row begins at position 0 of its own stretch of the cache, so lengths may differ freely and
nothing is left-padded. The active rows are always the first ``size`` ones: when rows finish, the
last ones move into the gaps. What lies behind them is scratch: prompts are computed there, and
given tokens that are scored.

Shapes: B rows, T tokens a row, L cache length, Hkv key heads, G queries a key head, D head size,
V vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from evert.trainers.engine.batches import Batch, pad, places_wanted
from evert.trainers.engine.lean import Attend, LeanModel
from evert.trainers.engine.prefill import Job
from evert.trainers.engine.prefix_cache import Kept, PrefixCache

_LENGTH_STEP = 64
"""Cache lengths are multiples of this, so that growing is rare."""


class LeanBatch(Batch):
    """Rows of a ``LeanModel``; see ``Batch``."""

    def __init__(self, model: LeanModel, prefixes: PrefixCache) -> None:
        """Start empty; memory is taken as rows arrive."""
        super().__init__(prefixes, model.device, model.head.shape[0])
        self._model = model
        self._lengths: list[int] = []
        self._positions = torch.zeros(0, dtype=torch.long, device=model.device)
        shape = (0, model.key_heads, 0, model.head_size)
        self._keys = [self._empty(shape) for _ in model.layers]
        self._values = [self._empty(shape) for _ in model.layers]

    @property
    def size(self) -> int:
        """Number of active rows."""
        return len(self._lengths)

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row; see ``Batch``."""
        size, longest = self.size, max(self._lengths) + 1
        self._reserve(size, longest)
        rows = torch.arange(size, device=self.device)
        length = min(_round_up(longest, 16), self._keys[0].shape[2])
        seen = torch.arange(length, device=self.device) <= self._positions[:, None]
        bias = torch.zeros(seen.shape, dtype=self._model.dtype, device=self.device)
        bias = bias.masked_fill_(~seen, float("-inf"))[:, None, None]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._keys[layer][rows, :, self._positions] = keys[:, 0]
            self._values[layer][rows, :, self._positions] = values[:, 0]
            if queries.dtype != torch.float32:  # scores would be rounded, and a trainer's are not
                cached = (
                    self._keys[layer][:size, :, :length],
                    self._values[layer][:size, :, :length],
                )
                return attention(queries, *cached, mask=seen[:, None, None])
            grouped = queries[:, 0].view(size, keys.shape[2], -1, keys.shape[3])
            scores = grouped @ self._keys[layer][:size, :, :length].transpose(-1, -2) + bias
            mixed = torch.softmax(scores, dim=-1) @ self._values[layer][:size, :, :length]
            return mixed.flatten(1)[:, None]

        hidden = self._model.hidden(tokens[:, None], self._positions[:, None], attend)
        self._lengths = [length + 1 for length in self._lengths]
        self._positions = self._positions + 1
        return self._model.logits(hidden[:, 0])

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Drop all rows but these; the last ones kept fill the gaps the others leave."""
        kept = sorted(rows)
        count = len(kept)
        gaps = sorted(set(range(count)) - set(kept))
        movers = [row for row in kept if row >= count]
        self._copy_rows(movers, gaps)
        origin = list(range(count))
        for gap, mover in zip(gaps, movers, strict=True):
            origin[gap] = mover
        self._lengths = [self._lengths[row] for row in origin]
        self._sync_positions()
        return origin

    def _run(self, jobs: Sequence[Job], join: bool) -> Iterator[Tensor]:
        row, device = self.size, self.device
        self._reserve(row + len(jobs), max(len(job.tokens) for job in jobs) + 1)
        for place, job in enumerate(jobs, row):
            self._restore(place, job.kept)
        tokens = pad([job.tokens[job.start :] for job in jobs], device)
        starts = torch.tensor([job.start for job in jobs], device=device)
        positions = starts[:, None] + torch.arange(tokens.shape[1], device=device)
        # Padding goes where no row has anything yet; it is overwritten before it is ever seen.
        positions = positions.clamp_(max=self._keys[0].shape[2] - 1)
        resumed = any(job.start for job in jobs)
        attend = self._attend_resumed(row, positions) if resumed else self._attend_fresh(row)
        hidden = self._model.hidden(tokens, positions, attend)
        self._remember(jobs, lambda place, start, end: self._read(row + place, start, end))
        if join:
            self._lengths += [len(job.tokens) for job in jobs]
        rows, places = places_wanted(jobs, device)
        for wanted in torch.split(hidden[rows, places - starts[rows]], self._most_logits):
            yield self._model.logits(wanted)

    def _attend_fresh(self, row: int) -> Attend:
        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            stretch = slice(row, row + keys.shape[0]), slice(None), slice(keys.shape[1])
            self._keys[layer][stretch] = keys.transpose(1, 2)
            self._values[layer][stretch] = values.transpose(1, 2)
            return attention(queries, keys.transpose(1, 2), values.transpose(1, 2), mask=None)

        return attend

    def _attend_resumed(self, row: int, positions: Tensor) -> Attend:
        rows = torch.arange(row, row + positions.shape[0], device=positions.device)[:, None]
        length = int(positions.max()) + 1
        columns = torch.arange(length, device=positions.device)
        seen = (columns <= positions[..., None])[:, None]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._keys[layer][rows, :, positions] = keys
            self._values[layer][rows, :, positions] = values
            stretch = slice(row, row + keys.shape[0]), slice(None), slice(length)
            return attention(
                queries, self._keys[layer][stretch], self._values[layer][stretch], mask=seen
            )

        return attend

    def _reserve(self, rows: int, length: int) -> None:
        self._model.reserve(length)
        have_rows, _, have_length, _ = self._keys[0].shape
        if rows <= have_rows and length <= have_length:
            return
        rows = have_rows if rows <= have_rows else max(rows, 2 * have_rows)
        if length <= have_length:
            length = have_length
        else:
            length = _round_up(max(length + _LENGTH_STEP, have_length * 3 // 2), _LENGTH_STEP)
        self._model.reserve(length)
        shape = (rows, self._model.key_heads, length, self._model.head_size)
        for tensors in (self._keys, self._values):
            for layer, old in enumerate(tensors):
                tensors[layer] = self._empty(shape)
                tensors[layer][:have_rows, :, :have_length] = old

    def _read(self, row: int, start: int, end: int) -> Kept:
        tensors = (*self._keys, *self._values)
        return [torch.stack([tensor[row, :, start:end] for tensor in tensors])]

    def _restore(self, row: int, pieces: Sequence[Kept]) -> None:
        end = 0
        for [piece] in pieces:
            start, end = end, end + piece.shape[2]
            for tensor, part in zip((*self._keys, *self._values), piece, strict=True):
                tensor[row, :, start:end] = part

    def _repeat(self, rows: Sequence[int]) -> None:
        first = self.size
        self._lengths += [self._lengths[row] for row in rows]
        self._copy_rows(rows, range(first, self.size))
        self._sync_positions()

    def _copy_rows(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if not sources:
            return
        length = max(self._lengths[row] for row in sources)
        origin = torch.tensor(sources, device=self.device)
        target = torch.tensor(targets, device=self.device)
        for tensor in (*self._keys, *self._values):
            tensor[target, :, :length] = tensor[origin, :, :length]

    def _sync_positions(self) -> None:
        self._positions = torch.tensor(self._lengths, dtype=torch.long, device=self.device)

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        # Zeros, not garbage: a masked weight of 0 times an accidental NaN would still be NaN.
        return torch.zeros(shape, dtype=self._model.dtype, device=self.device)


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """[B,T,Hq,D] queries over [B,Hkv,L,D] keys; ``mask`` [B,1,T,L], or None for causal."""
    mixed = F.scaled_dot_product_attention(
        queries.transpose(1, 2),
        keys,
        values,
        attn_mask=mask,
        is_causal=mask is None,
        scale=1.0,
        enable_gqa=True,
    )
    return mixed.transpose(1, 2).flatten(2)


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
