"""Continuous batching for any Hugging Face causal language model, using its own forward pass.

All rows end at the same column. Shorter rows are padded and masked on the left, and unused columns
are trimmed. In each pass, all rows compute the same number of tokens: to avoid gaps, rows with
fewer new tokens recompute part of their cached prefix. Passes never start inside an image.

Models with state other than keys and values (state-space layers) can also be batched, but rows
can't join such a batch once it has started, and prefixes are not cached.

Shapes: B rows, T tokens per row, L columns, V vocabulary.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evert.trainers.engine.models.base_models import base_of
from evert.trainers.engine.models.pictures import uncut_start, vision_inputs
from evert.trainers.engine.sampling.batches import DecodeBatch, FrozenModel, logit_places, pad
from evert.trainers.engine.sampling.prefill import Job
from evert.trainers.engine.sampling.prefix_cache import KeyValues

_ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}


class GenericBatch(DecodeBatch):
    """A batch for any model; see ``DecodeBatch``."""

    def __init__(self, weights: FrozenModel) -> None:
        model = weights.model
        self._only_attends = only_attends(model)
        super().__init__(weights)
        self._model = model
        self._arguments = inspect.signature(base_of(model).forward).parameters  # not an adapter's
        self._vision = vision_inputs(model)
        self._cache: Any = None
        self._mask = torch.zeros(0, 0, dtype=torch.long, device=model.device)
        self._offsets = torch.zeros(0, 1, dtype=torch.long, device=model.device)
        """[B, 1] each row's next position minus the row's length; always 0 without pictures."""

    @property
    def size(self) -> int:
        """Number of active rows."""
        return self._mask.shape[0]

    @property
    def joinable(self) -> bool:
        """Whether rows can join. With state-space layers, rows can only join a new batch."""
        return self._only_attends or self._cache is None

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to each row; see ``DecodeBatch``."""
        self._mask = F.pad(self._mask, (0, 1), value=1)
        positions = self._mask.sum(-1, keepdim=True) - 1 + self._offsets
        return self._forward(tokens[:, None], self._mask, self._cache, 1, positions)[:, -1]

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Keep only the given rows, in their current order."""
        remaining = sorted(rows)
        self._select(remaining)
        if remaining and self._only_attends:
            self._trim(int(self._mask.sum(-1).max()))
        return remaining

    def _budget(self, jobs: Sequence[Job]) -> int:
        if not self._only_attends:
            return 2**62  # use a single chunk, because a second chunk couldn't join
        budget = super()._budget(jobs)
        return budget if self._logits_to_keep(jobs) == 1 else min(budget, self._max_logits)

    def _run(self, jobs: Sequence[Job], join: bool) -> Iterator[Tensor]:
        width = _align_starts(jobs)
        cache, before = self._restore_cache(jobs), max(job.start for job in jobs)
        tokens = pad([job.tokens[job.start :] for job in jobs], self.device, on_left=True)
        lengths = torch.tensor([len(job.tokens) for job in jobs], device=self.device)
        columns = torch.arange(before + width, device=self.device)
        mask = (columns >= before + width - lengths[:, None]).long()
        rows, places = logit_places(jobs, self.device)
        places = places - lengths[rows] + width
        pixels, positions = self._vision_inputs(jobs, mask)
        needed = self._logits_to_keep(jobs)
        # Rows are only split if they need too many logits for a single pass.
        in_one_piece = needed == 1 or not self._only_attends or bool(pixels)
        piece = width if in_one_piece else max(1, self._max_logits // len(jobs))
        for start in range(0, width, piece):
            end = min(start + piece, width)
            logits_to_keep = max(1, end - max(start, width - needed))
            span, seen = slice(before + start, before + end), mask[:, : before + end]
            logits = self._forward(
                tokens[:, start:end], seen, cache, logits_to_keep, positions[..., span], pixels
            )
            in_piece = (places >= start) & (places < end)
            yield logits[rows[in_piece], places[in_piece] - end]
        gaps = (before + width - lengths).tolist()
        self._cache_jobs(jobs, lambda row, a, b: _read(cache, row, gaps[row] + a, gaps[row] + b))
        if join:
            self._join(cache, mask, positions)

    def _logits_to_keep(self, jobs: Sequence[Job]) -> int:
        """Return the maximum number of logits that a row needs; every pass computes at least 1."""
        if "logits_to_keep" not in self._arguments:
            return max((job.todo for job in jobs), default=1)
        return max([1, *(len(job.tokens) - job.first for job in jobs)])

    def _vision_inputs(self, jobs: Sequence[Job], mask: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Return pixels for the new tokens, and all tokens' positions: [B, L] or [3, B, L]."""
        positions = (mask.cumsum(-1) - 1).clamp_(min=0)
        rows = [job.tokens for job in jobs]
        if self._vision is None or not any((row < 0).any() for row in rows):
            return {}, positions
        placed = positions.expand(3, -1, -1).clone()
        for number, row in enumerate(rows):
            placed[:, number, -len(row) :] = torch.from_numpy(self._vision.positions(row))
        new = [job.tokens[job.start :] for job in jobs]
        return self._vision.pixels(new, self.device), placed

    def _forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        cache: Any,
        logits_to_keep: int,
        positions: Tensor,
        pixels: Mapping[str, Tensor] = MappingProxyType({}),
    ) -> Tensor:
        """Return float32 logits [B, logits_to_keep, V] for the last tokens."""
        name = "cache" if "cache" in self._arguments else "past_key_values"  # in older transformers
        options: dict[str, Any] = {"attention_mask": mask, name: cache, **pixels}
        if self._vision is not None:
            tokens = self._vision.ids(tokens)
        if "position_ids" in self._arguments:
            options["position_ids"] = positions
        if "logits_to_keep" in self._arguments:
            options["logits_to_keep"] = logits_to_keep
        logits: Tensor = self._model(input_ids=tokens, use_cache=True, **options).logits
        return logits[:, -logits_to_keep:].float()

    def _restore_cache(self, jobs: Sequence[Job]) -> Any:
        """Build a right-aligned cache from the jobs' cached prefixes."""
        from transformers import DynamicCache

        # Without a config, the cache keeps tokens outside the sliding window, so we can pad rows.
        cache = DynamicCache() if self._only_attends else DynamicCache(config=self._model.config)
        length = max(job.start for job in jobs)
        if length:
            tensors = range(len(jobs[0].pieces[0]))
            stacked = [torch.stack([_padded(job, i, length) for job in jobs]) for i in tensors]
            for layer, (keys, values) in enumerate(zip(stacked[::2], stacked[1::2], strict=True)):
                cache.update(keys, values, layer)
        return cache

    def _join(self, cache: Any, mask: Tensor, positions: Tensor) -> None:
        next_place = positions.view(-1, *mask.shape)[:, :, -1:].amax(0) + 1
        offsets = next_place - mask.sum(-1, keepdim=True)
        if not self.size:
            self._cache, self._mask, self._offsets = cache, mask, offsets
            return
        self._offsets = torch.cat([self._offsets, offsets])
        length = max(mask.shape[1], self._mask.shape[1])
        for layer, new_layer in zip(self._cache.layers, cache.layers, strict=True):
            layer.keys = torch.cat([_pad_left(t, length) for t in (layer.keys, new_layer.keys)])
            pair = layer.values, new_layer.values
            layer.values = torch.cat([_pad_left(t, length) for t in pair])
        masks = [F.pad(m, (length - m.shape[1], 0)) for m in (self._mask, mask)]
        self._mask = torch.cat(masks)

    def _read(self, row: int, start: int, end: int) -> KeyValues:
        gap = self._mask.shape[1] - int(self._mask[row].sum())
        return _read(self._cache, row, gap + start, gap + end)

    def _reserve(self, rows: Sequence[np.ndarray], copies: Sequence[int]) -> None:
        """Do nothing, because the cache grows with every token."""

    def _repeat(self, rows: Sequence[int]) -> None:
        if rows:
            self._select([*range(self.size), *rows])

    def _select(self, rows: Sequence[int]) -> None:
        picks = torch.tensor(rows, dtype=torch.long, device=self.device)
        self._mask, self._offsets = self._mask[picks], self._offsets[picks]
        self._cache.reorder_cache(picks)

    def _trim(self, length: int) -> None:
        self._mask = self._mask[:, -length:]
        for layer in self._cache.layers:
            layer.keys, layer.values = layer.keys[:, :, -length:], layer.values[:, :, -length:]


def _align_starts(jobs: Sequence[Job]) -> int:
    """Make all rows compute the same number of tokens, and return that number."""
    while True:
        width = max(job.todo for job in jobs)
        starts = [uncut_start(job.tokens, max(0, len(job.tokens) - width)) for job in jobs]
        if starts == [job.start for job in jobs]:
            return width
        for job, start in zip(jobs, starts, strict=True):
            job.start = start


def only_attends(model: Any) -> bool:
    """Return whether a model's only state is keys and values, which can be cached."""
    config = model.config.get_text_config(decoder=True)
    return set(getattr(config, "layer_types", None) or []) <= _ATTENTION


def _padded(job: Job, index: int, length: int) -> Tensor:
    """Return a row's cached tensor ``index``, left-padded with zeros to [H, length, D]."""
    tensor = torch.cat([piece[index] for piece in job.pieces], dim=-2)[:, : job.start]
    return _pad_left(tensor, length)


def _pad_left(tensor: Tensor, length: int) -> Tensor:
    return F.pad(tensor, (0, 0, length - tensor.shape[-2], 0))


def _read(cache: Any, row: int, start: int, end: int) -> KeyValues:
    tensors = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return [tensor[row, :, start:end].clone() for tensor in tensors]
