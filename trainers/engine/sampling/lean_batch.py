"""Continuous batching over a ``LeanModel``.

Each row of the batch has a row in the key-value cache. The stem, a prefix that many rows share, is
stored only once (``stem.py``). There is no left padding. The active rows are always the first
``size`` rows: when rows finish, the last rows are moved into the gaps. The cache rows after the
active ones are scratch space for computing prompts and given tokens.

Shapes: B rows, T tokens per row, L cache length, P stem tokens, Hkv key heads, G queries per key
head, D head size, V vocabulary.
"""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evert.trainers.engine.common.parallel import in_chunks
from evert.trainers.engine.models.lean import Attend, LeanModel, mix_adapters
from evert.trainers.engine.models.products import float_product
from evert.trainers.engine.sampling.batches import DecodeBatch, FrozenModel, logit_places, pad
from evert.trainers.engine.sampling.graphs import Graphs, rounded
from evert.trainers.engine.sampling.prefill import Job
from evert.trainers.engine.sampling.prefix_cache import KeyValues
from evert.trainers.engine.sampling.row_cache import RowCache
from evert.trainers.engine.sampling.stem import Stem, best_stem

_LANE_ROWS = 96  # minimum number of rows per core in a step
_LANE_TOKENS = 256  # minimum number of prompt tokens per core


class LeanBatch(DecodeBatch):
    """A batch for a ``LeanModel``; see ``DecodeBatch``."""

    def __init__(self, weights: FrozenModel) -> None:
        super().__init__(weights)
        model: LeanModel = weights.model
        self._weights: list[FrozenModel] = []  # each row's model
        self._lengths: list[int] = []
        self._starts: list[int] = []  # how many of each row's tokens are in the stem
        self._stem: Stem | None = None
        self._stem_weights = weights
        self._visible_bias, self._masked_bias = (
            torch.tensor(value, dtype=model.dtype, device=model.device)
            for value in (0.0, float("-inf"))
        )
        """Attention biases for tokens within a row, and for columns past the row's end."""
        self._cache = RowCache(model)
        self._graphs = Graphs() if self.device.type == "cuda" else None
        self._sync()

    def _sync(self) -> None:
        """Update the tensors that each step needs. Called whenever rows join or leave."""
        starts = torch.tensor(self._starts, dtype=torch.long, device=self.device)
        lengths = torch.tensor(self._lengths, dtype=torch.long, device=self.device)
        self._positions = lengths
        self._columns = lengths - starts
        """[B] index of each row's next token: in the full row (with the stem), and in the cache."""
        widths = [length - start for length, start in zip(self._lengths, self._starts, strict=True)]
        self._longest = max(self._lengths, default=0)
        self._widest = max(widths, default=0)
        if not any(self._starts):
            self._stem = None
        # [B] True for rows without the stem; None if all rows start with it
        self._without_stem = None if all(self._starts) else starts == 0
        # One model for all rows, even if their adapters differ
        self._decoder = _joined_model(self._weights or [self.weights])

    @property
    def size(self) -> int:
        """Number of active rows."""
        return len(self._lengths)

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to each row; see ``DecodeBatch``."""
        rows = self.size if self._graphs is None else rounded(self.size)
        self._cache.reserve(rows, self._widest + 1)
        self._decoder.reserve(self._longest + 1)
        # A model that combines several adapters can only run all rows together.
        is_single = self._decoder is self._weights[0].model
        if self._graphs is not None and is_single:
            logits = self._step_by_graph(tokens, self._graphs)
        else:
            least = _LANE_ROWS if is_single else self.size
            logits = in_chunks(partial(self._step, tokens), self.size, least, self.device)
        self._lengths = [length + 1 for length in self._lengths]
        self._positions, self._columns = self._positions + 1, self._columns + 1
        self._longest, self._widest = self._longest + 1, self._widest + 1
        return logits

    def _step(self, tokens: Tensor, part: slice) -> Tensor:
        length = min(-(-(self._widest + 1) // 16) * 16, self._cache.length)
        without_stem = None if self._without_stem is None else self._without_stem[part]
        inputs = tokens[part], self._positions[part], self._columns[part], without_stem
        return self._decoder.logits(self._hidden(part, length, *inputs))

    def _step_by_graph(self, tokens: Tensor, graphs: Graphs) -> Tensor:
        rows = rounded(self.size)
        length = min(rounded(self._widest + 1, parts=8, least=128), self._cache.length)
        inputs = [tokens, self._positions, self._columns]
        if self._stem is not None and self._without_stem is not None:
            inputs.append(self._without_stem)
        owners = self._decoder, self._decoder.rotary, self._cache.keys[0], self._stem
        call = partial(self._hidden, slice(0, rows), length)
        return self._decoder.logits(graphs.run(owners, (rows, length, len(inputs)), call, inputs))

    def _hidden(
        self,
        part: slice,
        length: int,
        tokens: Tensor,
        positions: Tensor,
        columns: Tensor,
        without_stem: Tensor | None = None,
    ) -> Tensor:
        """Compute hidden states [B, H] for one token per row, attending to ``length`` columns."""
        rows = torch.arange(part.start, part.stop, device=self.device)
        visible = self._cache.places[:length] <= columns[:, None]
        bias = torch.where(visible, self._visible_bias, self._masked_bias)[:, None, None]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._cache.keys[layer][rows, :, columns] = keys[:, 0]
            self._cache.values[layer][rows, :, columns] = values[:, 0]
            keys = self._cache.keys[layer][part, :, :length]
            values = self._cache.values[layer][part, :, :length]
            if self._stem:
                return self._stem.attend(layer, queries, keys, values, bias, without_stem)
            return _decode_attention(queries, keys, values, bias)

        return self._decoder.hidden(tokens[:, None], positions[:, None], attend)[:, 0]

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Keep only the given rows. The last ones are moved into the gaps left by dropped rows."""
        remaining = sorted(rows)
        count = len(remaining)
        gaps = sorted(set(range(count)) - set(remaining))
        movers = [row for row in remaining if row >= count]
        self._move(movers, gaps)
        origin = list(range(count))
        for gap, mover in zip(gaps, movers, strict=True):
            origin[gap] = mover
        self._lengths = [self._lengths[row] for row in origin]
        self._starts = [self._starts[row] for row in origin]
        self._weights = [self._weights[row] for row in origin]
        self._sync()
        return origin

    def _reserve(self, rows: Sequence[np.ndarray], copies: Sequence[int]) -> None:
        if not any(self._starts):
            self._stem, self._stem_weights = self._find_stem(rows, copies), self.weights
        width = max(len(row) - self._stem_length(row) for row in rows)
        self._cache.reserve(self.size + sum(copies), width + 1)

    def _find_stem(self, rows: Sequence[np.ndarray], copies: Sequence[int]) -> Stem | None:
        tokens = best_stem(rows, copies)
        prefixes = self.weights.prefixes
        if tokens is None or len(tokens) > prefixes.max_tokens:
            return None
        self._precompute([tokens])
        length, pieces = prefixes.longest(tokens, len(tokens))
        return Stem(tokens, pieces) if length == len(tokens) else None

    def _stem_length(self, tokens: np.ndarray) -> int:
        if not self._stem or self._stem_weights is not self.weights:
            return 0
        return len(self._stem) if self._stem.begins(tokens) else 0

    def _run(self, jobs: Sequence[Job], join: bool) -> Iterator[Tensor]:
        row, device = self.size, self.device
        stems = [self._stem_length(job.tokens[: job.start + 1]) if join else 0 for job in jobs]
        width = max(len(job.tokens) - stem for job, stem in zip(jobs, stems, strict=True))
        self._cache.reserve(row + len(jobs), width + 1)
        for place, (job, stem) in enumerate(zip(jobs, stems, strict=True), row):
            self._restore(place, job.pieces, stem)
        tokens = pad([job.tokens[job.start :] for job in jobs], device)
        starts = torch.tensor([job.start for job in jobs], device=device)
        positions = starts[:, None] + torch.arange(tokens.shape[1], device=device)
        self.weights.model.reserve(int(starts.max()) + tokens.shape[1])
        offsets = torch.tensor(stems, device=device)
        # Padding is written after a row's tokens, and overwritten before it is ever read.
        columns = (positions - offsets[:, None]).clamp_(max=self._cache.length - 1)
        resumed = any(job.start for job in jobs)

        def compute(part: slice) -> Tensor:
            first = row + part.start
            if resumed:
                attend = self._attend_resumed(first, columns[part], offsets[part])
            else:
                attend = self._attend_fresh(first)
            hidden: Tensor = self.weights.model.hidden(tokens[part], positions[part], attend)
            return hidden

        hidden = in_chunks(compute, len(jobs), -(-_LANE_TOKENS // tokens.shape[1]), device)
        self._cache_jobs(jobs, lambda at, a, b: self._copy(row + at, stems[at], a, b))
        if join:
            self._lengths += [len(job.tokens) for job in jobs]
            self._starts += stems
            self._weights += [self.weights] * len(jobs)
        rows, places = logit_places(jobs, device)
        for states in torch.split(hidden[rows, places - starts[rows]], self._max_logits):
            yield self.weights.model.logits(states)

    def _attend_fresh(self, row: int) -> Attend:
        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            span = slice(row, row + keys.shape[0]), slice(None), slice(keys.shape[1])
            self._cache.keys[layer][span] = keys.transpose(1, 2)
            self._cache.values[layer][span] = values.transpose(1, 2)
            return attention(queries, keys.transpose(1, 2), values.transpose(1, 2), mask=None)

        return attend

    def _attend_resumed(self, row: int, columns: Tensor, stems: Tensor) -> Attend:
        rows = torch.arange(row, row + columns.shape[0], device=columns.device)[:, None]
        length = int(columns.max()) + 1
        visible = torch.arange(length, device=columns.device) <= columns[..., None]
        stem = self._stem if stems.any() else None
        if stem:
            on_stem = (stems > 0)[:, None, None].expand(*visible.shape[:2], len(stem))
            visible = torch.cat([on_stem, visible], dim=-1)
        mask = mask_of(visible, self.weights.model)

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._cache.keys[layer][rows, :, columns] = keys
            self._cache.values[layer][rows, :, columns] = values
            span = slice(row, row + keys.shape[0]), slice(None), slice(length)
            key_values = self._cache.keys[layer][span], self._cache.values[layer][span]
            if stem:
                key_values = stem.prepend(layer, *key_values)
            return attention(queries, *key_values, mask=mask)

        return attend

    def _read(self, row: int, start: int, end: int) -> KeyValues:
        return self._copy(row, self._starts[row], start, end)

    def _copy(self, row: int, stem: int, start: int, end: int) -> KeyValues:
        """Copy a row's keys and values from ``start`` to ``end``.

        The keys and values of the row's first ``stem`` tokens are in the stem.
        """
        copy = self._cache.read(row, max(0, start - stem), max(0, end - stem))
        if self._stem and start < stem:
            copy = torch.cat([self._stem.key_values[:, :, start:end], copy], dim=2)
        return [copy]

    def _restore(self, row: int, pieces: Sequence[KeyValues], stem: int) -> None:
        end = -stem
        for [piece] in pieces:
            start, end = end, end + piece.shape[2]
            if end > 0:
                self._cache.write(row, max(0, start), piece[:, :, max(0, -start) :])

    def _repeat(self, rows: Sequence[int]) -> None:
        first = self.size
        self._lengths += [self._lengths[row] for row in rows]
        self._starts += [self._starts[row] for row in rows]
        self._weights += [self._weights[row] for row in rows]
        self._cache.reserve(self.size, self._cache.length)
        self._move(rows, range(first, self.size))
        self._sync()

    def _move(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        lengths = (self._lengths[row] - self._starts[row] for row in sources)
        self._cache.move(sources, targets, max(lengths, default=0))


def _joined_model(weights: Sequence[FrozenModel]) -> LeanModel:
    different = [*dict.fromkeys(weights)]
    if len(different) == 1:
        return different[0].model  # type: ignore[no-any-return]
    numbers = {frozen: number for number, frozen in enumerate(different)}
    indices = torch.tensor([numbers[frozen] for frozen in weights])
    models = [frozen.model for frozen in different]
    return mix_adapters(models, indices.to(models[0].device))


def _decode_attention(queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
    """Compute attention of [B,1,Hq,D] queries to [B,Hkv,L,D] keys, with bias [B,1,1,L]."""
    grouped = queries[:, 0].view(len(keys), keys.shape[1], -1, keys.shape[3])
    if queries.dtype == torch.float32:
        heads = torch.softmax(grouped @ keys.transpose(-1, -2) + bias, dim=-1) @ values
        return heads.flatten(1)[:, None]
    scores = float_product(grouped, keys.transpose(-1, -2)) + bias
    if queries.device.type == "cuda":
        heads = torch.softmax(scores, dim=-1).to(values.dtype) @ values
    else:  # round like the trainer's PyTorch kernel, which would be slow here
        shares = torch.exp(scores - scores.amax(-1, keepdim=True))
        heads = float_product(shares.to(values.dtype), values) / shares.sum(-1, keepdim=True)
    return heads.flatten(1)[:, None].to(queries.dtype)


def mask_of(visible: Tensor, model: LeanModel) -> Tensor:
    """Convert a bool tensor [B,T,L], True for visible tokens, to a mask for ``attention``."""
    if visible.device.type == "cpu":
        return visible[:, None]
    rows, count, length = visible.shape
    groups = model.query_heads // model.key_heads
    # CUDA kernels add the mask to the scores. The mask's rows must be aligned to 16 bytes.
    bias = torch.zeros(rows, count, -(-length // 8) * 8, dtype=model.dtype, device=visible.device)
    bias[..., :length].masked_fill_(~visible, float("-inf"))
    return bias[:, None, None].expand(-1, -1, groups, -1, -1).flatten(2, 3)[..., :length]


def attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Compute attention of [B,T,Hq,D] queries to [B,Hkv,L,D] keys (causal if ``mask`` is None)."""
    attend = partial(F.scaled_dot_product_attention, scale=1.0)
    kind = queries.device.type
    if kind == "cpu" or (mask is None and kind != "mps"):
        mixed = attend(
            queries.transpose(1, 2), keys, values,
            attn_mask=mask, is_causal=mask is None, enable_gqa=True,
        )  # fmt: skip
        return mixed.transpose(1, 2).flatten(2)
    # CUDA kernels with a mask need as many query heads as key heads, so we turn the query heads
    # that share a key head into extra rows.
    rows, count, heads, size = queries.shape
    key_heads, groups = keys.shape[1], heads // keys.shape[1]
    grouped = queries.reshape(rows, count, key_heads, groups, size).permute(0, 2, 3, 1, 4)
    if kind == "mps":
        if mask is None:
            future = torch.full((count, count), float("-inf"), device=queries.device).triu(1)
            mask = future.repeat(groups, 1)
        mixed = _attention_by_products(grouped.flatten(2, 3), keys, values, mask)
    else:
        mixed = attend(grouped.flatten(2, 3), keys, values, attn_mask=mask)
    return mixed.view(rows, key_heads, groups, count, size).permute(0, 3, 1, 2, 4).flatten(2)


def _attention_by_products(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Compute attention without MPS's kernel, which has bugs (PyTorch issues 181133 and 195910)."""
    scores = queries.float() @ keys.float().transpose(-1, -2) + mask
    return (torch.softmax(scores, dim=-1) @ values.float()).to(queries.dtype)
