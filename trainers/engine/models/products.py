"""Multiplies by weight matrices, using oneDNN where PyTorch's default is slow.

PyTorch computes float32 products with MKL, which uses only half the vector width on AMD processors.
On these processors, oneDNN, which comes with PyTorch, takes half the time, both forward and
backward. (PyTorch already uses oneDNN for bfloat16.) A oneDNN call has 10 us more overhead, so we
keep using MKL for small products.

Shapes: ``...`` rows, I input features, O output features.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from evert.trainers.system.machine import made_by_amd

_GAINS = 2**27
"""oneDNN is faster if the number of inputs times the number of weights is at least this.

This was measured for 1 to 3,000 rows and 128 to 3,072 features.
"""

_MPS_SUM = 2**14
"""Maximum number of terms in a sum on MPS, for example in the backward pass.

On M1 and M2, sums of more than 32,766 numbers are wrong (PyTorch issue 177116).
"""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``F.linear`` of x [..., I], weight [O, I] and bias [O] or None: [..., O]."""
    if weight.device.type == "mps" and len(weight) > _MPS_SUM:
        product = torch.cat([F.linear(x, block) for block in torch.split(weight, _MPS_SUM)], dim=-1)
        return product if bias is None else product + bias
    if not _gains(x, weight):
        return F.linear(x, weight, bias)
    if torch.is_grad_enabled():
        result: Tensor = _Linear.apply(x, weight, bias)  # type: ignore[no-untyped-call]
        return result
    return _product(x, weight, bias)


def add_product(onto: Tensor, x: Tensor, weight: Tensor) -> Tensor:
    """Return ``onto + linear(x, weight)``. On CUDA without gradients, this overwrites ``onto``.

    Overwriting saves an operation. On CUDA, the duration of a short step depends on the number of
    operations.
    """
    if x.device.type != "cuda" or torch.is_grad_enabled() or onto.dtype != weight.dtype:
        return onto + linear(x, weight)
    onto.view(-1, onto.shape[-1]).addmm_(x.flatten(0, -2), weight.T)
    return onto


def float_product(x: Tensor, y: Tensor) -> Tensor:
    """Compute ``x @ y`` in float32 for [..., n, m] and [..., m, k], without gradients.

    On CUDA, x is rounded to y's dtype, and the products are accumulated in float32.
    """
    if y.device.type != "cuda" or y.dtype == torch.float32:
        return x.float() @ y.float()
    batches = x.to(y.dtype).flatten(0, -3), y.flatten(0, -3)
    product: Tensor = torch.bmm(*batches, out_dtype=torch.float32)
    return product.view(*x.shape[:-1], y.shape[-1])


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        needed = ctx.needs_input_grad
        rows = grad.flatten(0, -2)
        return (
            linear(grad, weight.T) if needed[0] else None,
            linear(rows.T, x.flatten(0, -2).T) if needed[1] else None,
            rows.sum(0) if needed[2] else None,
        )


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return product


def _gains(x: Tensor, weight: Tensor) -> bool:
    return (
        x.numel() * weight.numel() >= _GAINS  # first, because it is the cheapest test
        and x.dtype == weight.dtype == torch.float32
        and x.device.type == "cpu"
        and _onednn_is_faster()
    )


@cache
def _onednn_is_faster() -> bool:
    is_available = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return is_available and hasattr(torch.ops.mkldnn, "_linear_pointwise") and made_by_amd()
