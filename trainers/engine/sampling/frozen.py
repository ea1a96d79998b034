"""Freezes models, so that training doesn't change the weights that are sampled from.

``freeze`` returns a ``FrozenLean`` for Llama-like models, and a ``FrozenGeneric`` for all others.
Both can create batches, which decode rows and score given tokens.
"""

import copy
from typing import Any

import torch

from evert.trainers.engine.models.base_models import base_of
from evert.trainers.engine.models.lean import LeanModel, can_be_lean
from evert.trainers.engine.models.shared import original_of, with_own_modules
from evert.trainers.engine.sampling.batches import FrozenModel
from evert.trainers.engine.sampling.generic_batch import GenericBatch, only_attends
from evert.trainers.engine.sampling.lean_batch import LeanBatch
from evert.trainers.engine.sampling.memory import cache_bytes, cache_token_bytes
from evert.trainers.engine.sampling.prefix_cache import PrefixCache

_PREFIX_SHARE = 8  # the prefix cache may hold 1/8 as many tokens as the key-value cache


class FrozenLean(FrozenModel):
    """A frozen Llama-like model: either a copy, or a view of a shared base model."""

    kind = LeanBatch

    def __init__(self, model: Any) -> None:
        base = original_of(model)
        lean = LeanModel(model, copied=base is None)
        tokens = _cache_tokens(lean, base_of(model).config)
        prefixes = PrefixCache(tokens // _PREFIX_SHARE)
        # Holding a reference keeps the base model loaded while a sampler uses it.
        super().__init__(lean, lean.head.shape[0], tokens, prefixes, base)


class FrozenGeneric(FrozenModel):
    """A frozen copy of any Hugging Face causal language model, with its adapter."""

    kind = GenericBatch

    def __init__(self, model: Any) -> None:
        """Copy ``model`` and merge its adapter. If the base is shared, copy only the adapter."""
        shared = original_of(model) is not None
        copied = with_own_modules(model) if shared else copy.deepcopy(model)
        frozen: Any = copied.eval().requires_grad_(False)
        if not shared and hasattr(frozen, "merge_and_unload"):
            frozen = frozen.merge_and_unload()
        tokens = _cache_tokens(frozen, frozen.config)
        prefixes = PrefixCache(tokens // _PREFIX_SHARE if only_attends(frozen) else 0)
        vocabulary = frozen.get_input_embeddings().weight.shape[0]
        super().__init__(frozen, vocabulary, tokens, prefixes)


def _cache_tokens(model: Any, config: Any) -> int:
    return cache_bytes(model.device) // cache_token_bytes(config, model.dtype)


def freeze(model: Any) -> FrozenModel:
    """Return a frozen model with a model's current weights, including its adapter."""
    with torch.no_grad():
        return FrozenLean(model) if can_be_lean(model) else FrozenGeneric(model)
