"""Training never needs more memory than is available."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psutil
import pytest
import torch
import transformers
from tests.kit import Patch
from tests.trainers.engine.standin import CUDA, MPS, stand_in
from tests.trainers.engine.training.test_trainer import (
    ADAM,
    CPU,
    KINDS,
    VOCABULARY,
    datum,
    gradients,
    model_of,
    same,
    weights,
)  # fmt: skip
from tests.trainers.kit import spied
from tinker import types
from torch.utils._python_dispatch import TorchDispatchMode

from evert.trainers.engine.common.errors import TrainingError
from evert.trainers.engine.models import logits
from evert.trainers.engine.models.base_models import load_tokenizer
from evert.trainers.engine.models.logits import float_logits
from evert.trainers.engine.sampling import memory
from evert.trainers.engine.sampling.memory import free_bytes, is_out_of_memory
from evert.trainers.engine.training import pass_budget as budgeting
from evert.trainers.engine.training.pass_budget import PassBudget, pass_budget
from evert.trainers.engine.training.passes import Passes
from evert.trainers.engine.training.trainer import Trainer
from evert.trainers.system import machine

aten = torch.ops.aten

DATA = [datum(n, n) for n in (60, 40, 3, 17, 17, 1)]


class Device(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mock device that records its largest logits, limits their size, and counts layers.

    Layers are recognised by their activation function: SiLU here, tanh in GPT-2.
    """

    def __init__(self, most_elements: float = float("inf"), refuse_at: int = 0) -> None:
        """``most_elements`` limits the size of the logits. ``refuse_at`` is the layer, counted from
        1, whose backward pass runs out of memory."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.most_elements, self.refuse_at = most_elements, refuse_at
        self.largest_logits = self.refused = self.computed = self.differentiated = 0

    def __torch_dispatch__(
        self, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.computed += function in {aten.silu.default, aten.tanh.default}
        if function in {aten.silu_backward.default, aten.tanh_backward.default}:
            self.differentiated += 1
            if self.differentiated == self.refuse_at:
                raise torch.OutOfMemoryError("the stand-in for a device is full")
        made = function(*args, **(kwargs or {}))
        for value in made if isinstance(made, tuple | list) else [made]:
            if isinstance(value, torch.Tensor) and value.ndim and value.shape[-1] == VOCABULARY:
                self.largest_logits = max(self.largest_logits, value.numel())
                if value.numel() > self.most_elements:
                    self.refused += 1
                    raise torch.OutOfMemoryError("the stand-in for a device is full")
        return made


@pytest.fixture(params=KINDS[:3])
def model(request: pytest.FixtureRequest, tiny_model: str) -> Any:
    return model_of(request.param, tiny_model)


@pytest.fixture
def trainer(tiny_model: str, model: Any) -> Trainer:
    return Trainer(model, load_tokenizer(tiny_model))


def gradient(trainer: Trainer, data: Sequence[types.Datum] = DATA) -> list[torch.Tensor]:
    trainer.forward_backward(trainer.read(data, "cross_entropy"))
    slopes = gradients(trainer.model)
    trainer.model.zero_grad()
    return slopes


def test_large_logits_are_never_held_in_memory_as_a_whole(
    trainer: Trainer, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(logits, "SLICE_BYTES", 4 * VOCABULARY * 33)
    with Device() as device:
        gradient(trainer)
    assert 0 < device.largest_logits <= 33 * VOCABULARY


def test_logits_of_bfloat16_weights_are_not_rounded_to_bfloat16() -> None:
    hidden, weight = torch.randn(5, 64).bfloat16() * 3, torch.randn(100, 64).bfloat16()
    exact = hidden.double() @ weight.double().T
    rounded = float((torch.nn.functional.linear(hidden, weight) - exact).abs().max())
    product = float_logits(hidden, weight, torch.zeros(100).bfloat16())
    assert product.dtype == torch.float32
    assert float((product - exact).abs().max()) < 1e-4 < 0.03 < rounded


def test_logits_and_their_gradient_on_cuda_use_products_in_the_weights_dtype() -> None:
    factors = [torch.randn(6, 64).bfloat16(), torch.randn(50, 64).bfloat16()]
    exact = [factor.double().requires_grad_() for factor in factors]
    expected = exact[0] @ exact[1].T
    slope = torch.randn(6, 50)
    expected.backward(slope.double())  # type: ignore[no-untyped-call]
    with stand_in():
        ours = [factor.to(CUDA).requires_grad_() for factor in factors]
        with patch.object(logits, "linear", side_effect=AssertionError("converts the weights")):
            product = float_logits(ours[0].view(2, 3, 64), ours[1])
        product.backward(slope.view(2, 3, 50).to(CUDA))  # type: ignore[no-untyped-call]
        slopes = [factor.grad.cpu() for factor in ours if factor.grad is not None]
    assert product.dtype == torch.float32
    assert float((product.cpu().view(6, 50) - expected).detach().abs().max()) < 1e-4
    for slope, factor in zip(slopes, exact, strict=True):
        assert factor.grad is not None
        assert float((slope - factor.grad).norm() / factor.grad.norm()) < 0.01


def test_checkpointing_computes_layers_twice_and_gives_the_same_gradient(trainer: Trainer) -> None:
    counts, slopes = [], []
    gradient(trainer)  # the first pass also tests the output layer
    for trainer._checkpointing in (False, True, False):
        with Device() as layers:
            slopes.append(gradient(trainer))
        counts.append(layers.computed)
    assert counts[0] > 0
    assert counts == [counts[0], 2 * counts[0], counts[0]]
    assert same(slopes[1], slopes[0], 1e-6)


QWEN: Any = transformers.Qwen3Config


def budget(
    free: int,
    lengths: list[int],
    checkpointing: bool | None = None,
    lanes: int = 1,
    device: torch.device = CPU,
) -> PassBudget:
    """Return the pass budget for a model the size of Qwen3-0.6B."""
    with patch.multiple(budgeting, free_bytes=lambda _: free, lanes=lambda _: lanes):
        config = QWEN(
            hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
            num_attention_heads=16, num_key_value_heads=8, head_dim=128,
        )  # fmt: skip
        return pass_budget(lengths, config, torch.float32, device, checkpointing=checkpointing)


def test_layers_are_recomputed_only_if_the_pass_would_not_fit_otherwise() -> None:
    lengths = [8000, 100]
    assert budget(2**40, lengths) == PassBudget(1024, checkpointing=False)
    assert budget(2**34, lengths) == PassBudget(1024, checkpointing=True)
    assert 256 < budget(2**33, lengths, checkpointing=False).tokens < 1024
    assert budget(2**40, lengths, checkpointing=True).checkpointing
    assert budget(0, lengths) == PassBudget(256, checkpointing=True)


def test_a_gpu_computes_fewer_tokens_per_pass_before_it_recomputes_layers() -> None:
    lengths = [500] * 100
    assert budget(2**40, lengths, device=CUDA) == PassBudget(8192, checkpointing=False)
    fewer = budget(2**35, lengths, device=CUDA)
    assert 2048 <= fewer.tokens < 8192
    assert not fewer.checkpointing
    assert budget(2**33, lengths, device=CUDA).checkpointing


def test_passes_run_in_parallel_if_they_and_their_gradients_fit() -> None:
    lengths = [500, 100]
    plenty, little = budget(2**40, lengths, lanes=2), budget(2**34, lengths, lanes=2)
    assert plenty == PassBudget(1024, checkpointing=False, parallel=2)
    assert little == PassBudget(1024, checkpointing=False)
    assert plenty.smaller(lengths) == little
    with patch.multiple(budgeting, free_bytes=lambda _: 2**38, lanes=lambda _: 2):
        budgets = [
            pass_budget(
                lengths, QWEN(), torch.float32, CPU, checkpointing=None, gradient_bytes=size
            )
            for size in (2**20, 2**36)
        ]
    assert [part.parallel for part in budgets] == [2, 1]


def test_the_free_memory_of_a_container_respects_its_limit(
    tmp_path: Path, monkeypatch: Any
) -> None:
    (tmp_path / "memory.max").write_text(f"{10**9}\n")
    (tmp_path / "memory.stat").write_text("anon 400000000\nfile 500000000\nslab_unreclaimable 1\n")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert free_bytes(CPU) == 10**9 - 4 * 10**8 - 1
    (tmp_path / "memory.max").write_text("max\n")
    assert free_bytes(CPU) > 10**9 or psutil.virtual_memory().available < 10**9


def test_the_free_memory_of_a_gpu_includes_unused_reserved_memory() -> None:
    answers = {"mem_get_info": (5000, 9000), "memory_reserved": 300, "memory_allocated": 100}
    calls: dict[str, Any] = {name: lambda _, value=value: value for name, value in answers.items()}
    with patch.multiple(torch.cuda, **calls):
        assert free_bytes(torch.device("cuda")) == 5200


@pytest.mark.parametrize(("recommended", "expected"), [(9000, 5200), (4000, 3900), (50, 0)])
def test_the_free_memory_of_mps_follows_metals_recommendation(
    recommended: int, expected: int, monkeypatch: Patch
) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 5000)
    monkeypatch.setattr(torch.mps, "recommended_max_memory", lambda: recommended)
    monkeypatch.setattr(torch.mps, "driver_allocated_memory", lambda: 300)
    monkeypatch.setattr(torch.mps, "current_allocated_memory", lambda: 100)
    assert free_bytes(MPS) == expected


def test_a_pass_that_does_not_fit_is_split(trainer: Trainer, monkeypatch: Patch) -> None:
    passes = spied(monkeypatch, Passes, "logprobs")
    first, both = [datum(30, 9)], (datum(30, 9), *DATA)
    expected = gradient(trainer, both)
    trainer.forward_backward(trainer.read(first, "cross_entropy"))
    passes.clear()
    with Device(most_elements=62 * VOCABULARY) as device:
        trainer.forward_backward(trainer.read(DATA, "cross_entropy"))
    assert len(passes) > device.refused > 0
    assert same(gradients(trainer.model), expected, 1e-4)
    with Device(most_elements=62 * VOCABULARY) as device:
        trainer.forward(trainer.read(DATA, "cross_entropy"))
    assert device.refused > 0
    assert same(gradients(trainer.model), expected, 1e-4)
    trainer.model.zero_grad()
    trainer.forward_backward(trainer.read(first, "cross_entropy"))
    # Now memory runs out in the backward pass, when some layers already have their gradient.
    with Device(refuse_at=2) as layers:
        trainer.forward_backward(trainer.read(DATA, "cross_entropy"))
    assert layers.differentiated > 2
    assert same(gradients(trainer.model), expected, 1e-4)


def test_a_datum_that_never_fits_is_refused_with_what_to_do(trainer: Trainer) -> None:
    before = weights(trainer.model)
    with (
        Device(most_elements=10),
        pytest.raises(
            TrainingError, match=r"cpu does not have enough memory for a pass over 60 tokens"
        ),
    ):
        trainer.forward_backward(trainer.read(DATA, "cross_entropy"))
    with pytest.raises(TrainingError, match="previous pass failed"):
        trainer.optim_step(ADAM)
    assert same(weights(trainer.model), before)


def test_out_of_memory_errors_are_recognised() -> None:
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)
    of_mps = "MPS backend out of memory (MPS allocated: 5.56 GB)", "Invalid buffer size: 9.75 GB"
    errors = torch.OutOfMemoryError("x"), MemoryError(), refused.value, *map(RuntimeError, of_mps)
    assert all(map(is_out_of_memory, errors))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))
