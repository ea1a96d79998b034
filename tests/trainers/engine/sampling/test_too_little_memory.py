"""Sampling when the requests need more memory than is available."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from tests.kit import Patch
from tests.trainers.engine.sampling.test_sampler import params, prompts
from tests.trainers.kit import spied
from torch import Tensor

from evert.trainers.engine.sampling import scheduler
from evert.trainers.engine.sampling.frozen import FrozenGeneric, FrozenLean
from evert.trainers.engine.sampling.generic_batch import GenericBatch
from evert.trainers.engine.sampling.lean_batch import LeanBatch
from evert.trainers.engine.sampling.row_cache import RowCache
from evert.trainers.engine.sampling.running_batch import RunningBatch
from evert.trainers.engine.sampling.sampler import ModelSampler

Make = Callable[..., ModelSampler]
KINDS = [FrozenLean, FrozenGeneric]
FEW, MANY = prompts(*range(5, 13)), prompts(*range(5, 37))


class Near(list[float]):
    """A list of numbers that is equal to any list with nearly the same numbers."""

    def __eq__(self, other: object) -> bool:
        return [*self] == pytest.approx(other, abs=1e-4)


def drawn(sampler: ModelSampler, rows: Sequence[Sequence[int]], tokens: int) -> list[Any]:
    """Sample two replies to each prompt; return their tokens and all log-probabilities."""
    futures = [sampler.sample(row, 2, params(max_tokens=tokens)) for row in rows]
    replies = [reply for future in futures for reply in future.result(timeout=60)]
    logprobs = [logprob for reply in replies for logprob in reply.logprobs or ()]
    return [[reply.tokens for reply in replies], Near(logprobs)]


def longest(run: RunningBatch) -> int:
    return max(row.length for row in run.rows)


@pytest.mark.parametrize("kind", KINDS)
def test_long_replies_wait_for_each_other_without_changing_the_samples(
    make: Make, monkeypatch: Patch, kind: Any
) -> None:
    expected = drawn(make(kind), FEW, 40)
    held = spied(monkeypatch, RunningBatch, "step", lambda run: len(run.rows) * longest(run))
    monkeypatch.setattr(scheduler, "_EXPECTED_REPLY", 4)
    sampler = make(kind)
    sampler._model.cache_tokens = 200
    assert drawn(sampler, FEW, 40) == expected
    assert 150 < max(held) <= 200
    assert 4 < sampler.stats.largest_batch < 16


@pytest.mark.parametrize("batch", [LeanBatch, GenericBatch])
def test_running_out_of_memory_reduces_the_batch_without_changing_the_samples(
    make: Make, monkeypatch: Patch, batch: Any
) -> None:
    kind = KINDS[batch is GenericBatch]
    expected = drawn(make(kind), MANY, 9)
    run_out(monkeypatch, batch, "step", lambda full, tokens: full.size > 11)
    sampler = make(kind)
    assert drawn(sampler, MANY, 9) == expected
    assert sampler.stats.largest_batch > 11


def test_only_the_request_that_needs_too_much_memory_fails(make: Make, monkeypatch: Patch) -> None:
    expected = drawn(make(), FEW, 9)
    run_out(monkeypatch, RowCache, "_empty", lambda cache, rows, length: rows * length > 500)
    sampler = make()
    long = prompts(480)[0]
    failing: Any = [sampler.sample(long[:300], 1, params(max_tokens=200)), sampler.score(long)]
    shorter = [sampler.score(row) for row in FEW]
    assert drawn(sampler, FEW, 9) == expected
    for future in failing:
        with pytest.raises(torch.OutOfMemoryError):
            future.result(timeout=60)
    scores = [future.result(timeout=60) for future in shorter]
    assert [len(values) for values in scores] == [*map(len, FEW)]
    assert drawn(sampler, MANY, 2)


def run_out(monkeypatch: Patch, owner: Any, name: str, is_full: Callable[..., bool]) -> None:
    """Make a method run out of memory whenever ``is_full`` returns True."""
    method = getattr(owner, name)

    def limited(self: Any, *args: Any) -> Tensor:
        if is_full(self, *args):
            raise torch.OutOfMemoryError("There is no memory left.")
        return method(self, *args)  # type: ignore[no-any-return]

    monkeypatch.setattr(owner, name, limited)
