"""Computes how many tokens of a training pass fit into memory.

If a pass would not fit, each layer keeps only its input and is recomputed in the backward pass, and
the batch is split into micro-batches. The gradient is the same sum either way.
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

_SHARE = 2  # A training pass may use the free memory divided by this
_ENOUGH_TOKENS = 2048  # A pass of this size is faster than a larger one with checkpointing
_LEAST_TOKENS = 256  # Smaller micro-batches would be slow


@dataclass(frozen=True)
class PassBudget:
    """How a batch is split for training."""

    tokens: int  # Maximum tokens of a micro-batch, padding included; a longer row is alone
    checkpointing: bool  # Whether the backward pass recomputes the layers
    parallel: int = 1  # Maximum number of micro-batches that run in parallel

    def smaller(self, lengths: Sequence[int]) -> "PassBudget | None":
        """Return the next smaller budget for rows of these lengths; None if there is none."""
        if self.parallel > 1:
            return replace(self, parallel=1)
        if not self.checkpointing:
            return replace(self, checkpointing=True)
        two_shortest = sum(sorted(lengths)[:2])
        if len(lengths) == 1 or self.tokens < two_shortest:
            return None
        return replace(self, tokens=min(self.tokens, sum(lengths)) // 2)


def activation_bytes(config: Any, dtype: torch.dtype, *, checkpointing: bool) -> int:
    """Estimate the bytes per token of a training pass, without logits; usually too high."""
    config = config.get_text_config()
    hidden, layers = config.hidden_size, config.num_hidden_layers
    intermediate = getattr(config, "intermediate_size", None) or 4 * hidden
    heads, key_heads, size = attention_sizes(config)
    rotated, itemsize = (heads + key_heads) * size, dtype.itemsize
    # Norms and rotations are computed in float32, whatever the type of the weights.
    layer = itemsize * (4 * hidden + 5 * intermediate + 2 * rotated) + 8 * hidden + 13 * rotated
    # A recomputed layer and its gradient take three times its bytes, as measured.
    return int(layers * itemsize * hidden + 3 * layer if checkpointing else layers * layer)


def logits_bytes(config: Any, device: torch.device) -> int:
    """Return the bytes of a training pass's logits, and of what their backward pass keeps."""
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
    """Split a batch of rows of these lengths so that a pass fits into ``free`` bytes.

    ``free`` None: the memory that is free now. ``checkpointing`` None: only if the pass would not
    fit otherwise. ``gradient_bytes``: size of the gradient of each parallel pass.
    """
    chunk = chunk_tokens(device)
    logits = logits_bytes(config, device)
    room = max(0, (free_bytes(device) if free is None else free) // _SHARE - logits)
    if checkpointing is None:
        largest = max(max(lengths), min(chunk, _ENOUGH_TOKENS, sum(lengths)))
        checkpointing = largest * activation_bytes(config, dtype, checkpointing=False) > room
    token_bytes = activation_bytes(config, dtype, checkpointing=checkpointing)
    tokens = min(chunk, max(_LEAST_TOKENS, room // token_bytes))
    # One more than run in parallel: a finished pass whose gradient waits to be added.
    pass_bytes = max(tokens, *lengths) * token_bytes + logits + gradient_bytes
    fits = (lanes(device) + 1) * pass_bytes <= room
    return PassBudget(tokens, checkpointing, lanes(device) if fits else 1)
