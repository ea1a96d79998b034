"""Uses a model's config to compute how much memory the model needs, before loading it.

Tensor sizes are exact. For the memory that passes need, we use the engine's estimates.
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

_ADAM = 3  # extra values per trained weight: its gradient and Adam's two moments


@dataclass(frozen=True)
class MemoryPlan:
    """Memory required by one training client and some samplers. Sizes are in bytes."""

    model: str
    parameters: int
    rank: int | None  # LoRA rank, or None if all weights are trained
    device: torch.device
    dtype: torch.dtype
    base: int  # base model's weights, in ``dtype``
    adapter: int  # adapter's weights; 0 without an adapter
    optimizer: int  # gradient and Adam's moments
    samplers: int  # one copy of the trained weights per sampler
    cache_tokens: int  # maximum number of tokens in a sampler's key-value cache
    cache: int  # maximum size of that cache
    pass_tokens: int  # maximum number of tokens in a micro-batch
    checkpointing: bool  # whether the backward pass recomputes the layers
    training_pass: int  # activations and logits of that micro-batch
    longest: int  # tokens in the longest datum that fits with checkpointing; at most the context
    free: int  # memory that is currently free on the device

    @property
    def held(self) -> int:
        """Memory that stays allocated between passes."""
        return self.base + self.adapter + self.optimizer + self.samplers

    def rows(self, tokens: int) -> int:
        """Return how many rows of ``tokens`` tokens (prompt and reply) fit in a batch."""
        return max(1, min(MAX_ROWS, self.cache_tokens // tokens))

    @property
    def fits(self) -> bool:
        """Whether ``held`` plus one training pass fit in the free memory."""
        return self.held + self.training_pass <= self.free


def plan(name: str, settings: EngineSettings, *, rank: int = 32, samplers: int = 2) -> MemoryPlan:
    """Compute a model's memory plan. ``rank`` is only used if an adapter is trained."""
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
        [1] * chunk_tokens(device), config, dtype, device, room,  # as many short examples as fit
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
    # Adapters are stored in float32 regardless of the base model's dtype.
    return sum(4 * p.numel() for p in adapted.parameters() if p.requires_grad)
