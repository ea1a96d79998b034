"""Batches that decode many rows together, one token per step, using a key-value cache.

``LeanBatch`` works with a ``LeanModel``, and ``GenericBatch`` with any Hugging Face causal language
model. Rows can join and leave while the batch is running. Prefixes that rows share with each other
or with earlier rows are computed once and reused from the ``PrefixCache``.

Shapes: B rows, T tokens per row, N tokens whose logits are needed, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from evert.trainers.engine.sampling.prefill import (
    LOGITS_BYTES,
    Job,
    SharedPrefix,
    SomeJob,
    chunk_tokens,
    chunks,
    drop_short_prefixes,
    shared_prefixes,
)
from evert.trainers.engine.sampling.prefix_cache import KeyValues, PrefixCache


class Admitted(NamedTuple):
    """The result of ``admit``, in the order in which new rows were appended to the batch."""

    owners: list[int]  # the index of each new row's prompt
    logits: Tensor  # [new rows, V] float32 logits for the first token to sample in each row


@dataclass(eq=False)
class FrozenModel:
    """A model whose weights don't change, and the prefix cache that its batches share."""

    kind: ClassVar[type["DecodeBatch"]]  # the batch class to use

    model: Any  # a ``LeanModel`` or a Hugging Face model
    vocabulary: int  # number of logits per token
    cache_tokens: int  # maximum number of tokens in the key-value cache, over all rows
    prefixes: PrefixCache  # keys and values computed with this model so far
    base: Any = None  # the shared base model, if any; models with the same base share batches

    def new_batch(self) -> "DecodeBatch":
        """Create an empty batch."""
        return self.kind(self)


class DecodeBatch(ABC):
    """Rows that are decoded together."""

    def __init__(self, weights: FrozenModel) -> None:
        self.weights = weights  # used for the next prompts; callers may switch to another adapter
        self.passes = 0  # number of forward passes over given (not sampled) tokens
        self.computed_tokens = 0  # number of given tokens computed, excluding padding
        self.device: torch.device = weights.model.device
        self._max_logits = max(1, LOGITS_BYTES // (4 * weights.vocabulary))

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of active rows."""

    @property
    def joinable(self) -> bool:
        """Whether rows may be admitted now."""
        return True

    @abstractmethod
    def step(self, tokens: Tensor) -> Tensor:
        """Append one token to each row: [B] ids -> [B, V] logits for the next token."""

    @abstractmethod
    def keep(self, rows: Sequence[int]) -> list[int]:
        """Keep only the given rows. Return the old index of each row that remains."""

    def admit(self, prompts: Sequence[Sequence[int]], copies: Sequence[int]) -> Admitted:
        """Add ``copies[i]`` rows for each prompt ``prompts[i]``. The prompts must be distinct."""
        first = self.size
        rows = [np.asarray(prompt, dtype=np.int64) for prompt in prompts]
        for level in self.shared_prefixes(rows, [len(row) - 1 for row in rows]):
            self._precompute([rows[part.rows[0]][: part.length] for part in level])
        self._reserve(rows, copies)
        jobs = [Job(row, len(row) - 1) for row in rows]
        number = {job: i for i, job in enumerate(jobs)}
        order: list[int] = []
        logits: list[Tensor] = []
        for chunk, parts in self.compute(jobs, join=True):
            order += [number[job] for job in chunk]
            logits += parts
        place = {i: at for at, i in enumerate(order)}
        extra = [place[i] for i in order for _ in range(copies[i] - 1)]
        self._repeat([first + at for at in extra])
        picks = [*range(len(order)), *extra]
        first_logits = torch.cat(logits)[torch.tensor(picks, device=self.device)]
        return Admitted([order[at] for at in picks], first_logits)

    def shared_prefixes(
        self, rows: Sequence[np.ndarray], limits: Sequence[int]
    ) -> list[list[SharedPrefix]]:
        """List the common prefixes to compute before the rows, level by level.

        Row i can use at most ``limits[i]`` cached tokens.
        """
        if len(rows) < 2:
            return []
        prefixes = self.weights.prefixes
        starts = [prefixes.longest(*pair)[0] for pair in zip(rows, limits, strict=True)]
        return shared_prefixes(rows, starts, self.device, prefixes.max_tokens)

    def compute(
        self, jobs: Sequence[SomeJob], *, join: bool = False
    ) -> Iterator[tuple[list[SomeJob], Iterator[Tensor]]]:
        """For each job, compute and cache the tokens that are not cached yet.

        For each pass, yields the jobs in the pass, and an iterator over the logits that these jobs
        need: float32 tensors [N, V], in the order of the jobs. The logits come from an iterator
        because all of them at once may not fit in memory. Jobs whose tokens are all cached are
        skipped. If ``join`` is True, the jobs become rows of the batch.
        """
        for job in jobs:
            job.start, job.pieces = self.weights.prefixes.longest(job.tokens, job.first)
        drop_short_prefixes(jobs, self.device)
        todo = [job for job in jobs if job.todo]
        for chunk in chunks(todo, self._budget(todo)):
            self.passes += 1
            self.computed_tokens += sum(job.todo for job in chunk)
            logits = self._run(chunk, join)
            yield chunk, logits
            deque(logits, maxlen=0)  # exhaust the generator in case the caller hasn't

    def park(self, row: int, tokens: Sequence[int], prefixes: PrefixCache) -> None:
        """Cache a finished row, except its last token, whose keys and values were not computed."""
        computed = np.asarray(tokens[:-1], dtype=np.int64)
        prefixes.put(computed, lambda start, end: self._read(row, start, end))

    def _precompute(self, beginnings: Sequence[np.ndarray]) -> None:
        scratch = type(self)(self.weights)
        for _ in scratch.compute([Job(tokens, len(tokens)) for tokens in beginnings]):
            pass
        self.passes += scratch.passes
        self.computed_tokens += scratch.computed_tokens

    def _cache_jobs(
        self, jobs: Sequence[Job], reader: Callable[[int, int, int], KeyValues]
    ) -> None:
        for place, job in enumerate(jobs):
            self.weights.prefixes.put(job.tokens, partial(reader, place))

    def _budget(self, jobs: Sequence[Job]) -> int:
        """Return the maximum number of tokens in a chunk, including padding."""
        return chunk_tokens(self.device)

    @abstractmethod
    def _run(self, jobs: Sequence[Job], join: bool) -> Iterator[Tensor]:
        """Run and cache a chunk. Yield the logits that its jobs need, as in ``compute``."""

    @abstractmethod
    def _read(self, row: int, start: int, end: int) -> KeyValues:
        """Copy the keys and values of a row's tokens from ``start`` to ``end``."""

    @abstractmethod
    def _repeat(self, rows: Sequence[int]) -> None:
        """Append copies of the given rows."""

    @abstractmethod
    def _reserve(self, rows: Sequence[np.ndarray], copies: Sequence[int]) -> None:
        """Allocate memory for rows that are about to join."""


def logit_places(jobs: Sequence[Job], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return where logits are needed, as [N] row indices in the chunk and [N] token indices."""
    spans = [np.arange(job.first, len(job.tokens)) for job in jobs]
    rows = np.repeat(np.arange(len(jobs)), [len(span) for span in spans])
    columns = np.concatenate(spans)
    return torch.from_numpy(rows).to(device), torch.from_numpy(columns).to(device)


def pad(
    rows: Sequence[Sequence[int] | np.ndarray], device: torch.device, *, on_left: bool = False
) -> Tensor:
    """Stack token lists of different lengths into [B, T] ids, padded with zeros."""
    table = np.zeros((len(rows), max(map(len, rows))), dtype=np.int64)
    for place, row in zip(table, rows, strict=True):
        place[len(place) - len(row) if on_left else 0 :][: len(row)] = row
    return torch.from_numpy(table).to(device)
