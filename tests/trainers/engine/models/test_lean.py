"""The lean forward pass computes what the Hugging Face model computes, family by family."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model

from evert.trainers.engine.models.lean import LeanModel, can_be_lean
from evert.trainers.engine.sampling.frozen import FrozenGeneric, FrozenLean, freeze
from evert.trainers.engine.sampling.scoring import Scoring, score
from evert.trainers.engine.training.examples import length_sorted

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 1e4,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3 tied": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True}),
    "qwen3 untied": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": False}),
    "qwen2 with biases": ("Qwen2", {"tie_word_embeddings": False}),
    "llama": ("Llama", {"num_key_value_heads": 4}),
    "llama with all biases": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama with llama3 rope": ("Llama", {"rope_parameters": LLAMA3_ROPE}),
}


def _make(family: str, **options: Any) -> Any:
    torch.manual_seed(1)
    sizes = {"vocab_size": 61} if family == "GPT2" else SIZES
    config = getattr(transformers, f"{family}Config")(**{**sizes, **options})
    head = "LMHeadModel" if family == "GPT2" else "ForCausalLM"
    model = getattr(transformers, f"{family}{head}")(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def _rows(logits: torch.Tensor, tokens: np.ndarray, places: np.ndarray) -> Sequence[Any]:
    return logits.unbind()


def _lean_logits(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Of all tokens, through the sampler's own path; something is asked of the token after each."""
    rows = [Scoring(np.array([*row, 0]), read=_rows) for row in tokens.tolist()]
    with torch.inference_mode():
        score(FrozenLean(model).new_batch(), rows)
    return torch.stack([torch.stack(row.values) for row in rows])


@pytest.mark.parametrize("name", FAMILIES)
def test_lean_logits_equal_the_models(name: str) -> None:
    family, options = FAMILIES[name]
    model = _make(family, **options)
    tokens = torch.randint(0, 61, (3, 80))
    with torch.inference_mode():
        expected = model(tokens).logits
    assert can_be_lean(model)
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(_lean_logits(model, tokens), expected, atol=1e-5, rtol=1e-5)


def test_positions_past_the_first_table_are_computed_too() -> None:
    model = _make("Qwen3", head_dim=16, max_position_embeddings=2048)
    tokens = torch.randint(0, 61, (1, 700))
    with torch.inference_mode():
        expected = model(tokens).logits
    torch.testing.assert_close(_lean_logits(model, tokens), expected, atol=1e-4, rtol=1e-4)


def test_an_adapter_is_merged_in() -> None:
    model = get_peft_model(
        _make("Qwen3", head_dim=16),
        LoraConfig(r=4, lora_alpha=32, target_modules="all-linear", init_lora_weights=False),
    ).eval()
    tokens = torch.randint(0, 61, (2, 20))
    with torch.inference_mode():
        expected = model(tokens).logits
    torch.testing.assert_close(_lean_logits(model, tokens), expected, atol=1e-4, rtol=1e-4)


def test_a_lean_copy_does_not_change_with_the_model() -> None:
    model = _make("Qwen3", head_dim=16)
    lean = LeanModel(model)
    before = [lean.embedding.clone(), *(layer.qkv.weight.clone() for layer in lean.layers)]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    after = [lean.embedding, *(layer.qkv.weight for layer in lean.layers)]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def test_a_sliding_window_or_another_family_is_left_to_the_generic_copy() -> None:
    windowed = _make("Qwen3", head_dim=16, use_sliding_window=True, max_window_layers=0)
    assert isinstance(freeze(windowed), FrozenGeneric)
    other = _make("GPT2", n_embd=32, n_layer=1, n_head=2)
    assert isinstance(freeze(other), FrozenGeneric)
    assert isinstance(freeze(_make("Qwen3", head_dim=16)), FrozenLean)


@pytest.mark.parametrize("frozen", [FrozenLean, FrozenGeneric])
def test_given_tokens_are_scored_as_the_model_scores_them(frozen: Any) -> None:
    model = _make("Qwen3", head_dim=16)
    rows = [torch.randint(0, 61, (n,)).tolist() for n in (7, 1, 30, 2)]
    scored = [Scoring(np.array(row)) for row in rows]
    with torch.inference_mode():
        assert score(frozen(model).new_batch(), scored) == 36
    for row, values in zip(rows, (row.values for row in scored), strict=True):
        with torch.inference_mode():
            logprobs = torch.log_softmax(model(torch.tensor([row])).logits[0], -1)
        expected = [float(logprobs[i - 1, row[i]]) for i in range(1, len(row))]
        assert values == pytest.approx(expected, abs=1e-4)


def test_length_sorted_groups_keep_to_the_budget_and_lose_no_row() -> None:
    lengths = [3, 50, 7, 7, 120, 1]
    groups = list(length_sorted([np.zeros(length) for length in lengths], 100))
    assert sorted(i for group in groups for i in group) == list(range(6))
    assert all(len(g) == 1 or len(g) * max(lengths[i] for i in g) <= 100 for g in groups)
    assert groups[0] == [4]
