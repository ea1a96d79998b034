"""Training: exact sums in any micro-batches, AdamW as torch has it, failures that hurt nothing.

1. Losses and gradients of a batch equal those computed datum by datum on the model itself.
2. An optimizer step is torch's AdamW; gradients add up until it, and are forgotten after it.
3. A custom loss has the gradient autograd would give it.
4. After a failed pass the next step is refused and the weights stay as they are.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tinker import types
from transformers import AutoConfig, AutoModelForCausalLM

from evert.trainers.engine.common.errors import LossInputError, TrainingError
from evert.trainers.engine.models.base_models import attach_lora, load_model, load_tokenizer
from evert.trainers.engine.sampling import prefill
from evert.trainers.engine.training.trainer import Trainer

CPU = torch.device("cpu")
ADAM = types.AdamParams(learning_rate=1e-2, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)


@pytest.fixture
def model(tiny_model: str) -> Any:
    return load_model(tiny_model, CPU, torch.float32)


@pytest.fixture
def trainer(tiny_model: str, model: Any) -> Trainer:
    return Trainer(model, load_tokenizer(tiny_model))


def datum(length: int, seed: int = 0, **inputs: Any) -> types.Datum:
    tokens = torch.randint(0, 200, (length + 1,), generator=torch.Generator().manual_seed(seed))
    weights = torch.rand(length, generator=torch.Generator().manual_seed(seed))
    return types.Datum(
        model_input=types.ModelInput.from_ints(tokens[:-1].tolist()),
        loss_fn_inputs={"target_tokens": tokens[1:], **(inputs or {"weights": weights})},  # type: ignore[dict-item]
    )


def rl_datum(length: int, seed: int) -> types.Datum:
    noise = torch.randn(2, length, generator=torch.Generator().manual_seed(seed))
    return datum(length, seed, logprobs=noise[0] - 4, advantages=noise[1])


def reference_logprobs(model: Any, one: types.Datum) -> torch.Tensor:
    logits = model(torch.tensor([one.model_input.to_ints()])).logits[0]
    targets = one.loss_fn_inputs["target_tokens"].to_torch()
    return torch.log_softmax(logits, -1).gather(1, targets[:, None])[:, 0]


def gradients(model: Any) -> list[torch.Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def weights(model: Any) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(first: list[torch.Tensor], second: list[torch.Tensor], tolerance: float = 0.0) -> bool:
    pairs = zip(first, second, strict=True)
    return all(torch.allclose(a, b, atol=tolerance, rtol=tolerance) for a, b in pairs)


@pytest.mark.parametrize("budget", [1, 64, 4096])
def test_a_batchs_loss_and_gradient_are_the_sums_over_its_datums(
    trainer: Trainer, model: Any, monkeypatch: pytest.MonkeyPatch, budget: int
) -> None:
    monkeypatch.setitem(prefill._CHUNK_TOKENS, "cpu", budget)
    data = [datum(n, n) for n in (5, 40, 3, 17, 17, 1)]
    total = torch.zeros(())
    for one in data:
        total = (
            total
            - (reference_logprobs(model, one) * one.loss_fn_inputs["weights"].to_torch()).sum()
        )
    total.backward()  # type: ignore[no-untyped-call]
    expected = gradients(model)
    model.zero_grad()
    output = trainer.forward_backward(data, "cross_entropy", None)
    assert output.metrics["loss:sum"] == pytest.approx(float(total.detach()), rel=1e-5)
    assert same(gradients(model), expected, 1e-4)


def test_outputs_are_the_targets_logprobs_in_the_order_of_the_data(
    trainer: Trainer, model: Any
) -> None:
    data = [rl_datum(n, n) for n in (5, 40, 3)]
    output = trainer.forward(data, "ppo", None)
    for one, found in zip(data, output.loss_fn_outputs, strict=True):
        expected = reference_logprobs(model, one)
        torch.testing.assert_close(found["logprobs"].to_torch(), expected, atol=1e-5, rtol=1e-5)


def test_a_forward_pass_leaves_no_gradient(trainer: Trainer, model: Any) -> None:
    trainer.forward([datum(5)], "cross_entropy", None)
    assert gradients(model) == []


def test_datums_with_many_targets_a_token_are_summed_too(trainer: Trainer, model: Any) -> None:
    targets = torch.randint(0, 200, (6, 3))
    shares = torch.rand(6, 3)
    wide = types.Datum(
        model_input=types.ModelInput.from_ints([1, 2, 3, 4, 5, 6]),
        loss_fn_inputs={
            "target_tokens": types.TensorData.from_torch(targets),
            "weights": types.TensorData.from_torch(shares),
        },
    )
    output = trainer.forward([wide, datum(6)], "cross_entropy", None)
    logits = model(torch.tensor([[1, 2, 3, 4, 5, 6]])).logits[0]
    expected = torch.log_softmax(logits, -1).gather(1, targets)
    found = output.loss_fn_outputs[0]["logprobs"].to_torch()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_a_step_is_torchs_adamw(trainer: Trainer, model: Any, tiny_model: str) -> None:
    twin = load_model(tiny_model, CPU, torch.float32)
    optimizer = torch.optim.AdamW(
        twin.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1
    )
    for step in range(3):
        one = datum(12, step)
        (
            -(reference_logprobs(twin, one) * one.loss_fn_inputs["weights"].to_torch()).sum()
        ).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        trainer.forward_backward([one], "cross_entropy", None)
        trainer.optim_step(ADAM)
    assert same(weights(model), weights(twin), 1e-5)


def test_gradients_add_up_until_the_step_and_are_forgotten_after_it(
    trainer: Trainer, model: Any
) -> None:
    data = [datum(6, 1), datum(9, 2)]
    trainer.forward_backward(data, "cross_entropy", None)
    together = gradients(model)
    model.zero_grad()
    for one in data:
        trainer.forward_backward([one], "cross_entropy", None)
    assert same(gradients(model), together, 1e-4)
    trainer.optim_step(ADAM)
    assert gradients(model) == []


def test_clipping_scales_the_gradient_and_reports_the_norm_before(
    trainer: Trainer, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer.forward_backward([datum(20)], "cross_entropy", None)
    norm = math.sqrt(sum(float((g**2).sum()) for g in gradients(model)))
    clipped: list[float] = []
    step = torch.optim.AdamW.step

    def spy(optimizer: torch.optim.AdamW) -> None:
        clipped.append(math.sqrt(sum(float((g**2).sum()) for g in gradients(model))))
        step(optimizer)

    monkeypatch.setattr(torch.optim.AdamW, "step", spy)
    response = trainer.optim_step(types.AdamParams(grad_clip_norm=0.5))
    assert response.metrics is not None
    assert response.metrics["optim/grad_norm"] == pytest.approx(norm, rel=1e-4)
    assert clipped == [pytest.approx(0.5, rel=1e-3)]


def test_training_lowers_the_loss(trainer: Trainer) -> None:
    data = [datum(12, seed) for seed in range(4)]
    losses = []
    for _ in range(12):
        losses.append(trainer.forward_backward(data, "cross_entropy", None).metrics["loss:sum"])
        trainer.optim_step(types.AdamParams(learning_rate=1e-2))
    assert losses[-1] < 0.5 * losses[0]


def test_a_custom_loss_has_the_gradient_autograd_gives_it(trainer: Trainer, model: Any) -> None:
    data = [datum(7, 1), datum(4, 2)]

    def loss_fn(data: list[types.Datum], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        return torch.tanh(logprobs[0].sum() / 10 - logprobs[1].sum() / 10) ** 2, {"mine": 3.0}

    loss, _ = loss_fn(data, [reference_logprobs(model, one) for one in data])
    loss.backward()
    expected = gradients(model)
    model.zero_grad()
    output = trainer.forward_backward_custom(data, loss_fn)
    assert same(gradients(model), expected, 1e-5)
    assert output.metrics["loss:sum"] == pytest.approx(float(loss.detach()), rel=1e-4)
    assert output.metrics["mine"] == 3.0


def test_an_adapter_trains_and_the_base_stays(tiny_model: str) -> None:
    model = attach_lora(load_model(tiny_model, CPU, torch.float32), 4, seed=0)
    trainer = Trainer(model, load_tokenizer(tiny_model))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(2):
        trainer.forward_backward([datum(9)], "cross_entropy", None)
        trainer.optim_step(ADAM)
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert changed
    assert all("lora_" in name for name in changed)


Break = Callable[[Trainer], Any]
FAILURES: dict[str, tuple[Break, str]] = {
    "no data": (lambda t: t.forward_backward([], "ppo", None), "no data"),
    "unknown loss": (lambda t: t.forward_backward([datum(3)], "mse", None), "'mse'"),
    "missing tensors": (lambda t: t.forward_backward([datum(3)], "ppo", None), "Datum 0.*missing"),
    "wrong shape": (
        lambda t: t.forward_backward([datum(3, weights=torch.ones(2))], "cross_entropy", None),
        r"Datum 0: weights has shape \(2,\); expected \(3,\)",
    ),
    "no targets": (
        lambda t: t.forward_backward_custom(
            [types.Datum(model_input=types.ModelInput.from_ints([1]))], lambda d, p: (p, {})
        ),
        "target_tokens",
    ),
}


@pytest.mark.parametrize("name", FAILURES)
def test_after_a_failed_pass_the_step_is_refused_and_the_weights_stay(
    trainer: Trainer, model: Any, name: str
) -> None:
    before = weights(model)
    trainer.forward_backward([datum(4)], "cross_entropy", None)
    attempt, text = FAILURES[name]
    with pytest.raises(LossInputError, match=text):
        attempt(trainer)
    with pytest.raises(TrainingError, match="pass before it failed"):
        trainer.optim_step(ADAM)
    assert same(weights(model), before)
    trainer.forward_backward([datum(4)], "cross_entropy", None)
    trainer.optim_step(ADAM)


def test_a_gradient_that_is_not_finite_is_refused(trainer: Trainer, model: Any) -> None:
    before = weights(model)
    bad = datum(3, weights=torch.tensor([1.0, math.inf, 1.0]))
    trainer.forward_backward([bad], "cross_entropy", None)
    with pytest.raises(TrainingError, match="gradient's norm is (nan|inf)"):
        trainer.optim_step(ADAM)
    assert same(weights(model), before)


def test_a_custom_loss_that_ignores_a_datum_is_refused(trainer: Trainer) -> None:
    with pytest.raises(TrainingError, match="datum 1"):
        trainer.forward_backward_custom(
            [datum(3), datum(4)], lambda data, logprobs: (logprobs[0].sum(), {})
        )


def test_a_chunk_that_is_not_text_is_refused(trainer: Trainer) -> None:
    picture = types.ImageChunk(data=b"", format="png", expected_tokens=1)
    odd = types.Datum(
        model_input=types.ModelInput(chunks=[picture]),
        loss_fn_inputs={"target_tokens": [1], "weights": [1.0]},  # type: ignore[dict-item]
    )
    with pytest.raises(LossInputError, match="not text"):
        trainer.forward([odd], "cross_entropy", None)


def test_an_adapters_files_hold_the_adapter_alone(tiny_model: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config: Any = AutoConfig.from_pretrained(tiny_model, tie_word_embeddings=False)
    make: Any = AutoModelForCausalLM
    trainer = Trainer(attach_lora(make.from_config(config), 4, seed=0), load_tokenizer(tiny_model))
    trainer.save_weights(tmp_path)
    saved = load_file(tmp_path / "adapter_model.safetensors")
    assert any("lm_head" in name for name in saved)
    assert all("lora_" in name for name in saved)
