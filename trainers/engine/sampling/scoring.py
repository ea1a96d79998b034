"""Scores given tokens: reads a value from each token's logits, without materializing all logits.

A common prefix of several rows is computed only once. Its logits are read once per reader, not once
per row. If only the last tokens of a row are needed, the row starts from its cached prefix.

Shapes: N tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from evert.trainers.engine.sampling.batches import DecodeBatch
from evert.trainers.engine.sampling.prefill import Job

Reader: TypeAlias = Callable[[Tensor, np.ndarray, np.ndarray], Sequence[Any]]
"""(logits [N, V], tokens [N], the tokens' indices in their rows [N]) -> N values.

A token's logits are the logits from which this token would be sampled. A reader is called several
times, until it has seen the tokens of all its rows.
"""


def log_probabilities(logits: Tensor, tokens: np.ndarray, places: np.ndarray) -> list[float | None]:
    """Return each token's log-probability, or None for image tokens, which are never sampled."""
    targets = torch.from_numpy(tokens.clip(0)).to(logits.device)
    logprobs: list[float | None] = (-F.cross_entropy(logits, targets, reduction="none")).tolist()
    for place in np.flatnonzero(tokens < 0).tolist():
        logprobs[place] = None
    return logprobs


@dataclass(eq=False)
class Scoring:
    """A row of tokens, and the values read from their logits."""

    tokens: np.ndarray  # [T] int64
    next: int = 1  # index of the next token to score; token 0 has no logits, as nothing precedes it
    reader: Reader = log_probabilities
    values: list[Any] = field(default_factory=list)  # filled in by ``score``


@dataclass(eq=False)
class _PromptPart(Job):
    following: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # [T]
    askers: list[Scoring] = field(default_factory=list)


def score(batch: DecodeBatch, rows: Sequence[Scoring]) -> int:
    """Fill in the rows' values, without adding rows to the batch. Return the number of values."""
    computed = 0
    limits = [row.next - 1 for row in rows]
    for level in batch.shared_prefixes([row.tokens for row in rows], limits):
        parts = [
            _part(rows[part.rows[0]].tokens[: part.length], [rows[i] for i in part.rows])
            for part in level
            if rows[part.rows[0]].tokens[part.length - 1] >= 0  # a prefix must not split an image
        ]
        computed += _compute(batch, parts)
    remaining = [_part(row.tokens, [row]) for row in rows if row.next < len(row.tokens)]
    return computed + _compute(batch, remaining)


def _part(tokens: np.ndarray, askers: Sequence[Scoring]) -> _PromptPart:
    waiting = [asker for asker in askers if asker.next < len(tokens)]
    first = min((asker.next for asker in waiting), default=len(tokens))
    return _PromptPart(tokens[:-1], first - 1, following=tokens[1:], askers=waiting)


def _compute(batch: DecodeBatch, parts: Sequence[_PromptPart]) -> int:
    computed = 0
    for jobs, logits in batch.compute(parts):
        places = np.concatenate([np.arange(job.first, len(job.tokens)) for job in jobs]) + 1
        tokens = np.concatenate([job.following[job.first :] for job in jobs])
        ends = np.cumsum([len(job.tokens) - job.first for job in jobs]).tolist()
        pending = [
            (asker, slice(end - len(job.tokens) - 1 + asker.next, end))
            for job, end in zip(jobs, ends, strict=True)
            for asker in job.askers
        ]
        masks: dict[Reader, np.ndarray] = {}
        for asker, span in pending:
            masks.setdefault(asker.reader, np.zeros(len(tokens), bool))[span] = True
        results = _read(logits, tokens, places, masks)
        for asker, span in pending:
            before = int(masks[asker.reader][: span.start].sum())
            values = results[asker.reader][before : before + span.stop - span.start]
            asker.values += values
            asker.next += len(values)
        computed += sum(map(len, results.values()))
    return computed


def _read(
    logits: Iterator[Tensor],
    tokens: np.ndarray,
    places: np.ndarray,
    masks: dict[Reader, np.ndarray],
) -> dict[Reader, list[Any]]:
    results: dict[Reader, list[Any]] = {reader: [] for reader in masks}
    start = 0
    for part in logits:
        end = start + len(part)
        for reader, chosen in masks.items():
            picks = chosen[start:end].nonzero()[0]
            if len(picks):
                rows = part if len(picks) == len(part) else part[torch.from_numpy(picks)]
                results[reader] += reader(rows, tokens[start:end][picks], places[start:end][picks])
        start = end
    return results
