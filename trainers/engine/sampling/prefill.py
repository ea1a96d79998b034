"""Decides the order in which tokens are computed, so that common prefixes are computed only once.

``shared_prefixes`` finds common prefixes that are not cached yet, listing each one before longer
prefixes that extend it. ``chunks`` groups rows of similar lengths into passes.

Shapes: T tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

from evert.trainers.engine.sampling.prefix_cache import KeyValues, sort_by_tokens

LOGITS_BYTES = 2**29  # maximum size of the logits that are in memory at once
_CHUNK_TOKENS = {"cpu": 1024, "cuda": 8192}
_PASS_SHARE = 32  # an extra pass costs as much as computing 1/32 of a chunk


@dataclass(eq=False)
class Job:
    """A row to compute."""

    tokens: np.ndarray  # [T] int64
    first: int  # first token whose logits are needed, or T if no logits are needed
    start: int = 0  # number of cached tokens
    pieces: list[KeyValues] = field(default_factory=list)  # the cached keys and values

    @property
    def todo(self) -> int:
        """Number of tokens that still have to be computed."""
        return len(self.tokens) - self.start


SomeJob = TypeVar("SomeJob", bound=Job)


@dataclass(frozen=True)
class SharedPrefix:
    """A common prefix of several rows."""

    length: int  # in tokens
    rows: list[int]  # row indices


def chunk_tokens(device: torch.device) -> int:
    """Return the maximum number of given tokens per pass, including padding."""
    return _CHUNK_TOKENS.get(device.type, 1024)


def drop_short_prefixes(jobs: Sequence[Job], device: torch.device) -> None:
    """Ignore short cached prefixes if recomputing them saves a pass."""
    least = chunk_tokens(device) // _PASS_SHARE
    fresh = any(not job.start for job in jobs)
    if fresh and sum(job.start for job in jobs) < least:
        for job in jobs:
            job.start, job.pieces = 0, []


def chunks(jobs: Sequence[SomeJob], budget: int) -> Iterator[list[SomeJob]]:
    """Group jobs of similar lengths within a token budget.

    Jobs without cached tokens come first, and are never grouped with jobs with cached tokens.
    """
    chunk: list[SomeJob] = []
    for job in sorted(jobs, key=lambda job: (job.start > 0, job.todo)):
        mixed = bool(chunk) and (chunk[0].start > 0) != (job.start > 0)
        if chunk and (mixed or (len(chunk) + 1) * job.todo > budget):
            yield chunk
            chunk = []
        chunk.append(job)
    if chunk:
        yield chunk


def common_prefixes(rows: Sequence[np.ndarray]) -> Iterator[SharedPrefix]:
    """Yield the common prefixes of groups of rows, each before the prefixes that extend it."""
    order, overlaps = sort_by_tokens(rows)
    stack = [(0, len(order))]
    while stack:
        low, high = stack.pop()
        if high - low < 2:
            continue
        length = min(overlaps[low + 1 : high])
        yield SharedPrefix(length, order[low:high])
        cuts = [low, *(at for at in range(low + 1, high) if overlaps[at] == length), high]
        stack += pairwise(cuts)


def shared_prefixes(
    rows: Sequence[np.ndarray], starts: Sequence[int], device: torch.device, limit: int
) -> list[list[SharedPrefix]]:
    """List, level by level, the common prefixes that are worth computing before the rows.

    ``starts[i]`` tokens of row i are already cached. A prefix is skipped if it has more than
    ``limit`` tokens, so that it can't be cached, or if computing it first saves less than an extra
    pass costs.
    """
    least = chunk_tokens(device) // _PASS_SHARE
    cached, depth = list(starts), [0] * len(rows)
    levels: list[list[SharedPrefix]] = []
    for part in common_prefixes(rows):
        todo = [max(0, part.length - cached[row]) for row in part.rows]
        if part.length <= limit and sum(todo) - max(todo) >= least:
            level = depth[part.rows[0]]
            levels += [[] for _ in range(level + 1 - len(levels))]
            levels[level].append(part)
            for row in part.rows:
                cached[row], depth[row] = max(cached[row], part.length), level + 1
    return levels
