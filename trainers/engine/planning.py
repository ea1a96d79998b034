"""The memory that a model needs, computed from its configuration before loading.

The sizes of tensors are exact. The sizes of passes are the engine's estimates.
"""

from dataclasses import dataclass
from typing import Any

import torch

from evert.trainers.engine.models.base_models import (
    attach_lora,
    context_length,
    count_parameters,
    load_outline,
)
from evert.trainers.engine.models.loading import EngineSettings, Loader
from evert.trainers.engine.sampling.memory import cache_bytes, cache_token_bytes, free_bytes
from evert.trainers.engine.sampling.prefill import chunk_tokens
from evert.trainers.engine.sampling.scheduler import MAX_ROWS
from evert.trainers.engine.training.pass_budget import activation_bytes, logits_bytes, pass_budget

_ADAM = 3  # Extra numbers per trained weight: its gradient and Adam's two moments


@dataclass(frozen=True)
class MemoryPlan:
    """The memory of one training client and some samplers of a model; sizes in bytes."""

    model: str
    parameters: int
    rank: int | None  # Rank of the adapter; None if all weights are trained
    device: torch.device
    dtype: torch.dtype
    base: int  # The base's weights, in ``dtype``
    adapter: int  # The adapter's weights; 0 without an adapter
    optimizer: int  # Gradient and Adam's moments
    samplers: int  # A copy of the trained weights for each sampler
    cache_tokens: int  # Maximum number of tokens in a sampler's key-value cache
    cache: int  # Maximum size of that cache
    pass_tokens: int  # Maximum number of tokens of a micro-batch
    checkpointing: bool  # Whether the backward pass recomputes the layers
    training_pass: int  # Activations and logits of that micro-batch
    longest: int  # Tokens of the longest datum that fits with checkpointing; at most the context
    free: int  # Free memory on the device now

    @property
    def held(self) -> int:
        """Bytes that stay allocated between passes."""
        return self.base + self.adapter + self.optimizer + self.samplers

    def rows(self, tokens: int) -> int:
        """Return how many rows of ``tokens`` tokens (prompt and reply) are sampled at a time."""
        return max(1, min(MAX_ROWS, self.cache_tokens // tokens))

    @property
    def fits(self) -> bool:
        """Whether ``held`` and one training pass fit into the free memory."""
        return self.held + self.training_pass <= self.free


def plan(name: str, settings: EngineSettings, *, rank: int = 32, samplers: int = 2) -> MemoryPlan:
    """Plan a model's memory with ``samplers`` samplers; an adapter has rank ``rank``."""
    loader = Loader(settings)
    device, outline = loader.device, load_outline(name)
    config, context = outline.config, context_length(outline)
    full_parameter = loader.trains_whole(outline)
    dtype = loader.dtype(full_parameter=full_parameter)
    parameters = count_parameters(outline)
    base = parameters * dtype.itemsize
    adapter = 0 if full_parameter else _adapter_bytes(outline, rank)
    trained = base if full_parameter else adapter
    optimizer, copies = _ADAM * trained, samplers * trained
    free = free_bytes(device)
    room = max(0, free - base - adapter - optimizer - copies)
    budget = pass_budget(
        [1] * chunk_tokens(device), config, dtype, device, room,  # as many short data as fit
        checkpointing=settings.gradient_checkpointing,
    )  # fmt: skip
    token_bytes = activation_bytes(config, dtype, checkpointing=budget.checkpointing)
    checkpointed_bytes = activation_bytes(config, dtype, checkpointing=True)
    logits = logits_bytes(config, device)
    cache = cache_bytes(device, room)
    return MemoryPlan(
        name, parameters, None if full_parameter else rank, device, dtype,
        base, adapter, optimizer, copies,
        cache // cache_token_bytes(config, dtype), cache,
        budget.tokens, budget.checkpointing, budget.tokens * token_bytes + logits,
        min(context, max(0, room - logits) // checkpointed_bytes), free,
    )  # fmt: skip


def _adapter_bytes(outline: Any, rank: int) -> int:
    adapted = attach_lora(outline, rank, seed=0)
    # Adapters are stored in float32, whatever the base's dtype.
    return sum(4 * p.numel() for p in adapted.parameters() if p.requires_grad)
