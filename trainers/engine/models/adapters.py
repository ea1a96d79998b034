"""LoRA adapters beside a base that stays as it is: what they add to the output of its layers.

An adapter of rank r adds ``up @ down @ x``, with matrices of r rows and r columns. Layers that are
computed as one have their adapters computed as one, too: the ``down`` lie one below the other, the
``up`` along a diagonal. The numbers are those of ``peft``. An adapter is in float32, and is
multiplied in the base's type: in float32 it could take a GPU longer than a base in bfloat16
does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evert.trainers.engine.models.products import linear


@dataclass(frozen=True)
class Delta:
    """What an adapter adds to a linear layer, from ``in`` to ``out`` features."""

    down: Tensor  # [R, in]
    up: Tensor  # [out, R], scaled
    used: Tensor | None = None  # [B, R] 1 where a row has it, else 0; None: all have all


def delta_of(*linears: Any) -> Delta | None:
    """What adapters add to layers computed as one; None where none has one."""
    found = [_factors(linear) for linear in linears]
    if not any(found):
        return None
    downs = [down for factors in found for down, _ in factors]
    ups: list[Tensor] = []
    for layer, factors in zip(linears, found, strict=True):
        # Of no columns where a layer has no adapter: its rows of the diagonal stay 0.
        empty = torch.zeros(base_layer(layer).out_features, 0)
        ups.append(torch.cat([up for _, up in factors], dim=1) if factors else empty)
    together: Any = torch.block_diag
    base: Tensor = base_layer(linears[0]).weight
    return Delta(torch.cat(downs).to(base), together(*(up.to(base) for up in ups)))


def changed(result: Tensor, x: Tensor, delta: Delta | None) -> Tensor:
    """A layer's [..., out] of x [..., in], with what an adapter adds."""
    if delta is None:
        return result
    inner = linear(x, delta.down)
    if delta.used is not None:
        inner = inner * (delta.used if inner.ndim == 2 else delta.used[:, None])
    return result + linear(inner, delta.up)


def dealt(deltas: Sequence[Delta | None], which: Tensor) -> Delta | None:
    """What several adapters add to a layer, row i of a batch getting that of ``which[i]``."""
    found = [(number, delta) for number, delta in enumerate(deltas) if delta is not None]
    if not found:
        return None
    owners = [number for number, delta in found for _ in range(len(delta.down))]
    used = torch.tensor(owners, device=which.device) == which[:, None]
    downs, ups = zip(*((delta.down, delta.up) for _, delta in found), strict=True)
    down = torch.cat(downs)
    return Delta(down, torch.cat(ups, dim=1), used.to(down.dtype))


def base_layer(linear: Any) -> Any:
    """The layer inside of an adapter, or the layer itself."""
    return getattr(linear, "base_layer", linear)


def _factors(linear: Any) -> list[tuple[Tensor, Tensor]]:
    return [
        (linear.lora_A[name].weight, linear.lora_B[name].weight * linear.scaling[name])
        for name in getattr(linear, "active_adapters", ())
        if name in linear.lora_A
    ]
