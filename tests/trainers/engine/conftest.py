"""A training client of the tiny model."""

from typing import Any

import pytest
import tinker

from evert.trainers.engine.clients.engine import Engine


@pytest.fixture
def training(engine: Engine, tiny_model: str) -> Any:
    return tinker.ServiceClient().create_lora_training_client(tiny_model, rank=4).result()
