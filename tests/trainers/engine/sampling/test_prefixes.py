"""What prompts begin with alike is computed once: counted in tokens, never in seconds.

1. The cache finds, to the token, whatever begins like a row that was put into it, keeps to its
   size, and forgets what was not used for longest.
2. Rows that are admitted together, prompts that are asked again, turns and branches of a
   conversation: what is computed are the distinct tokens.
3. Scoring: distinct tokens too; of the last n, those alone, where the rest is remembered.
4. Decoding: what many rows begin with is held once, whoever joins and leaves.
5. Any model: rows join a batch that runs, and logits of prompts are not kept.

Whatever is shared, the log-probabilities are those of a fresh forward pass.
"""

import functools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tinker import types

from evert.trainers.engine.models.base_models import attach_lora, load_model, load_tokenizer
from evert.trainers.engine.models.shared import SharedBases
from evert.trainers.engine.sampling import batches, lean_batch, stem
from evert.trainers.engine.sampling.frozen import FrozenGeneric, FrozenLean, freeze
from evert.trainers.engine.sampling.prefill import shared
from evert.trainers.engine.sampling.prefix_cache import PrefixCache
from evert.trainers.engine.sampling.sampler import Sampler
from evert.trainers.engine.sampling.scoring import Scoring, score

CPU = torch.device("cpu")
Make = Callable[..., Sampler]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Any:
    return load_model(tiny_model, CPU, torch.float32)


@pytest.fixture(params=[FrozenLean, FrozenGeneric])
def make(request: pytest.FixtureRequest, model: Any, tiny_model: str) -> Iterator[Make]:
    made: list[Sampler] = []

    def build(**options: Any) -> Sampler:
        settings: dict[str, Any] = {"context_length": 2048, "end_tokens": frozenset(), "seed": 0}
        frozen = request.param(model)
        made.append(Sampler(frozen, load_tokenizer(tiny_model), **{**settings, **options}))
        return made[-1]

    yield build
    for sampler in made:
        sampler.close()


def tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 200, length).tolist()  # type: ignore[no-any-return]


def family(shared_length: int, tails: Sequence[int]) -> list[list[int]]:
    """Prompts that begin alike."""
    start = tokens(shared_length, 0)
    return [start + tokens(length, 1 + i) for i, length in enumerate(tails)]


def ask(
    sampler: Sampler, prompts: Sequence[list[int]], samples: int = 1, **options: Any
) -> list[list[types.SampledSequence]]:
    params = types.SamplingParams(**{"max_tokens": 4, "temperature": 0.0, **options})
    futures = [sampler.sample(prompt, samples, params) for prompt in prompts]
    return [future.result(timeout=60) for future in futures]


def fresh_logprobs(model: Any, row: Sequence[int]) -> list[float]:
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([list(row)])).logits[0].float(), -1)
    return [float(logprobs[i - 1, row[i]]) for i in range(1, len(row))]


# -- 1. the cache --------------------------------------------------------------------------------


def kept(row: Sequence[int]) -> list[torch.Tensor]:
    """Something to keep that says which tokens it is of."""
    return [torch.tensor(row, dtype=torch.float32)[None, :, None]]


def put(cache: PrefixCache, row: Sequence[int]) -> list[tuple[int, int]]:
    """Put a row; returns what was read of it."""
    read: list[tuple[int, int]] = []

    def copy(start: int, end: int) -> list[torch.Tensor]:
        read.append((start, end))
        return kept(row[start:end])

    cache.put(np.array(row), copy)
    return read


def found(cache: PrefixCache, row: Sequence[int]) -> list[int]:
    length, pieces = cache.longest(np.array(row), len(row))
    values = [int(value) for [piece] in pieces for value in piece.flatten()]
    assert length == len(values)
    return values


def test_the_longest_beginning_is_found_to_the_token() -> None:
    cache = PrefixCache(100)
    assert put(cache, [1, 2, 3, 4, 5]) == [(0, 5)]
    assert put(cache, [1, 2, 3, 9, 9]) == [(3, 5)]
    assert put(cache, [1, 2, 3, 9, 9, 7]) == [(5, 6)]
    assert put(cache, [1, 2]) == []
    assert found(cache, [1, 2, 3, 4, 8]) == [1, 2, 3, 4]
    assert found(cache, [1, 2, 3, 9, 9, 7, 7]) == [1, 2, 3, 9, 9, 7]
    assert found(cache, [1, 2, 8]) == [1, 2]
    assert found(cache, [2]) == []
    assert cache.tokens == 8


def test_a_thousand_rows_are_found_as_a_plain_search_finds_them() -> None:
    rng = np.random.default_rng(0)
    cache, rows = PrefixCache(10**6), [rng.integers(0, 2, rng.integers(1, 14)) for _ in range(500)]
    for row in rows:
        put(cache, row.tolist())
    begins = {tuple(row[:n]) for row in rows for n in range(len(row) + 1)}
    for row in (rng.integers(0, 2, 14) for _ in range(500)):
        longest = max(n for n in range(15) if tuple(row[:n]) in begins)
        assert found(cache, row.tolist()) == row[:longest].tolist()
    assert cache.tokens == len(begins) - 1


def test_what_was_not_used_for_longest_goes_first_and_never_what_others_go_on_from() -> None:
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


def test_what_is_cut_off_gives_its_memory_back() -> None:
    cache = PrefixCache(8)
    put(cache, [1, 2, 3, 4])
    put(cache, [1, 5])
    [piece] = cache.longest(np.array([1]), 1)[1][0]
    assert piece.untyped_storage().nbytes() == 4


def test_beginnings_come_level_by_level_and_only_where_a_pass_pays() -> None:
    start, more = tokens(100, 0), tokens(50, 1)
    rows = [start + more + [1], start + more + [2], [*start, 3], [*start[:5], 4]]
    levels = shared([np.array(row) for row in rows], [0] * 4, CPU, 999)
    assert [[(part.length, sorted(part.rows)) for part in level] for level in levels] == [
        [(100, [0, 1, 2])],
        [(150, [0, 1])],
    ]
    assert shared([np.array(row) for row in rows], [100, 100, 100, 5], CPU, 999) == levels[1:]
    assert shared([np.array(rows[0])], [0], CPU, 999) == []


# -- 2. sampling ---------------------------------------------------------------------------------


def test_many_prompts_behind_one_cost_their_distinct_tokens(make: Make) -> None:
    sampler, prompts = make(), family(1145, [40] * 64)
    replies = ask(sampler, prompts, samples=8)
    assert sampler.stats.prompt_tokens <= 1.1 * (1145 + 64 * 40)
    before = sampler.stats.prompt_tokens
    again = ask(sampler, prompts, samples=8)
    assert sampler.stats.prompt_tokens - before <= 64 * 4
    assert [s.tokens for r in again for s in r] == [s.tokens for r in replies for s in r]
    assert len(replies) == 64
    assert all(len(sequences) == 8 for sequences in replies)


def test_what_is_shared_changes_no_token(make: Make, model: Any) -> None:
    prompts = [*family(120, [40, 3, 17, 40, 1]), *family(60, [5, 9]), tokens(30, 99)]
    together = [s.tokens for replies in ask(make(), prompts, 2) for s in replies]
    alone = [s.tokens for prompt in prompts for s in ask(make(), [prompt], 2)[0]]
    assert together == alone


def test_a_ten_turn_episode_prefills_the_tail_of_each_turn(make: Make, model: Any) -> None:
    sampler, conversation = make(), tokens(120, 0)
    for turn in range(10):
        before = sampler.stats.prompt_tokens
        [[reply]] = ask(sampler, [conversation], seed=turn, temperature=1.0)
        new = sampler.stats.prompt_tokens - before
        # The last sampled token, which no pass has seen, and the twenty after it.
        assert new == (120 if turn == 0 else 21)
        expected = fresh_logprobs(model, conversation + reply.tokens)[len(conversation) - 1 :]
        assert reply.logprobs == pytest.approx(expected, abs=1e-4)
        conversation = conversation + reply.tokens + tokens(20, turn)


def test_branches_of_a_conversation_go_on_from_where_they_part(make: Make) -> None:
    sampler, root = make(), tokens(200, 0)
    ask(sampler, [root])
    before = sampler.stats.prompt_tokens
    ask(sampler, [root[:150] + tokens(10, 5)])
    assert sampler.stats.prompt_tokens - before == 10


def test_a_prompt_that_joins_while_another_runs_takes_what_they_share(make: Make) -> None:
    sampler = make()
    first, second = family(300, [5, 5])
    running = sampler.sample(first, 1, types.SamplingParams(max_tokens=300, stop=[]))
    while not sampler.stats.prompt_tokens:
        time.sleep(0.001)
    ask(sampler, [second])
    assert not running.done()
    assert sampler.stats.prompt_tokens == 305 + 5
    running.cancel()


# -- 3. scoring ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [FrozenLean, FrozenGeneric])
def test_rows_that_begin_alike_are_scored_in_their_distinct_tokens(kind: Any, model: Any) -> None:
    rows = [*family(200, [30, 12, 1, 30]), tokens(9, 50)]
    asked = [Scoring(np.array(row)) for row in [*rows, rows[0]]]
    with torch.inference_mode():
        batch = kind(model).new_batch()
        computed = score(batch, asked)
    for row, scored in zip([*rows, rows[0]], asked, strict=True):
        assert scored.values == pytest.approx(fresh_logprobs(model, row), abs=1e-4)
    distinct = 200 + 73 + 9
    assert batch.computed_tokens <= 1.1 * distinct
    assert computed <= 1.1 * distinct


def test_the_last_n_alone_are_scored_where_the_rest_is_remembered(make: Make, model: Any) -> None:
    sampler, row = make(), tokens(300, 0)
    for last in (5, 3, 300, 1000, 0):
        before = (sampler.stats.prompt_tokens, sampler.stats.scored_tokens)
        values = sampler.score(row, last).result(timeout=60)
        asked = min(last, 299)
        assert values[: 300 - asked] == [None] * (300 - asked)
        expected = fresh_logprobs(model, row)[299 - asked :]
        assert values[300 - asked :] == pytest.approx(expected, abs=1e-4)
        assert sampler.stats.scored_tokens - before[1] == asked
        assert sampler.stats.prompt_tokens - before[0] == (299 if last == 5 else asked)


def test_a_prompt_that_was_scored_is_not_computed_again_to_sample_from(make: Make) -> None:
    sampler, row = make(), tokens(100, 0)
    sampler.score(row, 5).result(timeout=60)
    ask(sampler, [row])
    assert sampler.stats.prompt_tokens == 100


def test_anything_may_be_asked_of_the_logits(make: Make, model: Any) -> None:
    def likeliest(logits: torch.Tensor, row: np.ndarray, places: np.ndarray) -> list[Any]:
        return list(zip(logits.argmax(-1).tolist(), row.tolist(), places.tolist(), strict=True))

    sampler, rows = make(), family(100, [20, 7])
    futures = [sampler.score(rows[0], 30, likeliest), sampler.score(rows[1], None, likeliest)]
    futures += [sampler.score(rows[0])]
    *found, plain = [future.result(timeout=60) for future in futures]
    for row, values, known in zip(rows, found, (90, 1), strict=True):
        with torch.inference_mode():
            best = model(torch.tensor([row])).logits[0].argmax(-1).tolist()
        assert values[:known] == [None] * known
        assert values[known:] == [(best[i - 1], row[i], i) for i in range(known, len(row))]
    assert plain[1:] == pytest.approx(fresh_logprobs(model, rows[0]), abs=1e-4)


# -- 4. decoding ---------------------------------------------------------------------------------


@pytest.fixture
def stems(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Lengths of the stems that batches found; even short ones are worth it."""
    found: list[int] = []

    def find(*args: Any) -> Any:
        if (tokens := stem.best_stem(*args)) is not None:
            found.append(len(tokens))
        return tokens

    monkeypatch.setattr(stem, "_LEAST_SAVED", 100)
    monkeypatch.setattr(stem, "_LEAST_LENGTH", 1)
    monkeypatch.setattr(lean_batch, "best_stem", find)
    return found


def check(model: Any, prompt: list[int], sequence: types.SampledSequence) -> None:
    expected = fresh_logprobs(model, prompt + sequence.tokens)[len(prompt) - 1 :]
    assert sequence.logprobs == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("room", [10**6, 90, 0])
def test_rows_join_and_leave_whatever_stem_the_others_have(
    model: Any, tiny_model: str, stems: list[int], room: int
) -> None:
    frozen = FrozenLean(model)
    frozen.weights = replace(frozen.weights, prefixes=PrefixCache(room))
    sampler = Sampler(
        frozen, load_tokenizer(tiny_model), seed=0, context_length=512, end_tokens=frozenset()
    )
    behind, others = family(60, [9, 3, 20, 1, 5, 30]), [tokens(25, 90), tokens(4, 91)]
    asked = [others[0], *behind[:4], behind[0], others[1], *behind[4:], tokens(60, 0)]
    futures = []
    for i, prompt in enumerate(asked):
        params = types.SamplingParams(max_tokens=10 + 7 * (i % 4), stop=[])
        futures.append(sampler.sample(prompt, 1 + i % 3, params))
        if i in (4, 7):
            futures[0].result(timeout=60)
    for prompt, future in zip(asked, futures, strict=True):
        for sequence in future.result(timeout=60):
            check(model, prompt, sequence)
            follow = prompt + sequence.tokens + [3]
            [again] = sampler.sample(follow, 1, types.SamplingParams(max_tokens=2)).result(60)
            check(model, follow, again)
    sampler.close()
    assert stems


def test_what_many_rows_begin_with_is_held_once(model: Any) -> None:
    with torch.inference_mode():
        batch = FrozenLean(model).new_batch()
        batch.admit([start[:450] for start in family(400, [50] * 4)], [3] * 4)
        batch.step(torch.zeros(12, dtype=torch.long))
        assert isinstance(batch, lean_batch.LeanBatch)
        assert batch._cache.length < 200
        batch.keep([])
        batch.admit([tokens(5, 3)], [1])
        assert batch._stem is None


# -- 5. any model --------------------------------------------------------------------------------

SIZES = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "learned positions": (
        "GPT2LMHeadModel",
        {"vocab_size": 97, "n_positions": 512, "n_embd": 32, "n_layer": 2, "n_head": 2},
    ),
    "positions from the mask": (
        "OPTForCausalLM",
        {"vocab_size": 97, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2,
         "num_attention_heads": 4, "max_position_embeddings": 512, "word_embed_proj_dim": 32},
    ),
    "slopes instead of positions": (
        "BloomForCausalLM",
        {"vocab_size": 97, "hidden_size": 32, "n_layer": 2, "n_head": 4},
    ),
    "a sliding window": ("MistralForCausalLM", {**SIZES, "sliding_window": 12}),
    "windows and capped logits": ("Gemma2ForCausalLM", {**SIZES, "sliding_window": 12}),
    "experts": ("MixtralForCausalLM", {**SIZES, "num_local_experts": 4}),
}  # fmt: skip


def make_model(name: str) -> Any:
    kind, options = FAMILIES[name]
    made: Any = getattr(transformers, kind)
    torch.manual_seed(1)
    model = made(made.config_class(**options)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_of_any_model_join_and_leave_and_share(name: str, tiny_model: str) -> None:
    model = make_model(name)
    sampler = Sampler(
        FrozenGeneric(model),
        load_tokenizer(tiny_model),
        seed=0,
        context_length=512,
        end_tokens=frozenset(),
    )
    asked = [[token % 97 for token in row] for row in [*family(40, [9, 3, 30, 1]), tokens(25, 9)]]
    futures = []
    for i, prompt in enumerate([*asked, *asked]):
        params = types.SamplingParams(max_tokens=8 + 9 * (i % 3), stop=[])
        futures.append(sampler.sample(prompt, 1 + i % 2, params))
        time.sleep(0.002)
    for prompt, future in zip([*asked, *asked], futures, strict=True):
        for sequence in future.result(timeout=60):
            check(model, prompt, sequence)
            follow = prompt + sequence.tokens
            assert sampler.score(follow, 5).result(timeout=60)[-5:] == pytest.approx(
                fresh_logprobs(model, follow)[-5:], abs=1e-4
            )
    sampler.close()
    assert sampler.stats.prompt_tokens < sum(map(len, asked)) + 400


def test_rows_of_an_adapter_beside_a_shared_base_have_their_own_positions(tiny_model: str) -> None:
    # Learned positions, as GPT-2's, in layers that take an adapter.
    made: Any = transformers.GPTNeoForCausalLM
    config = made.config_class(
        vocab_size=97, max_position_embeddings=512, hidden_size=32, num_layers=2, num_heads=2,
        attention_types=[[["global"], 2]],
    )  # fmt: skip
    torch.manual_seed(1)
    model = attach_lora(SharedBases().tree("any", lambda: made(config).eval()), 4, seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.2)
    sampler = Sampler(
        freeze(model),
        load_tokenizer(tiny_model),
        seed=0,
        context_length=512,
        end_tokens=frozenset(),
    )
    asked = [[token % 97 for token in tokens(length, length)] for length in (5, 20, 11)]
    params = types.SamplingParams(max_tokens=6, stop=[])
    futures = [sampler.sample(prompt, 1, params) for prompt in asked]
    for prompt, future in zip(asked, futures, strict=True):
        check(model, prompt, future.result(timeout=60)[0])
    sampler.close()


@pytest.mark.parametrize("name", ["learned positions", "a sliding window"])
def test_staggered_requests_take_as_many_passes_as_on_the_lean_path(
    name: str, model: Any, tiny_model: str
) -> None:
    passes = []
    for frozen in (FrozenLean(model), FrozenGeneric(make_model(name))):
        sampler = Sampler(
            frozen, load_tokenizer(tiny_model), seed=0, context_length=512, end_tokens=frozenset()
        )
        futures = []
        for i in range(40):
            params = types.SamplingParams(max_tokens=60, stop=[])
            futures.append(sampler.sample([5, 6, 7, i + 1], 1, params))
            before = sampler.stats.forward_passes
            while sampler.stats.forward_passes < before + 3:
                time.sleep(0.0005)
        for future in futures:
            future.result(timeout=60)
        sampler.close()
        passes.append(sampler.stats.forward_passes)
    assert passes[1] <= 1.5 * passes[0]


def test_logits_of_prompts_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
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
