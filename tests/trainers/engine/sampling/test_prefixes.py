"""Shared prefixes of prompts are computed only once. These tests count tokens, not seconds."""

import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from tests.kit import Patch
from tests.trainers.engine.sampling.oracle import make_model
from tinker import types

from evert.trainers.engine.sampling import batches, lean_batch
from evert.trainers.engine.sampling.frozen import FrozenGeneric, FrozenLean
from evert.trainers.engine.sampling.prefill import shared_prefixes
from evert.trainers.engine.sampling.prefix_cache import PrefixCache
from evert.trainers.engine.sampling.sampler import ModelSampler
from evert.trainers.engine.sampling.scoring import Scoring, score

CPU = torch.device("cpu")
Make = Callable[..., ModelSampler]
KINDS = pytest.mark.parametrize("kind", [FrozenLean, FrozenGeneric])


def tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 200, length).tolist()  # type: ignore[no-any-return]


def family(shared_length: int, tails: Sequence[int]) -> list[list[int]]:
    start = tokens(shared_length, 0)
    return [start + tokens(length, 1 + i) for i, length in enumerate(tails)]


def ask(
    sampler: ModelSampler, prompts: Sequence[list[int]], samples: int = 1, **options: Any
) -> list[list[types.SampledSequence]]:
    params = types.SamplingParams(**{"max_tokens": 4, "temperature": 0.0, **options})
    futures = [sampler.sample(prompt, samples, params) for prompt in prompts]
    return [future.result(timeout=60) for future in futures]


def put(cache: PrefixCache, row: Sequence[int]) -> list[tuple[int, int]]:
    """Put a row into the cache, with its tokens as values; return the ranges that were copied."""
    read: list[tuple[int, int]] = []

    def copy(start: int, end: int) -> list[torch.Tensor]:
        read.append((start, end))
        return [torch.tensor(row[start:end], dtype=torch.float32)[None, :, None]]

    cache.put(np.array(row), copy)
    return read


def found(cache: PrefixCache, row: Sequence[int]) -> list[int]:
    length, pieces = cache.longest(np.array(row), len(row))
    values = [int(value) for [piece] in pieces for value in piece.flatten()]
    assert length == len(values)
    return values


def test_the_prefix_cache_finds_the_same_prefixes_as_a_naive_search() -> None:
    rng = np.random.default_rng(0)
    cache, rows = PrefixCache(10**6), [rng.integers(0, 2, rng.integers(1, 14)) for _ in range(500)]
    for row in rows:
        put(cache, row.tolist())
    begins = {tuple(row[:n]) for row in rows for n in range(len(row) + 1)}
    for row in (rng.integers(0, 2, 14) for _ in range(500)):
        longest = max(n for n in range(15) if tuple(row[:n]) in begins)
        assert found(cache, row.tolist()) == row[:longest].tolist()
    assert cache.tokens == len(begins) - 1


def test_the_least_recently_used_tail_is_evicted_first_but_never_a_shared_prefix() -> None:
    cache = PrefixCache(12)
    put(cache, [1, 2, 3, 4, 5, 6])
    put(cache, [1, 2, 3, 7, 7])
    put(cache, [8, 8, 8])
    assert cache.tokens == 11
    assert found(cache, [1, 2, 3, 4, 5, 6]) == [1, 2, 3, 4, 5, 6]
    put(cache, [9, 9, 9])
    assert found(cache, [1, 2, 3, 7, 7]) == [1, 2, 3]
    assert found(cache, [1, 2, 3, 4, 5, 6]) == [1, 2, 3, 4, 5, 6]
    assert found(cache, [8, 8, 8]) == [8, 8, 8]
    assert cache.tokens == 12
    put(cache, list(range(20, 40)))
    assert found(cache, [20]) == []


def test_an_evicted_tail_frees_its_memory() -> None:
    cache = PrefixCache(8)
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 5])
    [piece] = cache.longest(np.array([1]), 1)[1][0]
    assert piece.untyped_storage().nbytes() == 4


def test_shared_prefixes_are_computed_level_by_level_if_a_pass_is_worth_it() -> None:
    start, more = tokens(100, 0), tokens(50, 1)
    rows = [start + more + [1], start + more + [2], [*start, 3], [*start[:5], 4]]
    arrays = [np.array(row) for row in rows]
    levels = shared_prefixes(arrays, [0] * 4, CPU, 999)
    parts = [(part.length, sorted(part.rows)) for [part] in levels]
    assert parts == [(100, [0, 1, 2]), (150, [0, 1])]
    assert shared_prefixes(arrays, [100, 100, 100, 5], CPU, 999) == levels[1:]
    assert shared_prefixes(arrays[:1], [0], CPU, 999) == []


@KINDS
def test_prompts_with_a_shared_prefix_cost_only_their_distinct_tokens(
    make: Make, kind: Any
) -> None:
    sampler, prompts = make(kind), family(445, [40] * 64)
    replies = ask(sampler, prompts, samples=4)
    assert sampler.stats.prompt_tokens <= 1.1 * (445 + 64 * 40)
    before = sampler.stats.prompt_tokens
    again = ask(sampler, prompts, samples=4)
    assert sampler.stats.prompt_tokens - before <= 64 * 4
    assert [s.tokens for r in again for s in r] == [s.tokens for r in replies for s in r]
    assert [len(sequences) for sequences in replies] == [4] * 64


@KINDS
def test_turns_and_branches_compute_only_new_tokens(make: Make, kind: Any) -> None:
    sampler, conversation = make(kind), tokens(120, 0)
    for turn in range(5):
        before = sampler.stats.prompt_tokens
        [[reply]] = ask(sampler, [conversation], seed=turn, temperature=1.0, stop=[])
        # Only the last sampled token, which no pass has seen yet, and 20 new tokens are computed.
        assert sampler.stats.prompt_tokens - before == (120 if turn == 0 else 21)
        conversation = conversation + reply.tokens + tokens(20, turn)
    before = sampler.stats.prompt_tokens
    ask(sampler, [conversation[:90] + tokens(10, 5)])
    assert sampler.stats.prompt_tokens - before == 10


@KINDS
def test_a_prompt_reuses_the_prefix_of_a_running_one(make: Make, kind: Any) -> None:
    sampler = make(kind, context_length=2048)
    first, second = family(300, [5, 5])
    running = sampler.sample(first, 1, types.SamplingParams(max_tokens=300, stop=[]))
    while not sampler.stats.prompt_tokens:
        time.sleep(0.001)
    ask(sampler, [second])
    assert not running.done()
    assert sampler.stats.prompt_tokens == 305 + 5
    running.cancel()


@KINDS
def test_rows_with_a_shared_prefix_are_scored_at_the_cost_of_their_distinct_tokens(
    kind: Any, model: Any
) -> None:
    rows = [*family(200, [30, 12, 1, 30]), tokens(9, 50)]
    scorings = [Scoring(np.array(row)) for row in [*rows, rows[0]]]
    with torch.inference_mode():
        batch = kind(model).new_batch()
        computed = score(batch, scorings)
    assert max(computed, batch.computed_tokens) <= 1.1 * (200 + 73 + 9)


@KINDS
def test_only_the_last_n_tokens_are_scored_if_the_rest_is_cached(make: Make, kind: Any) -> None:
    sampler, row = make(kind), tokens(300, 0)
    for last in (5, 3, 300, 1000, 0):
        before = (sampler.stats.prompt_tokens, sampler.stats.scored_tokens)
        values = sampler.score(row, last).result(timeout=60)
        count = min(last, 299)
        assert [value is None for value in values] == [True] * (300 - count) + [False] * count
        assert sampler.stats.scored_tokens - before[1] == count
        assert sampler.stats.prompt_tokens - before[0] == (299 if last == 5 else count)
    done = sampler.stats.prompt_tokens
    ask(sampler, [row])
    assert sampler.stats.prompt_tokens - done == 1  # the last token, whose logits start the reply


@KINDS
def test_scoring_may_apply_any_function_to_the_logits(make: Make, model: Any, kind: Any) -> None:
    def likeliest(logits: torch.Tensor, row: np.ndarray, places: np.ndarray) -> list[Any]:
        return list(zip(logits.argmax(-1).tolist(), row.tolist(), places.tolist(), strict=True))

    sampler, rows = make(kind), family(100, [20, 7])
    futures = [sampler.score(rows[0], 30, likeliest), sampler.score(rows[1], None, likeliest)]
    futures += [sampler.score(rows[0])]
    *answers, plain = [future.result(timeout=60) for future in futures]
    for row, values, known in zip(rows, answers, (90, 1), strict=True):
        with torch.inference_mode():
            best = model(torch.tensor([row])).logits[0].argmax(-1).tolist()
        assert values[:known] == [None] * known
        assert values[known:] == [(best[i - 1], row[i], i) for i in range(known, len(row))]
    assert all(value < 0 for value in plain[1:])


def test_a_shared_prefix_of_many_rows_is_stored_once(model: Any) -> None:
    with torch.inference_mode():
        batch = FrozenLean(model).new_batch()
        batch.admit([start[:450] for start in family(400, [50] * 4)], [3] * 4)
        batch.step(torch.zeros(12, dtype=torch.long))
        assert isinstance(batch, lean_batch.LeanBatch)
        assert batch._cache.length < 200
        batch.keep([])
        batch.admit([tokens(5, 3)], [1])
        assert batch._stem is None


def test_staggered_requests_need_as_many_passes_as_on_the_lean_path(make: Make) -> None:
    others = [make_model(name) for name in ("learned positions", "a sliding window")]
    samplers = [make(), *(make(FrozenGeneric, other) for other in others)]
    for sampler in samplers:
        futures = []
        for i in range(20):
            params = types.SamplingParams(max_tokens=60, stop=[])
            futures.append(sampler.sample([5, 6, 7, i + 1], 1, params))
            before = sampler.stats.forward_passes
            while sampler.stats.forward_passes < before + 3:
                time.sleep(0.0005)
        for future in futures:
            future.result(timeout=60)
    lean, *generic = [sampler.stats.forward_passes for sampler in samplers]
    assert max(generic) <= 1.5 * lean


def test_logits_of_prompt_tokens_are_not_computed(monkeypatch: Patch) -> None:
    model, seen = make_model("learned positions"), list[int]()
    forward = type(model).forward

    def watched(self: Any, *args: Any, **options: Any) -> Any:
        out = forward(self, *args, **options)
        seen.append(out.logits.shape[1])
        return out

    monkeypatch.setattr(batches, "LOGITS_BYTES", 97 * 4 * 50)
    with torch.inference_mode():
        batch = FrozenGeneric(model).new_batch()
        model_type: Any = type(model)
        monkeypatch.setattr(model_type, "forward", functools.wraps(forward)(watched))
        batch.admit([[token % 97 for token in row] for row in family(0, [200, 100, 30])], [1] * 3)
        assert set(seen) == {1}
        rows = [Scoring(np.array([t % 97 for t in row])) for row in family(0, [201, 20, 10])]
        assert score(FrozenGeneric(model).new_batch(), rows) == 228
    assert max(seen) <= 50
