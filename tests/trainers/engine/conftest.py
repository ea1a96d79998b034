"""A fixture with a training client for the tiny model."""

from typing import Any

import pytest
from tests.trainers.kit import trainer_of

from evert.trainers.engine.clients.engine import Engine


@pytest.fixture
def training(engine: Engine, tiny_model: str) -> Any:
    return trainer_of(tiny_model, rank=4)
