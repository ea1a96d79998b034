"""Orders the tokens to compute: common prefixes of rows are computed first, once.

``shared_prefixes`` finds common prefixes that are not cached yet, each before the longer prefixes
that extend it. ``chunks`` puts rows of similar lengths into one pass.

Shapes: T tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

from evert.trainers.engine.sampling.prefix_cache import KeyValues, sort_by_tokens

LOGITS_BYTES = 2**29  # Maximum size of the logits held at a time
_CHUNK_TOKENS = {"cpu": 1024, "cuda": 8192}
_PASS_SHARE = 32  # An extra pass costs as much as 1/32 of a chunk's tokens


@dataclass(eq=False)
class Job:
    """A row to be computed."""

    tokens: np.ndarray  # [T] int64
    first: int  # First token whose logits are needed; T for none
    start: int = 0  # Number of tokens that are cached
    pieces: list[KeyValues] = field(default_factory=list)  # Their keys and values

    @property
    def todo(self) -> int:
        """Number of tokens that must go through the model."""
        return len(self.tokens) - self.start


SomeJob = TypeVar("SomeJob", bound=Job)


@dataclass(frozen=True)
class SharedPrefix:
    """A common prefix of several rows."""

    length: int  # In tokens
    rows: list[int]  # Their indices


def chunk_tokens(device: torch.device) -> int:
    """Return the maximum number of given tokens per pass, padding included; larger on a GPU."""
    return _CHUNK_TOKENS.get(device.type, 1024)


def drop_short_prefixes(jobs: Sequence[Job], device: torch.device) -> None:
    """Drop short cached prefixes if recomputing them saves a pass."""
    least = chunk_tokens(device) // _PASS_SHARE
    fresh = any(not job.start for job in jobs)
    if fresh and sum(job.start for job in jobs) < least:
        for job in jobs:
            job.start, job.pieces = 0, []


def chunks(jobs: Sequence[SomeJob], budget: int) -> Iterator[list[SomeJob]]:
    """Group jobs of similar lengths within a budget, uncached ones first, in separate groups."""
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
    """Yield the longest common prefix of each group of rows, each before its extensions."""
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
    """List the common prefixes to compute once, before the rows that have them, level by level.

    ``starts[i]`` tokens of row i are cached. Prefixes of more than ``limit`` tokens, which cannot
    be cached, and prefixes that save less than a pass costs are left out.
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
