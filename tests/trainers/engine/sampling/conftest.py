"""Fixtures: samplers of the tiny model that are closed after each test."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from evert.trainers.engine.models.base_models import load_model, load_tokenizer
from evert.trainers.engine.sampling.frozen import FrozenLean
from evert.trainers.engine.sampling.sampler import ModelSampler
from evert.trainers.engine.sampling.scheduler import Scheduler


@pytest.fixture(scope="module")
def model(tiny_model: str) -> Any:
    return load_model(tiny_model, torch.device("cpu"), torch.float32)


@pytest.fixture
def make(model: Any, tiny_model: str) -> Iterator[Callable[..., ModelSampler]]:
    """Yield a function that creates a sampler of the tiny model, or of another model."""
    made: list[ModelSampler] = []

    def build(kind: Any = FrozenLean, other: Any = None, **options: Any) -> ModelSampler:
        settings: dict[str, Any] = {
            "seed": 0, "context_length": 512, "end_tokens": frozenset({256}),
            "scheduler": Scheduler(), **options,
        }  # fmt: skip
        made.append(ModelSampler(kind(other or model), load_tokenizer(tiny_model), **settings))
        return made[-1]

    yield build
    for sampler in made:
        sampler.scheduler.close()
