"""A frozen model: weights that training no longer changes, ready to sample from.

``freeze`` makes a ``FrozenLean`` of a Llama-like model, a ``FrozenGeneric`` of any other. Both
open batches, which decode rows and score given tokens.
"""

import copy
from typing import Any, ClassVar

import torch

from evert.trainers.engine.models.base_models import base_of
from evert.trainers.engine.models.lean import LeanModel, can_be_lean
from evert.trainers.engine.models.shared import original_of, with_own_modules
from evert.trainers.engine.sampling.batches import Batch, Weights
from evert.trainers.engine.sampling.generic_batch import GenericBatch, attends
from evert.trainers.engine.sampling.lean_batch import LeanBatch
from evert.trainers.engine.sampling.memory import cache_bytes, cache_token_bytes
from evert.trainers.engine.sampling.prefix_cache import PrefixCache

_PREFIX_SHARE = 8  # The prefix cache gets the cache's memory divided by this


class FrozenModel:
    """Weights that do not change; their batches share a prefix cache."""

    kind: ClassVar[type[Batch]]  # Class of its batches

    def __init__(self, model: Any, config: Any, vocabulary: int, *, remembers: bool) -> None:
        self.device: torch.device = model.device
        self.base: Any = None  # Models of one base share batches; None if the base is not shared
        self.cache_tokens = cache_bytes(self.device) // cache_token_bytes(config, model.dtype)
        """Most tokens in the key-value cache, over all rows."""
        remembered = self.cache_tokens // _PREFIX_SHARE if remembers else 0
        self.weights = Weights(model, vocabulary, PrefixCache(remembered))
        """The weights of its rows, in its own batches and in those of other models of its base."""

    def new_batch(self) -> Batch:
        """Open an empty batch."""
        return self.kind(self.weights)


class FrozenLean(FrozenModel):
    """A frozen Llama-like model: a copy, or a view of a shared base."""

    kind = LeanBatch

    def __init__(self, model: Any) -> None:
        base = original_of(model)
        lean = LeanModel(model, copied=base is None)
        super().__init__(lean, base_of(model).config, lean.head.shape[0], remembers=True)
        self.base = base  # stays loaded while it is sampled from


class FrozenGeneric(FrozenModel):
    """A frozen copy of any Hugging Face causal language model, with its adapter."""

    kind = GenericBatch

    def __init__(self, model: Any) -> None:
        """Copy ``model`` with its adapter merged in; of a shared base, copy only the adapter."""
        shared = original_of(model) is not None
        copied = with_own_modules(model) if shared else copy.deepcopy(model)
        frozen: Any = copied.eval().requires_grad_(False)
        if not shared and hasattr(frozen, "merge_and_unload"):
            frozen = frozen.merge_and_unload()
        vocabulary = frozen.config.get_text_config(decoder=True).vocab_size
        super().__init__(frozen, frozen.config, vocabulary, remembers=attends(frozen))


def freeze(model: Any) -> FrozenModel:
    """Copy a model's present weights, adapter included, into one to sample from."""
    with torch.no_grad():
        return FrozenLean(model) if can_be_lean(model) else FrozenGeneric(model)
