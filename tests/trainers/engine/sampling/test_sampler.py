"""The sampler: batching (measured in passes and tokens), refused requests, and closing.

``test_oracle.py`` checks the sampled tokens.
"""

import math
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Any
from unittest.mock import patch

import pytest
import torch
from tests.kit import Patch
from tests.trainers.engine.sampling.oracle import adapters_of
from tinker import types

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.errors import EngineClosedError, SamplingRequestError
from evert.trainers.engine.models.base_models import load_model, load_tokenizer
from evert.trainers.engine.models.loading import EngineSettings
from evert.trainers.engine.sampling import sampler as sampler_module
from evert.trainers.engine.sampling.sampler import ModelSampler
from evert.trainers.engine.sampling.scheduler import MAX_ROWS

Make = Callable[..., ModelSampler]


def params(**options: Any) -> types.SamplingParams:
    return types.SamplingParams(**{"max_tokens": 12, "stop": [], **options})


def prompts(*lengths: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randint(0, 200, (n,), generator=generator).tolist() for n in lengths]


def one(future: "Future[list[types.SampledSequence]]") -> types.SampledSequence:
    return future.result(timeout=60)[0]


def test_requests_that_arrive_together_share_forward_passes(make: Make) -> None:
    sampler = make()
    futures = [sampler.sample(p, 1, params(max_tokens=20)) for p in prompts(*range(5, 37))]
    for future in futures:
        future.result(timeout=60)
    assert sampler.stats.sampled_tokens == 32 * 20
    # One pass for the prompts, one per token, and a few for requests that arrived slightly later.
    assert sampler.stats.forward_passes <= 30
    assert sampler.stats.largest_batch == 32


def test_a_prompt_shared_by_a_group_is_computed_once(make: Make) -> None:
    sampler = make()
    prompt = prompts(40)[0]
    futures = [sampler.sample(prompt, 1, params()) for _ in range(8)]
    futures.append(sampler.sample(prompt, 16, params()))
    replies = [reply for future in futures for reply in future.result(timeout=60)]
    # The last prompt token is computed again for requests that arrived slightly later.
    assert sampler.stats.prompt_tokens < 40 + 9
    assert len({tuple(reply.tokens) for reply in replies}) == 24
    assert len({reply.sequence_id for reply in replies}) == 24


def test_finished_rows_leave_and_new_ones_join_a_running_batch(make: Make) -> None:
    sampler = make()
    long = sampler.sample(prompts(10)[0], 1, params(max_tokens=400))
    short = [one(sampler.sample(p, 1, params(max_tokens=3))) for p in prompts(8, 9)]
    assert [len(s.tokens) for s in short] == [3, 3]
    assert not long.done()
    assert len(one(long).tokens) == 400
    # Joining costs one pass for the prompt; separate decoding would take 401 passes plus 2 * 3.
    assert sampler.stats.forward_passes <= 403


def test_more_rows_than_fit_are_served_in_turn(make: Make) -> None:
    sampler = make()
    sequences = sampler.sample(prompts(4)[0], MAX_ROWS + 50, params(max_tokens=2))
    assert len(sequences.result(timeout=60)) == MAX_ROWS + 50
    assert sampler.stats.largest_batch == MAX_ROWS


def test_a_special_token_may_be_passed_as_text(make: Make) -> None:
    prompt, long = prompts(12)[0], {"max_tokens": 200, "seed": 3}
    by_id = make().sample(prompt, 8, params(**long, stop=[256])).result(timeout=60)
    by_text = make().sample(prompt, 8, params(**long, stop="<|im_end|>")).result(timeout=60)
    assert [s.tokens for s in by_text] == [s.tokens for s in by_id]
    assert any(s.stop_reason == "stop" for s in by_id)


def test_counts_are_limited_and_no_sample_is_drawn_twice(make: Make, monkeypatch: Any) -> None:
    monkeypatch.setattr(sampler_module, "_COUNTED_PROMPTS", 2)
    sampler, (first, *others) = make(), prompts(10, 11, 12, 13)
    drawn = {tuple(one(sampler.sample(first, 1, params())).tokens) for _ in range(3)}
    for prompt in others:
        one(sampler.sample(prompt, 1, params()))
    assert len(sampler._request_counts) == 2
    drawn.add(tuple(one(sampler.sample(first, 1, params())).tokens))
    assert len(drawn) == 4


REFUSED: list[tuple[list[int], dict[str, Any], str]] = [
    ([], {}, "prompt of 0 tokens"),
    ([1], {"max_tokens": 0}, "max_tokens=0"),
    ([1], {"temperature": -1.0}, "temperature=-1"),
    ([1], {"temperature": math.nan}, "temperature=nan; expected a finite number of at least 0"),
    ([1], {"temperature": math.inf}, "temperature=inf"),
    ([1], {"top_p": 0.0}, "top_p=0.0; expected a number above 0 and at most 1"),
    ([1], {"top_p": 1.5}, "top_p=1.5"),
    ([1], {"top_p": math.nan}, "top_p=nan"),
    ([1], {"top_k": 0}, "top_k=0; expected an integer of at least 1, or -1"),
    ([1], {"top_k": -2}, "top_k=-2"),
    ([1], {"max_tokens": -1}, "max_tokens=-1; expected an integer of at least 1"),
    ([1], {"seed": 2**128}, "seed=.*expected an integer of at most 63 bits"),
    ([1] * 512, {"max_tokens": None}, "context length is 512"),
    ([1] * 500, {"max_tokens": 13}, "request at most 12 tokens"),
    ([1], {"stop": [""]}, "non-empty strings"),
]


@pytest.mark.parametrize(("prompt", "options", "text"), REFUSED)
def test_an_invalid_request_is_refused_with_the_reason(
    prompt: list[int], options: dict[str, Any], text: str, make: Make
) -> None:
    with pytest.raises(SamplingRequestError, match=text):
        make().sample(prompt, 1, params(**options))


def test_a_reply_without_a_limit_ends_at_the_context_length(make: Make) -> None:
    sampler = make()
    longest = one(sampler.sample(prompts(500)[0], 1, params(max_tokens=None)))
    assert (len(longest.tokens), longest.stop_reason) == (12, "length")


def test_an_idle_sampler_has_no_thread(make: Make, monkeypatch: Patch) -> None:
    monkeypatch.setattr("evert.trainers.engine.sampling.scheduler._LINGER_SECONDS", 0.01)
    sampler = make()
    for _ in range(2):
        assert one(sampler.sample(prompts(5)[0], 1, params())).tokens
        worker = sampler.scheduler._worker
        if worker is not None:
            worker.join(timeout=10)
        assert sampler.scheduler._worker is None


def test_a_cancelled_request_is_dropped_and_the_others_continue(make: Make) -> None:
    sampler = make()
    dropped = sampler.sample(prompts(10)[0], 1, params(max_tokens=500))
    running = sampler.sample(prompts(11)[0], 1, params(max_tokens=20))
    assert dropped.cancel()
    assert len(one(running).tokens) == 20
    with pytest.raises(CancelledError):
        dropped.result()
    assert sampler.stats.forward_passes < 100


def test_a_failing_model_fails_its_requests_but_not_the_sampler(make: Make) -> None:
    sampler = make()
    with patch.object(sampler._model, "new_batch", side_effect=MemoryError):
        waiting: list[Future[Any]] = [sampler.sample([1, 2], 1, params()), sampler.score([1, 2])]
        for future in waiting:
            with pytest.raises(MemoryError):
                future.result(timeout=60)
    assert one(sampler.sample([1, 2], 1, params())).tokens


# -- several adapters of one base are served in one batch ------------------------------------


@pytest.fixture(scope="module")
def models(tiny_model: str) -> list[Any]:
    """Return three adapters of one base model, and the base model."""
    return adapters_of(lambda: load_model(tiny_model, torch.device("cpu"), torch.float32))


@pytest.fixture
def sampler_of(tiny_model: str) -> Iterator[Make]:
    engine = Engine(EngineSettings(device="cpu", full_parameter=False))
    tokenizer = load_tokenizer(tiny_model)
    yield lambda model: engine.new_sampler(model, tokenizer)
    engine.close()


def test_samplers_of_one_base_share_passes(models: list[Any], sampler_of: Make) -> None:
    samplers = [sampler_of(model) for model in models]
    assert len({id(sampler.scheduler) for sampler in samplers}) == 1
    greedy = params(max_tokens=100, temperature=0)
    futures = [sampler.sample(prompts(9)[0], 1, greedy) for sampler in samplers]
    replies = [future.result(timeout=60)[0].tokens for future in futures]
    assert [len(reply) for reply in replies] == [100] * 4
    # The prompts are identical and decoding is greedy, yet no model reuses another's cache.
    assert len({tuple(reply[:9]) for reply in replies}) == 4
    stats = samplers[0].stats
    assert stats.largest_batch == 4
    assert stats.forward_passes < 200  # it would take 400 without shared batches


def test_models_without_a_shared_base_share_no_batch(tiny_model: str, sampler_of: Make) -> None:
    model = load_model(tiny_model, torch.device("cpu"), torch.float32)
    assert sampler_of(model).scheduler is not sampler_of(model).scheduler


def test_closing_the_engine_cancels_waiting_requests(tiny_model: str) -> None:
    engine = Engine(EngineSettings(device="cpu", full_parameter=False))
    sampler = engine.base_sampler(tiny_model)
    waiting = [sampler.sample(prompts(9)[0], 1, params(max_tokens=500)) for _ in range(3)]
    engine.close()
    for future in waiting:
        with pytest.raises(EngineClosedError):
            future.result(timeout=60)
