"""Training: exact sums for any micro-batches, torch's AdamW, and failures without side effects.

The first test compares losses, log-probabilities and gradients with plain PyTorch, datum by datum,
for random models, data, losses and micro-batches.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from tests.nightly import draws
from tests.trainers.kit import spied
from tinker import types
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from evert.trainers.engine.common import parallel
from evert.trainers.engine.common.errors import TrainingError
from evert.trainers.engine.models import logits
from evert.trainers.engine.models.base_models import attach_lora, load_model, load_tokenizer
from evert.trainers.engine.sampling import prefill
from evert.trainers.engine.training.losses import LOSSES, get_loss
from evert.trainers.engine.training.trainer import Trainer

CPU = torch.device("cpu")
ADAM = types.AdamParams(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
VOCABULARY = 262
"""Vocabulary size of ``tiny_model`` and ``other``."""


def other(family: str) -> Any:
    sizes: dict[str, dict[str, Any]] = {
        "GPT2LMHeadModel": {"n_embd": 32, "n_layer": 2, "n_head": 2},
        "Gemma2ForCausalLM": {  # its logits are soft-capped after the last layer
            "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "head_dim": 16,
            "num_attention_heads": 2, "num_key_value_heads": 1, "final_logit_softcapping": 30.0,
        },
    }  # fmt: skip
    torch.manual_seed(0)
    made: Any = getattr(transformers, family)
    return made(made.config_class(vocab_size=VOCABULARY, **sizes[family])).eval()


def adapted(model: Any) -> Any:
    """Return the model with a random adapter attached."""
    model = attach_lora(model, 4, seed=0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def model_of(kind: str, tiny_model: str) -> Any:
    if "For" in kind or "LM" in kind:
        return other(kind)
    loaded = load_model(tiny_model, CPU, torch.float32)
    return adapted(loaded) if kind == "qwen3 with an adapter" else loaded


KINDS = ["qwen3", "qwen3 with an adapter", "GPT2LMHeadModel", "Gemma2ForCausalLM"]


@pytest.fixture
def model(tiny_model: str) -> Any:
    return load_model(tiny_model, CPU, torch.float32)


@pytest.fixture
def trainer(tiny_model: str, model: Any) -> Trainer:
    return Trainer(model, load_tokenizer(tiny_model))


def some(count: int, seed: int, low: int = 0, high: int = 200) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(low, high, (count,), generator=generator).tolist()


def datum(length: int, seed: int = 0, **inputs: Any) -> types.Datum:
    tokens = some(length + 1, seed)
    weights = torch.rand(length, generator=torch.Generator().manual_seed(seed))
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": tokens[1:], **(inputs or {"weights": weights})},  # type: ignore[dict-item]
    )


def reference_logprobs(model: Any, row: types.Datum) -> Tensor:
    logits = model(torch.tensor([row.model_input.to_ints()])).logits[0]
    targets = row.loss_fn_inputs["target_tokens"].to_torch()
    wide = targets if targets.ndim > 1 else targets[:, None]
    return torch.log_softmax(logits, -1).gather(1, wide).view(targets.shape)


def gradients(model: Any) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def norm_of(tensors: list[Tensor]) -> float:
    return math.sqrt(sum(float((tensor**2).sum()) for tensor in tensors))


def weights(model: Any) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(first: list[Tensor], second: list[Tensor], tolerance: float = 0.0) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.allclose(a, b, atol=tolerance, rtol=tolerance) for a, b in pairs)


Formula = Callable[[Tensor, dict[str, Tensor], dict[str, float]], Tensor]
LOW, HIGH = "clip_low_threshold", "clip_high_threshold"
DEFAULTS = {LOW: 0.8, HIGH: 1.2, "beta": 0.05, "kl_coeff": 0.0}
"""Default values of the settings, for the losses that have them."""
OTHERS = {
    "ppo": {LOW: 0.7, HIGH: 1.1}, "cispo": {LOW: 0.9}, "dro": {"beta": 0.3}, "gspo": {HIGH: 1.1},
    "stable_reinforce": {"kl_coeff": 0.2},
}  # fmt: skip


def clip(ratio: Tensor, s: dict[str, float]) -> Tensor:
    return ratio.clip(s[LOW], s[HIGH])


def clipped(ratio: Tensor, d: dict[str, Tensor], s: dict[str, float]) -> Tensor:
    return -torch.min(ratio * d["advantages"], clip(ratio, s) * d["advantages"]).sum()


def token_ratio(p: Tensor, d: dict[str, Tensor]) -> Tensor:
    return (p - d["logprobs"]).exp()


def sequence_ratio(p: Tensor, d: dict[str, Tensor]) -> Tensor:
    mask = d["sequence_ratio_mask"]
    mean = ((p.detach() - d["logprobs"]) * mask).sum() / mask.sum().clip(1)
    return mean.exp() * (p - p.detach()).exp()


def drawn_to(p: Tensor, d: dict[str, Tensor], strength: float) -> Tensor:
    return p * d["advantages"] - strength / 2 * (p - d["logprobs"]) ** 2


FORMULAS: dict[str, Formula] = {
    "cross_entropy": lambda p, d, s: -(p * d["weights"]).sum(),
    "importance_sampling": lambda p, d, s: -(token_ratio(p, d) * d["advantages"]).sum(),
    "ppo": lambda p, d, s: clipped(token_ratio(p, d), d, s),
    "cispo": lambda p, d, s: -(clip(token_ratio(p, d), s).detach() * p * d["advantages"]).sum(),
    "dro": lambda p, d, s: -drawn_to(p, d, s["beta"]).sum(),
    "gspo": lambda p, d, s: clipped(sequence_ratio(p, d), d, s),
    "stable_reinforce": lambda p, d, s: -(drawn_to(p, d, s["kl_coeff"]) * d["sampled"]).sum(),
}
"""Loss as a function of a datum's log-probabilities, its other inputs, and the settings."""

BEGINNINGS = [some(45, 1), some(45, 2)]

row = st.builds(
    lambda which, shared, rest, seed: BEGINNINGS[which][:shared] + some(rest, seed),
    st.integers(0, 1),
    st.sampled_from([0, 0, 3, 30, 45]),
    st.integers(1, 12) | st.just(60),
    st.integers(0, 3),
)
batch = st.lists(row, min_size=1, max_size=9)


def data_of(
    rows: Sequence[list[int]], loss: str, model: Any, wide: Sequence[int] = ()
) -> list[Any]:
    """Return data for a loss, with all but the first few tokens of each row sampled.

    ``wide`` is the number of targets per token for each row, if it is not one.
    """
    data = []
    for number, tokens in enumerate(rows):
        length, prompt = len(tokens), len(tokens) // 3
        generator = torch.Generator().manual_seed(number)
        targets: Tensor = torch.tensor([*tokens[1:], 7 + number])
        if wide and wide[number]:
            targets = torch.randint(0, 200, (length, wide[number]), generator=generator)
        sampled = (torch.arange(length) >= prompt).float()
        inputs = {
            "weights": torch.rand(targets.shape, generator=generator),
            "advantages": torch.randn(length, generator=generator) * sampled,
            "sequence_ratio_mask": sampled,
        }
        plain = types.Datum(
            model_input=types.ModelInput.from_ints(tokens),
            loss_fn_inputs={"target_tokens": types.TensorData.from_torch(targets)},
        )
        with torch.no_grad():  # as if sampled by a slightly different policy
            noise = torch.randn(targets.shape, generator=generator) / 5
            inputs["logprobs"] = reference_logprobs(model, plain) + noise
        mask = ["sequence_ratio_mask"] if loss == "gspo" else []
        fields = {name: inputs[name] for name in [*get_loss(loss).required, *mask]}
        made = types.Datum(plain.model_input, {**plain.loss_fn_inputs, **fields})  # type: ignore[dict-item]
        prompts: Any = types.PromptProvenanceSpan
        replies: Any = types.SampledProvenanceSpan
        spans = [prompts(sequence_id="recorded-1", length=prompt)] * (prompt > 0)
        spans.append(replies(sequence_id="recorded-1", length=length - prompt))
        data.append(made.with_provenance(model_input=spans, loss_fn_inputs=spans))
    return data


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest, tiny_model: str) -> Trainer:
    return Trainer(model_of(request.param, tiny_model), load_tokenizer(tiny_model))


ways = st.fixed_dictionaries(
    {
        "chunk": st.sampled_from([1, 64, 4096]),
        "stretch": st.sampled_from([2**27, 4 * VOCABULARY * 7]),
        "checkpointing": st.booleans(),
        "set": st.booleans(),  # whether to set the loss's settings
        "cores": st.sampled_from([1, 3]),
    }
)
wide = st.lists(st.sampled_from([0, 0, 1, 3]), min_size=9, max_size=9)


@settings(max_examples=draws(100), deadline=None)
@given(rows=batch, loss=st.sampled_from(sorted(LOSSES)), targets=wide, way=ways)
def test_losses_and_gradients_match_plain_pytorch(
    kind: Trainer, rows: list[list[int]], loss: str, targets: list[int], way: dict[str, Any]
) -> None:
    config = OTHERS.get(loss) if way["set"] else None
    formula, model = FORMULAS[loss], kind.model
    data = data_of(rows, loss, model, targets if loss == "cross_entropy" else ())
    total, alone = torch.zeros(()), []
    for tokens, row in zip(rows, data, strict=True):
        inputs = {name: tensor.to_torch() for name, tensor in row.loss_fn_inputs.items()}
        inputs["sampled"] = (torch.arange(len(tokens)) >= len(tokens) // 3).float()
        alone.append(reference_logprobs(model, row))
        total = total + formula(alone[-1], inputs, DEFAULTS | (config or {}))
    model.zero_grad()
    total.backward()  # type: ignore[no-untyped-call]
    expected = gradients(model)
    model.zero_grad()

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(prefill._CHUNK_TOKENS, "cpu", way["chunk"])
        patch.setattr(logits, "SLICE_BYTES", way["stretch"])
        patch.setattr(parallel, "cores", lambda: way["cores"] * torch.get_num_threads())
        kind._checkpointing = way["checkpointing"]
        silent = kind.forward(kind.read(data, loss, config))
        assert gradients(model) == []
        trained = kind.forward_backward(kind.read(data, loss, config))

    scale = max(float(slope.abs().max()) for slope in expected)
    for slope, theirs in zip(gradients(model), expected, strict=True):
        torch.testing.assert_close(slope, theirs, atol=3e-5 * max(1.0, scale), rtol=2e-4)
    model.zero_grad()
    for answer in (silent, trained):
        loss_sum = pytest.approx(float(total.detach()), rel=1e-4, abs=1e-3)
        assert answer.metrics["loss:sum"] == loss_sum
        for output, logprobs in zip(answer.loss_fn_outputs, alone, strict=True):
            values = output["logprobs"].to_torch()
            torch.testing.assert_close(values, logprobs.detach(), atol=2e-5, rtol=1e-5)


def test_an_optimizer_step_equals_torchs_adamw(
    trainer: Trainer, model: Any, tiny_model: str
) -> None:
    twin = load_model(tiny_model, CPU, torch.float32)
    options: dict[str, Any] = {"lr": 1e-2, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    optimizer = torch.optim.AdamW(twin.parameters(), **options)
    for step in range(3):
        row = datum(12, step)
        loss = -(reference_logprobs(twin, row) * row.loss_fn_inputs["weights"].to_torch()).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        trainer.forward_backward(trainer.read([row], "cross_entropy"))
        trainer.optim_step(ADAM)
    assert same(weights(model), weights(twin), 1e-5)


def test_clipping_reports_the_full_norm(trainer: Trainer, model: Any, monkeypatch: Any) -> None:
    trainer.forward_backward(trainer.read([datum(20)], "cross_entropy"))
    norm = norm_of(gradients(model))
    clipped = spied(monkeypatch, torch.optim.AdamW, "step", lambda _: norm_of(gradients(model)))
    response = trainer.optim_step(types.AdamParams(grad_clip_norm=0.5))
    assert response.metrics is not None
    assert response.metrics["optim/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert clipped == [pytest.approx(0.5, rel=1e-3)]


def test_a_custom_loss_has_the_same_gradient_as_autograd(trainer: Trainer, model: Any) -> None:
    data = [datum(7, 1), datum(4, 2)]

    def loss_fn(data: list[types.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        return torch.tanh(logprobs[0].sum() / 10 - logprobs[1].sum() / 10) ** 2, {"mine": 3.0}

    loss, _ = loss_fn(data, [reference_logprobs(model, row) for row in data])
    loss.backward()
    expected = gradients(model)
    model.zero_grad()
    work = trainer.read_custom(data)
    output = trainer.forward_backward_custom(work, data, loss_fn)
    assert same(gradients(model), expected, 1e-5)
    assert output.metrics["loss:sum"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert output.metrics["mine"] == 3.0
    wrong: list[tuple[Callable[[list[types.Datum], list[Any]], Any], str]] = [
        (lambda data, logprobs: (logprobs[0].sum(), {}), "datum 1"),  # ignores datum 1
        (
            lambda data, logprobs: (logprobs[0], {}),
            r"a Tensor of shape \[7\]; expected a scalar",
        ),
        (lambda data, logprobs: (torch.ones(()), {}), r"of shape \[\], without a gradient; expect"),
        (lambda data, logprobs: (1.0, {}), "is a float; expected"),
    ]
    for ours, text in wrong:
        with pytest.raises(TrainingError, match=text):
            trainer.forward_backward_custom(work, data, ours)


def test_only_the_adapter_is_trained_and_saved(tiny_model: str, tmp_path: Path) -> None:
    config: Any = AutoConfig.from_pretrained(tiny_model, tie_word_embeddings=False)
    make: Any = AutoModelForCausalLM
    trainer = Trainer(attach_lora(make.from_config(config), 4, seed=0), load_tokenizer(tiny_model))
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    for _ in range(2):
        trainer.forward_backward(trainer.read([datum(9)], "cross_entropy"))
        trainer.optim_step(ADAM)
    after = trainer.model.named_parameters()
    changed = {name for name, p in after if not torch.equal(p, before[name])}
    trainer.save_weights(tmp_path)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert any("lm_head" in name for name in saved)
    assert changed
    assert all("lora_" in name for name in [*changed, *saved])


def test_no_step_is_taken_after_a_failed_pass(trainer: Trainer, model: Any) -> None:
    before, data = weights(model), [datum(4)]
    trainer.forward_backward(trainer.read(data, "cross_entropy"))
    with pytest.raises(TrainingError, match="is a float"):
        trainer.forward_backward_custom(trainer.read_custom(data), data, lambda *_: (1.0, {}))
    with pytest.raises(TrainingError, match="previous pass failed.*is a float"):
        trainer.optim_step(ADAM)
    assert gradients(model) == []
    huge = torch.tensor([1.0, 3e38, 1.0])
    trainer.forward_backward(trainer.read([datum(3, weights=huge)], "cross_entropy"))
    with pytest.raises(TrainingError, match="gradient norm is (nan|inf)"):
        trainer.optim_step(ADAM)
    assert same(weights(model), before)
    trainer.forward_backward(trainer.read([datum(4)], "cross_entropy"))
    trainer.optim_step(ADAM)
    assert not same(weights(model), before)
