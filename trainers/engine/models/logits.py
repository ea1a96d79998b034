"""Computes logits and log-probabilities from hidden states, in float32 and in slices.

With a vocabulary of 151,936, the logits of 8,000 tokens take 4.9 GB, and a backward pass holds
several tensors of this size. We therefore compute logits in slices, and recompute them in the
backward pass. We compute them in float32, because bfloat16 would round a logit of 20 by up to 0.06.

Shapes: N tokens, H hidden, V vocabulary, K targets per token.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from evert.trainers.engine.models.products import linear

SLICE_BYTES = 2**27  # size of a slice in training; a backward pass holds about three of them
_BLOCK = {"cpu": 2**10}
"""How many rows of the output layer to convert to float32 at once, to fit in the CPU cache."""


def float_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute [..., H] -> [..., V] in float32, whatever the dtype of the [V, H] weights."""
    if weight.dtype == torch.float32:
        return linear(hidden, weight, bias)
    # With float16 weights, the product is inexact if gradients are needed: small gradients of the
    # logits would underflow to 0.
    is_exact = weight.dtype == torch.bfloat16 or not torch.is_grad_enabled()
    if weight.device.type == "cuda" and is_exact:
        flat: Tensor = _Product.apply(hidden.flatten(0, -2), weight)  # type: ignore[no-untyped-call]
        logits = flat.view(*hidden.shape[:-1], len(weight))
    else:
        exact, rows = hidden.float(), _BLOCK.get(weight.device.type, 2**14)
        blocks = [linear(exact, block.float()) for block in torch.split(weight, rows)]
        logits = torch.cat(blocks, dim=-1)
    return logits if bias is None else logits + bias.float()


class _Product(torch.autograd.Function):
    """Differentiable product of [N, H] and [V, H] in bfloat16, with a float32 result [N, V].

    PyTorch's ``mm`` with ``out_dtype`` doesn't support gradients.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return torch.mm(hidden, weight.T, out_dtype=torch.float32)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        hidden, weight = ctx.saved_tensors
        grad = grad.to(weight.dtype)
        return (
            grad @ weight if ctx.needs_input_grad[0] else None,
            grad.T @ hidden if ctx.needs_input_grad[1] else None,
        )


def checkpointed(call: Callable[..., Tensor], *args: Any) -> Tensor:
    """Run ``call``, recomputing it in the backward pass instead of keeping its activations."""
    result: Tensor = checkpoint(call, *args, use_reentrant=False, preserve_rng_state=False)
    return result


def target_logprobs(
    hidden: Tensor, head: Callable[[Tensor], Tensor], targets: Tensor, vocabulary: int
) -> Tensor:
    """Compute float32 log-probabilities of [N] or [N, K] targets without materializing all logits.

    ``head`` maps [n, H] to [n, V] logits in float32.
    """
    rows = max(1, SLICE_BYTES // (4 * vocabulary))

    def slice_logprobs(hidden: Tensor, targets: Tensor) -> Tensor:
        return logprobs_of(head(hidden), targets)

    if len(hidden) <= rows:
        return slice_logprobs(hidden, targets)
    pieces = zip(torch.split(hidden, rows), torch.split(targets, rows), strict=True)
    return torch.cat([checkpointed(slice_logprobs, *piece) for piece in pieces])


def logprobs_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Compute the log-probabilities of [N] or [N, K] targets from [N, V] logits."""
    if targets.ndim == 1:
        return -F.cross_entropy(logits, targets, reduction="none")
    return torch.log_softmax(logits, dim=-1).gather(1, targets)
