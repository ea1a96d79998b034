"""Fixtures: a sampling client, a policy service, and clients for it from three vendors."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest
import tinker
from google import genai
from tests.trainers.kit import sampler_of

from evert.bridge.tokens.bases import base_tokenizer
from evert.trainers.engine.clients.engine import Engine
from evert.trainers.engine.clients.sampling_client import SamplingClient
from evert.trainers.serving.service import PolicyService


@pytest.fixture
def client(engine: Engine) -> SamplingClient:
    """Return a client that samples from the bundled base model in this process."""
    made: SamplingClient = sampler_of("evert-tiny")
    assert made.sampler  # load it now: two threads cannot both be the first to import transformers
    return made


@pytest.fixture
def service() -> Iterator[PolicyService]:
    """Start a policy service that has no model."""
    with PolicyService() as running:
        yield running


@contextmanager
def sdks(service: PolicyService) -> Iterator[tuple[Any, Any, Any]]:
    key, root = service.key, service.url.removesuffix("/v1")
    with (
        openai.OpenAI(base_url=service.url, api_key=key, max_retries=0) as open_ai,
        anthropic.Anthropic(base_url=root, api_key=key, max_retries=0) as claude,
        genai.Client(api_key=key, http_options={"base_url": root}) as gemini,
    ):
        yield open_ai, claude, gemini


def prompt(text: str = "Hi") -> tinker.ModelInput:
    """Return the prompt for a user message, including the start of the reply."""
    written = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    return tinker.ModelInput.from_ints(base_tokenizer().encode(written))
