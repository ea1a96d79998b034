"""The sampler: exact log-probabilities, merged work, stops, and reproducible draws.

1. Sampled and given tokens' log-probabilities equal a fresh forward pass, in any batch.
2. Requests that arrive together share forward passes; a shared prompt is computed once; a later
   turn computes only what is new. Counted in forward passes and tokens, never in seconds.
3. Stops: ids, texts that span tokens, special tokens as text; the stop is part of the reply.
4. The same seed gives the same tokens, whatever else runs and in whatever order prompts arrive.
5. A closed, cancelled or failing sampler answers everybody who waits.
"""

import asyncio
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from typing import Any

import pytest
import torch
from tinker import types

from evert.trainers.engine.common.errors import EngineClosedError, SamplingRequestError
from evert.trainers.engine.models.base_models import load_model, load_tokenizer
from evert.trainers.engine.sampling import sampler as sampler_module
from evert.trainers.engine.sampling.frozen import FrozenGeneric, FrozenLean
from evert.trainers.engine.sampling.sampler import Sampler
from evert.trainers.engine.sampling.scheduler import MAX_ROWS

Make = Callable[..., Sampler]


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Any:
    return load_model(tiny_model, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: str) -> Any:
    return load_tokenizer(tiny_model)


@pytest.fixture
def make(model: Any, tokenizer: Any) -> Iterator[Make]:
    made: list[Sampler] = []

    def build(kind: Any = FrozenLean, seed: int = 0, **options: Any) -> Sampler:
        settings = {"context_length": 512, "end_tokens": frozenset({256}), **options}
        made.append(Sampler(kind(model), tokenizer, seed=seed, **settings))
        return made[-1]

    yield build
    for sampler in made:
        sampler.close()


def params(**options: Any) -> types.SamplingParams:
    return types.SamplingParams(**{"max_tokens": 12, "stop": [], **options})


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, 200, (n,), generator=generator).tolist() for n in lengths]


def fresh_logprobs(model: Any, tokens: Sequence[int]) -> list[float]:
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(torch.tensor([list(tokens)])).logits[0].float(), -1)
    return [float(logprobs[i - 1, tokens[i]]) for i in range(1, len(tokens))]


def one(future: "Future[list[types.SampledSequence]]") -> types.SampledSequence:
    return future.result(timeout=60)[0]


@pytest.mark.parametrize("kind", [FrozenLean, FrozenGeneric])
@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 0.0}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.7}],
    ids=str,
)
def test_sampled_logprobs_equal_a_fresh_forward_pass(
    make: Make, model: Any, kind: Any, options: dict[str, Any]
) -> None:
    sampler = make(kind)
    lengths = [
        int(n) for n in torch.randint(3, 60, (9,), generator=torch.Generator().manual_seed(1))
    ]
    futures = [
        sampler.sample(prompt, 2, params(max_tokens=5 + i, **options))
        for i, prompt in enumerate(prompts(*lengths))
    ]
    for prompt, future in zip(prompts(*lengths), futures, strict=True):
        for sequence in future.result(timeout=60):
            expected = fresh_logprobs(model, prompt + sequence.tokens)[len(prompt) - 1 :]
            assert sequence.logprobs == pytest.approx(expected, abs=1e-4)


def test_given_tokens_are_scored_with_a_leading_none(make: Make, model: Any) -> None:
    sampler = make()
    rows = prompts(20, 1, 33)
    futures = [sampler.score(row) for row in rows]
    for row, future in zip(rows, futures, strict=True):
        first, *rest = future.result(timeout=60)
        assert first is None
        assert rest == pytest.approx(fresh_logprobs(model, row), abs=1e-4)


def test_greedy_takes_the_likeliest_token(make: Make, model: Any) -> None:
    prompt = prompts(15)[0]
    sequence = one(make().sample(prompt, 1, params(temperature=0.0)))
    with torch.inference_mode():
        best = model(torch.tensor([prompt + sequence.tokens])).logits[0].argmax(-1)
    assert sequence.tokens == best[len(prompt) - 1 : -1].tolist()


def test_the_draws_follow_the_models_distribution(make: Make, model: Any) -> None:
    prompt, count = prompts(9)[0], 4000
    sequences = make().sample(prompt, count, params(max_tokens=1)).result(timeout=60)
    found = torch.bincount(torch.tensor([s.tokens[0] for s in sequences]), minlength=262) / count
    with torch.inference_mode():
        expected = torch.softmax(model(torch.tensor([prompt])).logits[0, -1], -1)
    # Five standard errors of each frequency.
    assert bool((abs(found - expected) <= 5 * (expected / count).sqrt() + 1e-3).all())


def test_requests_that_arrive_together_share_forward_passes(make: Make) -> None:
    sampler = make()
    futures = [sampler.sample(p, 1, params(max_tokens=20)) for p in prompts(*range(5, 37))]
    for future in futures:
        future.result(timeout=60)
    assert sampler.stats.sampled_tokens == 32 * 20
    # One pass for the prompts and one a token, and a few for those that came a moment later.
    assert sampler.stats.forward_passes <= 30
    assert sampler.stats.largest_batch == 32


async def test_coroutines_on_one_loop_are_merged(make: Make) -> None:
    sampler = make()

    async def ask(prompt: list[int]) -> list[types.SampledSequence]:
        return await asyncio.wrap_future(sampler.sample(prompt, 1, params(max_tokens=10)))

    await asyncio.gather(*(ask(prompt) for prompt in prompts(*range(5, 21))))
    assert sampler.stats.forward_passes <= 16


def test_a_prompt_shared_by_a_group_is_computed_once(make: Make) -> None:
    sampler = make()
    prompt = prompts(40)[0]
    futures = [sampler.sample(prompt, 1, params()) for _ in range(8)]
    replies = {tuple(one(future).tokens) for future in futures}
    # Whoever came a moment later has the logits of the last token computed again.
    assert sampler.stats.prompt_tokens < 40 + 8
    assert len(replies) == 8


def test_many_samples_of_one_request_share_its_prompt(make: Make) -> None:
    sampler = make()
    sequences = sampler.sample(prompts(30)[0], 16, params()).result(timeout=60)
    assert len({tuple(s.tokens) for s in sequences}) == 16
    assert len({s.sequence_id for s in sequences}) == 16
    assert sampler.stats.prompt_tokens == 30


def test_a_later_turn_computes_only_what_is_new(make: Make, model: Any) -> None:
    sampler = make()
    conversation = prompts(50)[0]
    for turn in range(4):
        before = sampler.stats.prompt_tokens
        sequence = one(sampler.sample(conversation, 1, params(seed=turn)))
        expected = fresh_logprobs(model, conversation + sequence.tokens)[len(conversation) - 1 :]
        assert sequence.logprobs == pytest.approx(expected, abs=1e-4)
        conversation = conversation + sequence.tokens + [1, 2, 3]
        # What is new: the last sampled token, which no pass has seen, and the three after it.
        assert sampler.stats.prompt_tokens - before == (50 if turn == 0 else 4)


def test_rows_leave_when_they_end_and_new_ones_join_a_running_batch(make: Make) -> None:
    sampler = make()
    long = sampler.sample(prompts(10)[0], 1, params(max_tokens=400))
    short = [one(sampler.sample(p, 1, params(max_tokens=3))) for p in prompts(8, 9)]
    assert [len(s.tokens) for s in short] == [3, 3]
    assert not long.done()
    assert len(one(long).tokens) == 400
    # Joining costs a pass for the prompt; decoding alone would have taken 401 and 3 more each.
    assert sampler.stats.forward_passes <= 403


def test_more_rows_than_fit_are_served_in_turn(make: Make) -> None:
    sampler = make()
    sequences = sampler.sample(prompts(4)[0], MAX_ROWS + 50, params(max_tokens=2))
    assert len(sequences.result(timeout=60)) == MAX_ROWS + 50
    assert sampler.stats.largest_batch == MAX_ROWS


def test_a_token_stop_ends_the_reply_and_is_part_of_it(make: Make) -> None:
    whole = one(make().sample(prompts(12)[0], 1, params(max_tokens=30))).tokens
    stop = whole[7]
    cut = one(make().sample(prompts(12)[0], 1, params(max_tokens=30, stop=[stop])))
    assert cut.tokens == whole[: whole.index(stop) + 1]
    assert cut.stop_reason == "stop"


def test_a_reply_without_a_stop_ends_at_its_length(make: Make) -> None:
    sequence = one(make().sample(prompts(12)[0], 1, params(max_tokens=9)))
    assert (len(sequence.tokens), sequence.stop_reason) == (9, "length")


def test_a_stop_on_the_last_allowed_token_is_a_stop(make: Make) -> None:
    whole = one(make().sample(prompts(12)[0], 1, params(max_tokens=5))).tokens
    first = next(i for i, token in enumerate(whole) if token not in whole[:i])
    sequence = one(
        make().sample(prompts(12)[0], 1, params(max_tokens=first + 1, stop=[whole[first]]))
    )
    assert sequence.stop_reason == "stop"


def test_a_text_stop_may_span_tokens(make: Make, tokenizer: Any) -> None:
    # The tokenizer has a token a byte, so any text of two characters spans two tokens.
    options: dict[str, Any] = {"max_tokens": 200, "top_k": 30, "seed": 3}
    whole = one(make().sample(prompts(12)[0], 1, params(**options))).tokens
    special = "".join(tokenizer.all_special_tokens)
    pairs = [tokenizer.decode(whole[i : i + 2]) for i in range(10, 150)]
    stop = next(pair for pair in pairs if pair.isascii() and len(pair) == 2 and pair not in special)
    cut = one(make().sample(prompts(12)[0], 1, params(**options, stop=[stop])))
    assert cut.stop_reason == "stop"
    assert cut.tokens == whole[: len(cut.tokens)]
    assert tokenizer.decode(cut.tokens).endswith(stop)
    assert stop not in tokenizer.decode(cut.tokens[:-1])


def test_a_special_token_may_be_named_as_text(make: Make) -> None:
    by_id = make().sample(prompts(12)[0], 8, params(max_tokens=500, stop=[256])).result(timeout=60)
    by_text = make().sample(prompts(12)[0], 8, params(max_tokens=500, stop="<|im_end|>"))
    assert any(s.stop_reason == "stop" for s in by_id)
    assert [s.tokens for s in by_text.result(timeout=60)] == [s.tokens for s in by_id]


def test_no_stop_named_means_the_models_own_and_an_empty_list_means_none(make: Make) -> None:
    prompt = prompts(12)[0]
    every = frozenset(range(262))
    own = one(make(end_tokens=every).sample(prompt, 1, params(stop=None)))
    none = one(make(end_tokens=every).sample(prompt, 1, params(stop=[])))
    assert (len(own.tokens), len(none.tokens)) == (1, 12)


def test_the_same_seed_gives_the_same_tokens_and_another_seed_others(make: Make) -> None:
    def run(seed: int) -> list[list[int]]:
        sampler = make(seed=seed)
        futures = [sampler.sample(p, 2, params()) for p in prompts(5, 9, 30)]
        return [s.tokens for future in futures for s in future.result(timeout=60)]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_tokens_do_not_depend_on_the_batch_or_the_order_of_prompts(make: Make) -> None:
    batch = prompts(5, 9, 30, 44)
    together = make()
    futures = [together.sample(p, 1, params(max_tokens=20)) for p in batch]
    alone = make()
    backwards = [one(alone.sample(p, 1, params(max_tokens=20))).tokens for p in reversed(batch)]
    assert [one(f).tokens for f in futures] == backwards[::-1]


def test_what_is_remembered_of_prompts_is_bounded_and_nothing_is_drawn_twice(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampler_module, "_REMEMBERED", 2)
    sampler, (first, *others) = make(), prompts(10, 11, 12, 13)
    drawn = {tuple(one(sampler.sample(first, 1, params())).tokens) for _ in range(3)}
    for prompt in others:
        one(sampler.sample(prompt, 1, params()))
    assert len(sampler._asked) == 2
    drawn.add(tuple(one(sampler.sample(first, 1, params())).tokens))
    assert len(drawn) == 4


def test_the_same_prompt_asked_again_draws_anew_unless_it_has_a_seed(make: Make) -> None:
    sampler, prompt = make(), prompts(10)[0]
    free = [one(sampler.sample(prompt, 1, params())).tokens for _ in range(3)]
    seeded = [one(sampler.sample(prompt, 1, params(seed=5))).tokens for _ in range(3)]
    assert len({tuple(t) for t in free}) == 3
    assert len({tuple(t) for t in seeded}) == 1


@pytest.mark.parametrize(
    ("prompt", "options", "text"),
    [
        ([], {}, "prompt of 0 tokens"),
        ([1], {"max_tokens": 0}, "max_tokens=0"),
        ([1], {"temperature": -1.0}, "temperature=-1"),
        ([1], {"temperature": math.nan}, "temperature=nan; expected a finite number, 0"),
        ([1], {"temperature": math.inf}, "temperature=inf"),
        ([1], {"top_p": 0.0}, "top_p=0.0; expected a number above 0 and at most 1"),
        ([1], {"top_p": 1.5}, "top_p=1.5"),
        ([1], {"top_p": -1.0}, "top_p=-1.0"),
        ([1], {"top_p": math.nan}, "top_p=nan"),
        ([1], {"top_k": 0}, "top_k=0; expected a whole number of 1 or more, or -1"),
        ([1], {"top_k": -2}, "top_k=-2"),
        ([1], {"max_tokens": -1}, "max_tokens=-1; expected a whole number of 1 or more"),
        ([1], {"seed": 2**128}, "seed=.*expected a whole number of at most 63 bits"),
        ([1] * 512, {"max_tokens": None}, "context holds 512"),
        ([1] * 500, {"max_tokens": 13}, "ask for at most 12 tokens"),
        ([1], {"stop": [""]}, "non-empty texts"),
    ],
)
def test_what_cannot_be_served_is_refused_with_the_reason(
    make: Make, prompt: list[int], options: dict[str, Any], text: str
) -> None:
    with pytest.raises(SamplingRequestError, match=text):
        make().sample(prompt, 1, params(**options))


def test_max_tokens_none_goes_on_to_the_end_of_the_context(make: Make) -> None:
    sequence = one(make().sample(prompts(500)[0], 1, params(max_tokens=None)))
    assert (len(sequence.tokens), sequence.stop_reason) == (12, "length")


def test_closing_answers_those_who_wait_and_refuses_the_rest(make: Make) -> None:
    sampler = make()
    future = sampler.sample(prompts(10)[0], 4, params(max_tokens=500))
    sampler.close()
    with pytest.raises(EngineClosedError):
        future.result(timeout=60)
    with pytest.raises(EngineClosedError, match="no longer in use"):
        sampler.sample(prompts(10)[0], 1, params())
    assert not [t for t in threading.enumerate() if t.name == "evert-sampler" and t.is_alive()]


def test_a_cancelled_request_is_dropped_and_the_others_go_on(make: Make) -> None:
    sampler = make()
    dropped = sampler.sample(prompts(10)[0], 1, params(max_tokens=500))
    kept = sampler.sample(prompts(11)[0], 1, params(max_tokens=20))
    assert dropped.cancel()
    assert len(one(kept).tokens) == 20
    with pytest.raises(CancelledError):
        dropped.result()
    assert sampler.stats.forward_passes < 100


def test_a_failing_model_fails_the_requests_and_not_the_sampler(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = make()
    with monkeypatch.context() as patch:
        patch.setattr(sampler._model, "new_batch", _raise)
        waiting: list[Future[Any]] = [
            sampler.sample([1, 2], 1, params()),
            sampler.score([1, 2]),
        ]
        for future in waiting:
            with pytest.raises(MemoryError):
                future.result(timeout=60)
    assert one(sampler.sample([1, 2], 1, params())).tokens


def _raise(*args: Any) -> Any:
    raise MemoryError


def test_an_idle_sampler_has_no_thread(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evert.trainers.engine.sampling.scheduler._LINGER_SECONDS", 0.01)
    sampler = make()
    one(sampler.sample(prompts(5)[0], 1, params()))
    worker = sampler.scheduler._worker
    if worker is not None:
        worker.join(timeout=10)
    assert sampler.scheduler._worker is None
    assert one(sampler.sample(prompts(5)[0], 1, params())).tokens
