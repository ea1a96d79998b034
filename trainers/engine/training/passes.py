"""Forward passes for training: computes the log-probabilities of targets from rows of tokens.

Llama-like models use the same forward pass as the sampler, and compute common prefixes once. All
other models use transformers' forward pass. Large logits are computed in slices. For the other
models, this is possible only if the logits are the output layer's unmodified output, which we check
once on a few tokens.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evert.trainers.engine.models.base_models import base_of
from evert.trainers.engine.models.lean import Attend, LeanModel, can_be_lean
from evert.trainers.engine.models.logits import float_logits, logprobs_of, target_logprobs
from evert.trainers.engine.models.pictures import vision_inputs
from evert.trainers.engine.sampling.batches import pad
from evert.trainers.engine.sampling.lean_batch import attention, mask_of
from evert.trainers.engine.training.families import Folded, fold


class Passes:
    """Runs a model's forward passes in training."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._vision = vision_inputs(model)
        self.folds = can_be_lean(model)  # whether common prefixes are computed once
        self._checkpointing = False

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights. An adapter may have a different type."""
        return self.model.get_input_embeddings().weight.dtype  # type: ignore[no-any-return]

    @property
    def vocabulary(self) -> int:
        """The model's vocabulary size."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def set_checkpointing(self, enabled: bool) -> None:
        """Set whether future backward passes recompute each layer."""
        base: Any = base_of(self.model)
        if enabled == self._checkpointing or not base.supports_gradient_checkpointing:
            return
        self._checkpointing = enabled
        if self.folds:
            return
        name = "activation_checkpointing"  # not available in older transformers versions
        if not hasattr(base, f"{name}_enable"):
            name = "gradient_checkpointing"
        if enabled:
            options = {"use_reentrant": False, "preserve_rng_state": False}
            getattr(base, f"{name}_enable")(options)
        else:
            getattr(base, f"{name}_disable")()
        for module in base.modules():
            # Layers only checkpoint in training mode. Their submodules stay in eval mode, so that
            # they don't use dropout.
            if hasattr(module, "gradient_checkpointing"):
                module.training = enabled

    def logprobs(self, rows: Sequence[np.ndarray], targets: Tensor) -> Tensor:
        """Return float32 log-probabilities for [N] or [N, K] targets, row by row. Thread-safe."""
        if self.folds:
            return self._folded_logprobs(rows, targets)
        tokens = pad(rows, self.device)
        token_mask = _token_mask(rows, self.device)
        # Padding is on the right, where tokens of causal models never attend, so we need no mask.
        inputs = self._model_inputs(rows, tokens)
        if self._plain_decoder is None:
            logits = self.model(**inputs, use_cache=False).logits
            return logprobs_of(logits[token_mask].float(), targets)
        hidden = self._plain_decoder(**inputs, use_cache=False).last_hidden_state
        return target_logprobs(hidden[token_mask], self._head, targets, self.vocabulary)

    def _model_inputs(self, rows: Sequence[np.ndarray], tokens: Tensor) -> dict[str, Tensor]:
        """Return the inputs for transformers' forward pass: [B, T] ids and images."""
        if self._vision is None:
            return {"input_ids": tokens}
        places = np.zeros((3, *tokens.shape), np.int64)
        for number, row in enumerate(rows):
            places[:, number, : len(row)] = self._vision.positions(row)
        return {
            "input_ids": self._vision.ids(tokens),
            "position_ids": torch.from_numpy(places).to(self.device),
            **self._vision.pixels(rows, self.device),
        }

    def _folded_logprobs(self, rows: Sequence[np.ndarray], targets: Tensor) -> Tensor:
        folded = fold(rows)
        lean = LeanModel(self.model, copied=False)
        hidden = self._folded_hidden(lean, folded)
        places = torch.from_numpy(folded.places).to(self.device)
        if targets.ndim > 1 or len(hidden) == len(places):
            return target_logprobs(hidden[places], lean.logits, targets, self.vocabulary)
        # Shared tokens have the same target in all rows, except where tails start. Compute each
        # (token, target) pair only once.
        pairs, inverse = torch.unique(places * self.vocabulary + targets, return_inverse=True)
        places, targets = pairs // self.vocabulary, pairs % self.vocabulary
        return target_logprobs(hidden[places], lean.logits, targets, self.vocabulary)[inverse]

    def _folded_hidden(self, lean: LeanModel, folded: Folded) -> Tensor:
        """Return the hidden states [n, H] of all stem tokens, followed by all tail tokens."""
        tokens = pad(folded.stems, self.device)
        positions = torch.arange(tokens.shape[1], device=self.device).expand_as(tokens)
        lean.reserve(max(map(len, folded.stems)) + max(map(len, folded.tails), default=0))
        checkpointing = self._checkpointing
        stem_cache: dict[int, tuple[Tensor, Tensor]] = {}
        hidden = lean.hidden(
            tokens, positions, _caching_attention(stem_cache), checkpointing=checkpointing
        )
        flat = hidden[_token_mask(folded.stems, self.device)]
        if not folded.tails:
            return flat
        tokens = pad(folded.tails, self.device)
        owners = torch.tensor(folded.owners, device=self.device)
        starts = torch.tensor([len(stem) for stem in folded.stems], device=self.device)[owners]
        positions = starts[:, None] + torch.arange(tokens.shape[1], device=self.device)
        attend = _tail_attention(lean, stem_cache, owners, starts, tokens.shape[1])
        hidden = lean.hidden(tokens, positions, attend, checkpointing=checkpointing)
        return torch.cat([flat, hidden[_token_mask(folded.tails, self.device)]])

    def _head(self, hidden: Tensor) -> Tensor:
        head = self.model.get_output_embeddings()
        if type(head) is nn.Linear:
            return float_logits(hidden, head.weight, head.bias)
        return head(hidden).float()  # type: ignore[no-any-return]

    @cached_property
    def _plain_decoder(self) -> Any:
        """The model without its output layer, or None if the model modifies the layer's logits."""
        base: Any = base_of(self.model)
        decoder = base.model if self._vision is not None else base.get_decoder()
        return decoder if _is_plain(self.model, decoder) else None


def _token_mask(rows: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Return a mask [B, T] that is True for tokens and False for padding."""
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return torch.arange(int(lengths.max()), device=device) < lengths[:, None]


def _caching_attention(stem_cache: dict[int, tuple[Tensor, Tensor]]) -> Attend:
    """Return a causal attention function that also stores keys and values in ``stem_cache``."""

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        key_values = keys.transpose(1, 2), values.transpose(1, 2)
        stem_cache.setdefault(layer, key_values)
        return attention(queries, *key_values, mask=None)

    return attend


def _tail_attention(
    lean: LeanModel,
    stem_cache: dict[int, tuple[Tensor, Tensor]],
    owners: Tensor,
    starts: Tensor,
    count: int,
) -> Attend:
    """Return an attention function for tails of ``count`` tokens, which also attend to their stem.

    ``owners`` [B] contains the index of each row's stem, and ``starts`` [B] the stem's length.
    """
    length, device = stem_cache[0][0].shape[2], owners.device
    on_stem = torch.arange(length, device=device) < starts[:, None]
    causal = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    parts = on_stem[:, None].expand(-1, count, -1), causal.expand(len(owners), -1, -1)
    mask = mask_of(torch.cat(parts, dim=-1), lean)

    def attend(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        before = stem_cache[layer]
        keys = torch.cat([before[0][owners], keys.transpose(1, 2)], dim=2)
        values = torch.cat([before[1][owners], values.transpose(1, 2)], dim=2)
        return attention(queries, keys, values, mask)

    return attend


def _is_plain(model: Any, decoder: Any) -> bool:
    """Return whether the logits are exactly the output layer applied to the hidden states."""
    head = model.get_output_embeddings()
    if head is None or decoder is base_of(model):
        return False
    probe = torch.arange(1, 5, device=model.device)[None]
    with torch.no_grad():
        expected = model(input_ids=probe, use_cache=False).logits
        hidden = getattr(decoder(input_ids=probe, use_cache=False), "last_hidden_state", None)
        return hidden is not None and torch.equal(head(hidden), expected)
