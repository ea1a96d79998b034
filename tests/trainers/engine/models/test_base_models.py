"""Loading models: imports finish before threads can race for them; GPT-2 supports no adapters."""

from pathlib import Path
from typing import Any

import pytest
from tests.trainers.kit import run_python
from transformers import GPT2Config, GPT2LMHeadModel

from evert.trainers.engine.common.errors import ModelNotFoundError
from evert.trainers.engine.models.base_models import attach_lora

RACE = """
import sys, tinker
from evert import embedded_engine
from tinker_cookbook.tokenizer_utils import get_tokenizer
with embedded_engine(sys.argv[2], device="cpu", threads=1):
    before = set(sys.modules)
    sampler = tinker.ServiceClient().create_sampling_client(base_model=sys.argv[1])
    tokens = get_tokenizer(sys.argv[1]).encode("hi")  # while the loader thread loads the model
    params = tinker.SamplingParams(max_tokens=1)
    assert sampler.sample(tinker.ModelInput.from_ints(tokens), 1, params).result().sequences
print([name for name in set(sys.modules) - before if name.startswith("transformers.")])
"""


@pytest.mark.nightly
def test_threads_do_not_import_transformers_concurrently(tiny_model: str, tmp_path: Path) -> None:
    # In a subprocess, because this process has already imported everything.
    assert run_python("-c", RACE, tiny_model, str(tmp_path)) == "[]\n"


def test_gpt_2_does_not_support_adapters_and_the_error_says_what_to_do() -> None:
    sizes: dict[str, Any] = {"vocab_size": 16, "n_embd": 8, "n_layer": 1, "n_head": 1}
    model = GPT2LMHeadModel(GPT2Config(**sizes))  # type: ignore[no-untyped-call]
    with pytest.raises(ModelNotFoundError, match="no linear layers to adapt") as raised:
        attach_lora(model, 4, seed=0)
    assert "Train all parameters (full_parameter=True)" in str(raised.value)
    assert "Models like GPT-2 use Conv1D layers" in str(raised.value)
