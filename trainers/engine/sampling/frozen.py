"""A frozen model: a copy of the weights that training no longer changes, ready to sample from.

    FrozenModel (protocol)
    ├── FrozenLean      Llama-like models, through ``LeanModel``
    └── FrozenGeneric   every other Hugging Face causal language model

``freeze`` picks one. Both open batches, to decode in and to score given tokens in.
"""

import copy
from typing import Any, Protocol

import torch

from evert.trainers.engine.models.base_models import base_of
from evert.trainers.engine.models.lean import LeanModel, can_be_lean
from evert.trainers.engine.models.shared import original_of, with_own_modules
from evert.trainers.engine.sampling.batches import Batch, Weights
from evert.trainers.engine.sampling.generic_batch import GenericBatch, attends
from evert.trainers.engine.sampling.lean_batch import LeanBatch
from evert.trainers.engine.sampling.memory import cache_bytes, cache_token_bytes
from evert.trainers.engine.sampling.prefix_cache import PrefixCache

_PREFIX_SHARE = 8  # One part in so many of the cache's memory goes to remembered prefixes


class FrozenModel(Protocol):
    """Weights that do not change."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        ...

    @property
    def weights(self) -> Weights:
        """What rows of it are computed with, in a batch of its own or of another's of its base."""
        ...

    @property
    def base(self) -> Any:
        """The shared base; models with the same one have rows in one batch. None for its own."""
        ...

    @property
    def cache_tokens(self) -> int:
        """Tokens whose keys and values there is memory for, over all rows."""
        ...

    def new_batch(self) -> Batch:
        """Open an empty batch."""
        ...


class FrozenLean:
    """A frozen Llama-like model."""

    def __init__(self, model: Any) -> None:
        self.base: Any = original_of(model)  # stays loaded while it is sampled from
        lean = LeanModel(model, copied=self.base is None)
        self.device = lean.device
        per_token = cache_token_bytes(base_of(model).config, lean.dtype)
        self.cache_tokens: int = cache_bytes(lean.device) // per_token
        self.weights = Weights(lean, PrefixCache(self.cache_tokens // _PREFIX_SHARE))

    def new_batch(self) -> Batch:
        """Open an empty batch; batches share what they remember."""
        return LeanBatch(self.weights)


class FrozenGeneric:
    """A frozen copy of any Hugging Face causal language model."""

    def __init__(self, model: Any) -> None:
        """Copy ``model``, with its LoRA adapter merged in; a shared base stays, and beside it."""
        shared = original_of(model) is not None
        copied = with_own_modules(model) if shared else copy.deepcopy(model)
        frozen: Any = copied.eval().requires_grad_(False)
        if not shared and hasattr(frozen, "merge_and_unload"):
            frozen = frozen.merge_and_unload()
        self.device: torch.device = frozen.device
        self.base: Any = None  # its adapter is inside of it
        per_token = cache_token_bytes(frozen.config, frozen.dtype)
        self.cache_tokens: int = cache_bytes(self.device) // per_token
        remembered = self.cache_tokens // _PREFIX_SHARE if attends(frozen) else 0
        self.weights = Weights(frozen, PrefixCache(remembered))

    def new_batch(self) -> Batch:
        """Open an empty batch; batches share what they remember."""
        return GenericBatch(self.weights)


def freeze(model: Any) -> FrozenModel:
    """Copy a model's present weights, adapter included, into one to sample from."""
    with torch.no_grad():
        return FrozenLean(model) if can_be_lean(model) else FrozenGeneric(model)
