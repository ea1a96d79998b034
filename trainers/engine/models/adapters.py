"""Applies LoRA adapters on top of a frozen base model's layers.

An adapter of rank r adds ``up @ down @ x`` to a layer's output, where ``down`` has r rows and
``up`` has r columns. When layers are fused, their adapters are fused as well: the ``down`` matrices
are stacked, and the ``up`` matrices form a block-diagonal matrix. The results are the same as
peft's. Adapters are stored in float32, but products with them are computed in the base model's
dtype: on a GPU, float32 products could take longer than the whole base model takes in bfloat16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from evert.trainers.engine.models.products import add_product, linear


@dataclass(frozen=True)
class Delta:
    """The low-rank update that an adapter adds to a linear layer (``in`` to ``out`` features)."""

    down: Tensor  # [R, in]
    up: Tensor  # [out, R], including the adapter's scale
    mask: Tensor | None = None  # [B, R], 1 for the ranks that a row uses, else 0 (None: all 1)


def delta_of(*linears: Any) -> Delta | None:
    """Return the combined delta for fused layers, or None if none of them has an adapter."""
    layer_factors = [_factors(linear) for linear in linears]
    if not any(layer_factors):
        return None
    downs = [down for factors in layer_factors for down, _ in factors]
    ups: list[Tensor] = []
    for layer, factors in zip(linears, layer_factors, strict=True):
        # A layer without an adapter contributes no columns, so its rows in the block diagonal are 0
        empty = torch.zeros(base_layer(layer).out_features, 0)
        ups.append(torch.cat([up for _, up in factors], dim=1) if factors else empty)
    block_diag: Any = torch.block_diag
    base: Tensor = base_layer(linears[0]).weight
    return Delta(torch.cat(downs).to(base), block_diag(*(up.to(base) for up in ups)))


def add_delta(result: Tensor, x: Tensor, delta: Delta | None) -> Tensor:
    """Return ``result`` [..., out] plus the delta. ``add_product`` may overwrite ``result``."""
    if delta is None:
        return result
    low_rank = linear(x, delta.down)
    if delta.mask is not None:
        low_rank = low_rank * (delta.mask if low_rank.ndim == 2 else delta.mask[:, None])
    return add_product(result, low_rank, delta.up)


def batch_deltas(deltas: Sequence[Delta | None], indices: Tensor) -> Delta | None:
    """Combine several adapters of a layer into one that uses ``deltas[indices[i]]`` for row i."""
    present = [(number, delta) for number, delta in enumerate(deltas) if delta is not None]
    if not present:
        return None
    owners = [number for number, delta in present for _ in range(len(delta.down))]
    mask = torch.tensor(owners, device=indices.device) == indices[:, None]
    downs, ups = zip(*((delta.down, delta.up) for _, delta in present), strict=True)
    down = torch.cat(downs)
    return Delta(down, torch.cat(ups, dim=1), mask.to(down.dtype))


def base_layer(linear: Any) -> Any:
    """Return the layer that an adapter wraps, or the layer itself if it has no adapter."""
    return getattr(linear, "base_layer", linear)


def _factors(linear: Any) -> list[tuple[Tensor, Tensor]]:
    return [
        (linear.lora_A[name].weight, linear.lora_B[name].weight * linear.scaling[name])
        for name in getattr(linear, "active_adapters", ())
        if name in linear.lora_A
    ]
