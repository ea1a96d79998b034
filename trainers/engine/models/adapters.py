"""LoRA adapters beside a base that stays as it is: what they add to the output of its layers.

An adapter of rank r adds ``up @ down @ x``, with matrices of r rows and r columns. Layers that are
computed as one have their adapters computed as one, too: the ``down`` lie one below the other, the
``up`` along a diagonal. The numbers are those of ``peft``, in the adapter's own type, which is
float32 also where the base is in bfloat16.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Delta:
    """What an adapter adds to a linear layer, from ``in`` to ``out`` features."""

    down: Tensor
    """[R, in]"""
    up: Tensor
    """[out, R], scaled."""


def delta_of(*linears: Any) -> Delta | None:
    """What an adapter adds to layers that are computed as one, with its present weights.

    Where gradients are on, they reach the adapter; otherwise this is a copy.

    Args:
        *linears: Layers of the same input, each in a ``peft`` LoRA layer or not.

    Returns:
        None where no layer has an adapter.
    """
    downs: list[Tensor] = []
    ups: list[Tensor] = []
    for linear in linears:
        found = _factors(linear)
        downs += [down for down, _ in found]
        # Of no columns where a layer has no adapter: its rows of the diagonal stay 0.
        empty = torch.zeros(base_layer(linear).out_features, 0)
        ups.append(torch.cat([up for _, up in found], dim=1) if found else empty)
    if not downs:
        return None
    together: Any = torch.block_diag
    return Delta(torch.cat(downs), together(*(up.to(downs[0]) for up in ups)))


def changed(result: Tensor, x: Tensor, delta: Delta | None) -> Tensor:
    """A layer's result with what an adapter adds to it, in the result's type.

    Args:
        result: [..., out].
        x: [..., in], from which it was computed.
        delta: None for no adapter.
    """
    if delta is None:
        return result
    added = F.linear(F.linear(x.to(delta.down.dtype), delta.down), delta.up)
    return (result + added).to(result.dtype)


def base_layer(linear: Any) -> Any:
    """The layer inside of an adapter, or the layer itself."""
    return getattr(linear, "base_layer", linear)


def _factors(linear: Any) -> list[tuple[Tensor, Tensor]]:
    """(down, scaled up) of each adapter that is in use."""
    return [
        (linear.lora_A[name].weight, linear.lora_B[name].weight * linear.scaling[name])
        for name in getattr(linear, "active_adapters", ())
        if name in linear.lora_A
    ]
