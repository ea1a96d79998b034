"""What the lean forward pass supports. ``sampling/test_oracle.py`` checks its numerical results."""

from typing import Any

import numpy as np
import torch
import transformers
from peft import LoraConfig, get_peft_model
from tests.trainers.engine.sampling.oracle import SIZES
from tests.trainers.kit import shaken

from evert.trainers.engine.models.lean import LeanModel
from evert.trainers.engine.sampling.frozen import FrozenGeneric, FrozenLean, freeze
from evert.trainers.engine.sampling.scoring import Scoring, score
from evert.trainers.engine.training.examples import length_sorted


def qwen3(**options: Any) -> Any:
    torch.manual_seed(1)
    config: Any = transformers.Qwen3Config
    made: Any = transformers.Qwen3ForCausalLM
    return shaken(made(config(vocab_size=61, **{**SIZES, **options})))


def check_scores(model: Any, length: int) -> None:
    """Assert that the lean path and the model give a row of this length the same scores."""
    tokens = torch.randint(0, 61, (length,))
    row = Scoring(tokens.numpy())
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(tokens[None]).logits[0, :-1], -1)
        score(FrozenLean(model).new_batch(), [row])
    expected = logprobs.gather(1, tokens[1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(row.values), expected, atol=1e-4, rtol=1e-4)


def test_positions_beyond_the_initial_table_are_computed() -> None:
    check_scores(qwen3(max_position_embeddings=2048), 700)


def test_the_lean_path_merges_an_adapter() -> None:
    options: dict[str, Any] = {"target_modules": "all-linear", "init_lora_weights": False}
    check_scores(get_peft_model(qwen3(), LoraConfig(r=4, lora_alpha=32, **options)).eval(), 20)


def test_a_lean_copy_does_not_change_when_the_model_changes() -> None:
    model = qwen3()
    lean = LeanModel(model)
    before = [lean.embedding.clone(), *(layer.qkv.weight.clone() for layer in lean.layers)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    after = [lean.embedding, *(layer.qkv.weight for layer in lean.layers)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_sliding_window_uses_the_generic_copy() -> None:
    windowed = qwen3(use_sliding_window=True, max_window_layers=0)
    assert isinstance(freeze(windowed), FrozenGeneric)


def test_length_sorted_groups_respect_the_budget_and_lose_no_row() -> None:
    lengths = [3, 50, 7, 7, 120, 1]
    groups = list(length_sorted([np.zeros(length) for length in lengths], 100))
    assert sorted(i for group in groups for i in group) == list(range(6))
    assert all(len(g) == 1 or len(g) * max(lengths[i] for i in g) <= 100 for g in groups)
    assert groups[0] == [4]
