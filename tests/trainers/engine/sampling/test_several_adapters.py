"""Samplers of several adapters of one base are served in one batch.

That each row has its own adapter's numbers, whoever is beside it, ``test_oracle.py`` has.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.trainers.engine.sampling.oracle import CPU, adapters_of
from tests.trainers.engine.sampling.test_sampler import params, prompts
from tinker import types

from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.common.errors import EngineClosedError
from evert.trainers.engine.models.base_models import load_model, load_tokenizer
from evert.trainers.engine.models.loading import EngineSettings
from evert.trainers.engine.sampling.sampler import Sampler


@pytest.fixture(scope="module")
def models(tiny_model: str) -> list[Any]:
    """Three adapters of one base, and the base."""
    return adapters_of(lambda: load_model(tiny_model, CPU, torch.float32))


@pytest.fixture
def sampler_of(tiny_model: str) -> Iterator[Callable[..., Sampler]]:
    engine = Engine(EngineSettings(device="cpu", full_parameter=False))
    tokenizer = load_tokenizer(tiny_model)
    yield lambda model: engine.new_sampler(model, tokenizer)
    engine.close()


def test_samplers_of_one_base_share_the_passes_of_a_decoding(
    models: list[Any], sampler_of: Callable[..., Sampler]
) -> None:
    samplers = [sampler_of(model) for model in models]
    assert len({id(sampler.scheduler) for sampler in samplers}) == 1
    futures = [
        sampler.sample(prompts(9)[0], 1, params(max_tokens=100, temperature=0))
        for sampler in samplers
    ]
    replies = [future.result(timeout=60)[0].tokens for future in futures]
    assert [len(reply) for reply in replies] == [100] * 4
    # The same prompt and greedy, but not the same model: what one computed no other one takes.
    assert len({tuple(reply[:9]) for reply in replies}) == 4
    stats = samplers[0].stats
    assert stats.largest_batch == 4
    assert stats.forward_passes < 200  # alone: 400 and more


def test_a_model_with_weights_of_its_own_has_a_batch_of_its_own(
    tiny_model: str, sampler_of: Callable[..., Sampler]
) -> None:
    model = load_model(tiny_model, CPU, torch.float32)
    assert sampler_of(model).scheduler is not sampler_of(model).scheduler


def test_a_closed_sampler_leaves_the_others_work_alone(
    models: list[Any], sampler_of: Callable[..., Sampler]
) -> None:
    first, second = (sampler_of(model) for model in models[:2])
    waiting = second.sample(prompts(9)[0], 1, params(max_tokens=200))
    first.close()
    with pytest.raises(EngineClosedError, match="no longer in use"):
        first.sample([1, 2], 1, params())
    assert len(waiting.result(timeout=60)[0].tokens) == 200


def test_closing_the_engine_answers_whoever_waits(tiny_model: str, tmp_path: Path) -> None:
    engine = Engine(EngineSettings(tmp_path, device="cpu", full_parameter=False))
    sampler = engine.base_sampler(tiny_model)
    waiting = [
        sampler.sample(prompts(9)[0], 1, types.SamplingParams(max_tokens=500, stop=[]))
        for _ in range(3)
    ]
    engine.close()
    for future in waiting:
        with pytest.raises(EngineClosedError):
            future.result(timeout=60)
