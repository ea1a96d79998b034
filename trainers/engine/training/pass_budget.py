"""Computes how many tokens fit in memory in one training pass.

If a pass wouldn't fit, each layer keeps only its input and is recomputed in the backward pass, and
the batch is split into micro-batches. The gradient is a sum, so splitting doesn't change it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from evert.trainers.engine.common.parallel import lanes
from evert.trainers.engine.models.base_models import attention_sizes
from evert.trainers.engine.models.logits import SLICE_BYTES
from evert.trainers.engine.sampling.memory import free_bytes
from evert.trainers.engine.sampling.prefill import chunk_tokens

_SHARE = 2  # a training pass may use half of the free memory
_ENOUGH_TOKENS = 2048  # if a pass of this size fits, checkpointing would only slow it down
_LEAST_TOKENS = 256  # smaller micro-batches would be slow


@dataclass(frozen=True)
class PassBudget:
    """How a batch is split for training."""

    tokens: int  # maximum tokens per micro-batch, including padding (unless a row is longer)
    checkpointing: bool  # whether the backward pass recomputes the layers
    parallel: int = 1  # maximum number of micro-batches that run in parallel

    def smaller(self, lengths: Sequence[int]) -> "PassBudget | None":
        """Return the next smaller budget for rows of these lengths, or None if there isn't one."""
        if self.parallel > 1:
            return replace(self, parallel=1)
        if not self.checkpointing:
            return replace(self, checkpointing=True)
        two_shortest = sum(sorted(lengths)[:2])
        if len(lengths) == 1 or self.tokens < two_shortest:
            return None
        return replace(self, tokens=min(self.tokens, sum(lengths)) // 2)


def activation_bytes(config: Any, dtype: torch.dtype, *, checkpointing: bool) -> int:
    """Estimate how many bytes a training pass needs per token, excluding logits.

    This is usually an overestimate.
    """
    config = config.get_text_config()
    hidden, layers = config.hidden_size, config.num_hidden_layers
    intermediate = getattr(config, "intermediate_size", None) or 4 * hidden
    heads, key_heads, size = attention_sizes(config)
    rotated, itemsize = (heads + key_heads) * size, dtype.itemsize
    # Norms and rotations are computed in float32 regardless of the weights' dtype.
    layer = itemsize * (4 * hidden + 5 * intermediate + 2 * rotated) + 8 * hidden + 13 * rotated
    # In measurements, recomputing a layer and its gradients took three times the layer's memory.
    return int(layers * itemsize * hidden + 3 * layer if checkpointing else layers * layer)


def logits_bytes(config: Any, device: torch.device) -> int:
    """Return the size of a training pass's logits, including what their backward pass needs."""
    chunk_bytes = 4 * chunk_tokens(device) * int(config.get_text_config().vocab_size)
    return 4 * min(SLICE_BYTES, chunk_bytes)


def pass_budget(
    lengths: Sequence[int],
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    free: int | None = None,
    *,
    checkpointing: bool | None,
    gradient_bytes: int = 0,
) -> PassBudget:
    """Decide how to split rows of these lengths so that a pass fits in ``free`` bytes.

    ``free`` defaults to the memory that is currently free. If ``checkpointing`` is None, layers
    are recomputed only if the pass wouldn't fit otherwise. ``gradient_bytes`` is the size of the
    gradient that each parallel pass computes.
    """
    chunk = chunk_tokens(device)
    logits = logits_bytes(config, device)
    room = max(0, (free_bytes(device) if free is None else free) // _SHARE - logits)
    if checkpointing is None:
        largest = max(max(lengths), min(chunk, _ENOUGH_TOKENS, sum(lengths)))
        checkpointing = largest * activation_bytes(config, dtype, checkpointing=False) > room
    token_bytes = activation_bytes(config, dtype, checkpointing=checkpointing)
    tokens = min(chunk, max(_LEAST_TOKENS, room // token_bytes))
    # Leave room for one extra pass that has finished but whose gradient isn't accumulated yet.
    pass_bytes = max(tokens, *lengths) * token_bytes + logits + gradient_bytes
    fits = (lanes(device) + 1) * pass_bytes <= room
    return PassBudget(tokens, checkpointing, lanes(device) if fits else 1)
