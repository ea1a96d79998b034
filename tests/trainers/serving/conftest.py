"""An engine in use, its clients, and a policy service."""

from collections.abc import Iterator

import pytest
import tinker

from evert.bridge.tokens.bases import base_tokenizer
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.clients.sampling_client import SamplingClient
from evert.trainers.serving.service import PolicyService


@pytest.fixture
def client(engine: Engine) -> SamplingClient:
    """Samples the shipped base in this process."""
    made: SamplingClient = tinker.ServiceClient().create_sampling_client(base_model="evert-tiny")  # type: ignore[assignment]
    assert made.sampler  # loaded: transformers cannot be imported first by two threads at once
    return made


@pytest.fixture
def service() -> Iterator[PolicyService]:
    """A policy service that offers nothing yet."""
    with PolicyService() as running:
        yield running


def prompt(text: str = "Hi") -> tinker.ModelInput:
    """A user's message, with the beginning of the answer."""
    written = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return tinker.ModelInput.from_ints(base_tokenizer().encode(written))
