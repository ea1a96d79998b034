"""Which tokens go through the model, in which order: what rows share goes first, and once.

``shared`` finds what several rows begin with and nothing remembers yet, the shorter beginnings
before the longer ones that go on from them. ``chunks`` lays rows of like lengths side by side.

Shapes: T tokens.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch

from evert.trainers.engine.sampling.prefix_cache import Kept, in_line

LOGITS_BYTES = 2**29  # Most bytes of logits held at once
_CHUNK_TOKENS = {"cpu": 1024, "cuda": 8192}
_PASS_SHARE = 32  # A pass of its own is worth one part in so many of the tokens of a chunk


@dataclass(eq=False)
class Job:
    """A row to be computed."""

    tokens: np.ndarray  # [T] int64
    first: int  # From which token on logits are wanted; T for none
    start: int = 0  # How many of the tokens are remembered
    kept: list[Kept] = field(default_factory=list)  # What is remembered of them, piece after piece

    @property
    def todo(self) -> int:
        """Tokens that must go through the model."""
        return len(self.tokens) - self.start


SomeJob = TypeVar("SomeJob", bound=Job)


@dataclass(frozen=True)
class Shared:
    """What several rows begin with."""

    length: int  # In tokens
    rows: list[int]  # Their numbers


def chunk_tokens(device: torch.device) -> int:
    """Most tokens, padding included, of a pass over given tokens; a GPU wants large ones."""
    return _CHUNK_TOKENS.get(device.type, 1024)


def forget_little(jobs: Sequence[Job], device: torch.device) -> None:
    """Compute again the little that is remembered where that spares a pass of its own."""
    least = chunk_tokens(device) // _PASS_SHARE
    fresh = any(not job.start for job in jobs)
    if fresh and sum(job.start for job in jobs) < least:
        for job in jobs:
            job.start, job.kept = 0, []


def chunks(jobs: Sequence[SomeJob], budget: int) -> Iterator[list[SomeJob]]:
    """Group jobs of like lengths within a budget: new ones first, apart from the resumed."""
    chunk: list[SomeJob] = []
    for job in sorted(jobs, key=lambda job: (job.start > 0, job.todo)):
        mixed = bool(chunk) and (chunk[0].start > 0) != (job.start > 0)
        if chunk and (mixed or (len(chunk) + 1) * job.todo > budget):
            yield chunk
            chunk = []
        chunk.append(job)
    if chunk:
        yield chunk


def beginnings(rows: Sequence[np.ndarray]) -> Iterator[Shared]:
    """Everything that two or more rows begin with, longest for these; the shorter ones first."""
    order, alike = in_line(rows)
    stack = [(0, len(order))]
    while stack:
        low, high = stack.pop()
        if high - low < 2:
            continue
        length = min(alike[low + 1 : high])
        yield Shared(length, order[low:high])
        cuts = [low, *(at for at in range(low + 1, high) if alike[at] == length), high]
        stack += pairwise(cuts)


def shared(
    rows: Sequence[np.ndarray], starts: Sequence[int], device: torch.device, most: int
) -> list[list[Shared]]:
    """What is to be computed once, ahead of the rows that begin with it, level by level.

    Of each row ``starts`` tokens are remembered; beginnings over ``most`` tokens cannot be, and are
    left out, as are those that save less than a pass costs. A level goes on from the one before.
    """
    least = chunk_tokens(device) // _PASS_SHARE
    known, depth = list(starts), [0] * len(rows)
    levels: list[list[Shared]] = []
    for part in beginnings(rows):
        todo = [max(0, part.length - known[row]) for row in part.rows]
        if part.length <= most and sum(todo) - max(todo) >= least:
            level = depth[part.rows[0]]
            levels += [[] for _ in range(level + 1 - len(levels))]
            levels[level].append(part)
            for row in part.rows:
                known[row], depth[row] = max(known[row], part.length), level + 1
    return levels
