"""Running batches: rows that are decoded together, one token at a time, over a key-value cache.

    Batch (protocol)
    ├── LeanBatch      a LeanModel; rows join and leave while it runs (continuous batching)
    └── GenericBatch   any Hugging Face model; rows leave, but none join a batch that has started

Rows of a ``LeanBatch`` each begin at position 0 of their own stretch of the cache, so lengths may
differ freely and nothing is left-padded. The active rows are always the first ``size`` ones: when
rows finish, the last ones move into the gaps. A finished row's keys and values are kept for a
while (``PrefixCache``), so that the next turn of the same conversation only computes what is new.

Shapes: B rows, T tokens a row, L cache length, Hkv key heads, G queries a key head, D head size,
V vocabulary.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evert.trainers.engine.lean import LeanModel
from evert.trainers.engine.prefix_cache import PrefixCache

_CHUNK_TOKENS = {"cpu": 1024, "cuda": 8192}

_LENGTH_STEP = 64
"""Cache lengths are multiples of this, so that growing is rare."""


class Batch(Protocol):
    """Rows that are decoded together."""

    @property
    def size(self) -> int:
        """Number of active rows."""
        ...

    @property
    def joinable(self) -> bool:
        """Whether rows may be admitted now."""
        ...

    def admit(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> "Admitted":
        """Add ``copies[i]`` rows that begin with ``prompts[i]``; each prompt is computed once."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row: [B] ids -> [B, V] logits of the next token."""
        ...

    def park(self, row: int, tokens: Sequence[int]) -> None:
        """Remember a finished row for a later prompt that begins with the same tokens."""
        ...

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Drop all rows but these; returns, for each row that is left, its old number."""
        ...


class Admitted:
    """What ``admit`` returns: the new rows, in order, after those that were there."""

    def __init__(
        self, owners: list[int], logits: Tensor, computed_tokens: int, passes: int
    ) -> None:
        """Bundle the result.

        Args:
            owners: For each new row, the index of its prompt.
            logits: [new rows, V] logits of the first token to sample, float32.
            computed_tokens: Prompt tokens that went through the model, padding not counted.
            passes: Forward passes it took.
        """
        self.owners = owners
        self.logits = logits
        self.computed_tokens = computed_tokens
        self.passes = passes


class LeanBatch:
    """Continuous batching over a ``LeanModel``."""

    def __init__(self, model: LeanModel, prefixes: PrefixCache) -> None:
        """Start empty; memory is taken as rows arrive."""
        self._model = model
        self._prefixes = prefixes
        self._lengths: list[int] = []
        self._positions = torch.zeros(0, dtype=torch.long, device=model.device)
        shape = (0, model.key_heads, 0, model.head_size)
        self._keys = [self._empty(shape) for _ in model.layers]
        self._values = [self._empty(shape) for _ in model.layers]

    @property
    def size(self) -> int:
        """Number of active rows."""
        return len(self._lengths)

    @property
    def joinable(self) -> bool:
        """Always: rows keep their own positions."""
        return True

    def admit(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Admitted:
        """Add rows; see ``Batch``. Prompts are computed in length order, without the prefixes."""
        first = self.size
        found = [self._prefixes.longest(prompt) for prompt in prompts]
        starts = [length for length, _ in found]
        todo = [len(prompt) - start for prompt, start in zip(prompts, starts, strict=True)]
        order = sorted(range(len(prompts)), key=lambda i: (starts[i] > 0, todo[i]))
        extra = [i for i in order for _ in range(copies[i] - 1)]
        owners = order + extra
        self._reserve(first + len(owners), max(map(len, prompts)) + 1)
        for place, i in enumerate(order):
            self._restore(first + place, starts[i], found[i][1])
        logits, passes = self._compute_prompts(first, order, prompts, starts, todo)
        place_of = {i: place for place, i in enumerate(order)}
        self._copy_rows(
            [first + place_of[i] for i in extra],
            range(first + len(order), first + len(owners)),
            max(map(len, prompts)),
        )
        self._lengths += [len(prompts[i]) for i in owners]
        self._sync_positions()
        picks = torch.tensor([place_of[i] for i in owners], device=logits.device)
        return Admitted(owners, logits[picks], sum(todo), passes)

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row; see ``Batch``."""
        size, longest = self.size, max(self._lengths) + 1
        self._reserve(size, longest)
        rows = torch.arange(size, device=self._model.device)
        length = min(_round_up(longest, 16), self._keys[0].shape[2])
        seen = torch.arange(length, device=self._model.device) <= self._positions[:, None]
        bias = torch.zeros(seen.shape, dtype=self._model.dtype, device=self._model.device)
        bias = bias.masked_fill_(~seen, float("-inf"))[:, None, None]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._keys[layer][rows, :, self._positions] = keys[:, 0]
            self._values[layer][rows, :, self._positions] = values[:, 0]
            grouped = queries[:, 0].view(size, keys.shape[2], -1, keys.shape[3])
            scores = grouped @ self._keys[layer][:size, :, :length].transpose(-1, -2) + bias
            mixed = torch.softmax(scores, dim=-1) @ self._values[layer][:size, :, :length]
            return mixed.flatten(1)[:, None]

        hidden = self._model.hidden(tokens[:, None], self._positions[:, None], attend)
        self._lengths = [length + 1 for length in self._lengths]
        self._positions = self._positions + 1
        return self._model.logits(hidden[:, 0])

    def park(self, row: int, tokens: Sequence[int]) -> None:
        """Remember a finished row; see ``Batch``."""
        length = self._lengths[row]
        pairs = zip(self._keys, self._values, strict=True)
        layers = [(k[row, :, :length].clone(), v[row, :, :length].clone()) for k, v in pairs]
        self._prefixes.put(tokens[:length], layers)

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Drop all rows but these; the last ones kept fill the gaps the others leave."""
        kept = sorted(rows)
        count = len(kept)
        gaps = sorted(set(range(count)) - set(kept))
        movers = [row for row in kept if row >= count]
        longest = max((self._lengths[row] for row in movers), default=0)
        self._copy_rows(movers, gaps, longest)
        origin = list(range(count))
        for gap, mover in zip(gaps, movers, strict=True):
            origin[gap] = mover
        self._lengths = [self._lengths[row] for row in origin]
        self._sync_positions()
        return origin

    def _compute_prompts(
        self,
        first: int,
        order: Sequence[int],
        prompts: Sequence[Sequence[int]],
        starts: Sequence[int],
        todo: Sequence[int],
    ) -> tuple[Tensor, int]:
        logits, at = [], 0
        for chunk in _chunks(order, todo, starts, chunk_tokens(self._model.device)):
            tails = [prompts[i][starts[i] :] for i in chunk]
            offsets = [starts[i] for i in chunk]
            logits.append(self._compute_chunk(first + at, tails, offsets))
            at += len(chunk)
        return torch.cat(logits), len(logits)

    def _compute_chunk(
        self, row: int, tails: Sequence[Sequence[int]], starts: Sequence[int]
    ) -> Tensor:
        """Run the tails of some prompts, rows ``row`` onwards; returns [rows, V] last logits."""
        device = self._model.device
        tokens = pad(tails, device)
        offset = torch.tensor(starts, device=device)[:, None]
        positions = offset + torch.arange(tokens.shape[1], device=device)
        # Padding goes where no row has anything yet; it is overwritten before it is ever seen.
        positions = positions.clamp_(max=self._keys[0].shape[2] - 1)
        resumed = any(starts)
        attend = self._attend_resumed(row, positions) if resumed else self._attend_fresh(row)
        hidden = self._model.hidden(tokens, positions, attend)
        last = torch.tensor([len(tail) - 1 for tail in tails], device=device)
        return self._model.logits(hidden[torch.arange(len(tails), device=device), last])

    def _attend_fresh(self, row: int) -> Any:
        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            stretch = slice(row, row + keys.shape[0]), slice(None), slice(keys.shape[1])
            self._keys[layer][stretch] = keys.transpose(1, 2)
            self._values[layer][stretch] = values.transpose(1, 2)
            return causal_attention(layer, queries, keys, values)

        return attend

    def _attend_resumed(self, row: int, positions: Tensor) -> Any:
        rows = torch.arange(row, row + positions.shape[0], device=positions.device)[:, None]
        length = int(positions.max()) + 1
        columns = torch.arange(length, device=positions.device)
        seen = (columns <= positions[..., None])[:, None]

        def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            self._keys[layer][rows, :, positions] = keys
            self._values[layer][rows, :, positions] = values
            stretch = slice(row, row + keys.shape[0]), slice(None), slice(length)
            return _attention(
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

    def _restore(self, row: int, length: int, layers: list[tuple[Tensor, Tensor]]) -> None:
        for layer, (keys, values) in enumerate(layers):
            self._keys[layer][row, :, :length] = keys
            self._values[layer][row, :, :length] = values

    def _copy_rows(self, sources: Sequence[int], targets: Sequence[int], length: int) -> None:
        if not sources:
            return
        origin = torch.tensor(sources, device=self._model.device)
        target = torch.tensor(list(targets), device=self._model.device)
        for tensor in (*self._keys, *self._values):
            tensor[target, :, :length] = tensor[origin, :, :length]

    def _sync_positions(self) -> None:
        self._positions = torch.tensor(self._lengths, dtype=torch.long, device=self._model.device)

    def _empty(self, shape: tuple[int, ...]) -> Tensor:
        # Zeros, not garbage: a masked weight of 0 times an accidental NaN would still be NaN.
        return torch.zeros(shape, dtype=self._model.dtype, device=self._model.device)


class GenericBatch:
    """A left-padded batch over any Hugging Face causal language model."""

    def __init__(self, model: Any) -> None:
        """Start empty; ``admit`` may be called once."""
        self._model = model
        self._cache: Any = None
        self._mask = torch.zeros(0, 0, dtype=torch.long)

    @property
    def size(self) -> int:
        """Number of active rows."""
        return self._mask.shape[0]

    @property
    def joinable(self) -> bool:
        """Only before the first row."""
        return self._cache is None

    def admit(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Admitted:
        """Add the rows; see ``Batch``."""
        from transformers import DynamicCache

        device = self._model.device
        tokens = pad(prompts, device, left=True)
        self._mask = pad([[1] * len(prompt) for prompt in prompts], device, left=True)
        self._cache = DynamicCache(config=self._model.config)
        logits = self._forward(tokens, (self._mask.cumsum(-1) - 1).clamp_(min=0))
        owners = [i for i, count in enumerate(copies) for _ in range(count)]
        picks = self._select(owners)
        return Admitted(owners, logits[picks], sum(map(len, prompts)), 1)

    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to every row; see ``Batch``."""
        positions = self._mask.sum(-1, keepdim=True)
        self._mask = F.pad(self._mask, (0, 1), value=1)
        return self._forward(tokens[:, None], positions)

    def park(self, row: int, tokens: Sequence[int]) -> None:
        """Nothing is remembered: a prompt cannot join a batch of another length."""

    def keep(self, rows: Sequence[int]) -> list[int]:
        """Drop all rows but these, in their order."""
        kept = sorted(rows)
        self._select(kept)
        return kept

    def _forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        out = self._model(
            input_ids=tokens,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        logits: Tensor = out.logits[:, -1].float()
        return logits

    def _select(self, rows: Sequence[int]) -> Tensor:
        picks = torch.tensor(rows, dtype=torch.long, device=self._mask.device)
        self._mask = self._mask[picks]
        self._cache.batch_select_indices(picks)
        return picks


def causal_attention(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Each token sees itself and what came before it in its row; no cache."""
    return _attention(queries, keys.transpose(1, 2), values.transpose(1, 2), mask=None)


def _attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
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


def chunk_tokens(device: torch.device) -> int:
    """Most tokens, padding included, that a forward pass over given tokens should have.

    On a CPU small passes waste less on padding and lose nothing; a GPU wants large ones.
    """
    return _CHUNK_TOKENS.get(device.type, 1024)


def pad(rows: Sequence[Sequence[int]], device: torch.device, *, left: bool = False) -> Tensor:
    """Stack token lists of different lengths: [B, T] ids, zeros where a row has no token."""
    table = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for place, row in zip(table, rows, strict=True):
        place[len(place) - len(row) if left else 0 :][: len(row)] = row
    return torch.from_numpy(table).to(device)


def _chunks(
    order: Sequence[int], lengths: Sequence[int], starts: Sequence[int], budget: int
) -> list[list[int]]:
    """Cut ``order`` where the padded size would pass the budget, or prefixes begin."""
    chunks: list[list[int]] = []
    for i in order:
        last = chunks[-1] if chunks else None
        if (
            last is None
            or (starts[last[0]] > 0) != (starts[i] > 0)
            or (len(last) + 1) * lengths[i] > budget
        ):
            chunks.append([i])
        else:
            last.append(i)
    return chunks


def _round_up(number: int, multiple: int) -> int:
    return -(-number // multiple) * multiple
