"""Computes forward passes in training: from rows of tokens to log-probabilities of targets.

A Llama-like model uses its sampler's forward pass, and computes common prefixes once. Any other
model uses transformers' forward pass. Large logits are computed in slices; for other models only
if the output layer alone computes the logits, which is checked once on a few tokens.
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
    """The forward passes of one model in training."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._vision = vision_inputs(model)
        self.folds = can_be_lean(model)  # Whether common prefixes are computed once
        self._checkpointing = False

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights; an adapter's may differ."""
        return self.model.get_input_embeddings().weight.dtype  # type: ignore[no-any-return]

    @property
    def vocabulary(self) -> int:
        """Size of the model's vocabulary."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def set_checkpointing(self, enabled: bool) -> None:
        """Set whether later backward passes recompute each layer."""
        base: Any = base_of(self.model)
        if enabled == self._checkpointing or not base.supports_gradient_checkpointing:
            return
        self._checkpointing = enabled
        if self.folds:
            return
        name = "activation_checkpointing"  # older versions have only the other name
        if not hasattr(base, f"{name}_enable"):
            name = "gradient_checkpointing"
        if enabled:
            options = {"use_reentrant": False, "preserve_rng_state": False}
            getattr(base, f"{name}_enable")(options)
        else:
            getattr(base, f"{name}_disable")()
        for module in base.modules():
            # Layers checkpoint only in training mode; their submodules must not use dropout.
            if hasattr(module, "gradient_checkpointing"):
                module.training = enabled

    def logprobs(self, rows: Sequence[np.ndarray], targets: Tensor) -> Tensor:
        """Return float32 log-probabilities of [N] or [N, K] targets, row by row. Thread-safe."""
        if self.folds:
            return self._folded_logprobs(rows, targets)
        tokens = pad(rows, self.device)
        token_mask = _token_mask(rows, self.device)
        # Right padding needs no mask: a causal model's earlier tokens never see it.
        inputs = self._model_inputs(rows, tokens)
        if self._plain_decoder is None:
            logits = self.model(**inputs, use_cache=False).logits
            return logprobs_of(logits[token_mask].float(), targets)
        hidden = self._plain_decoder(**inputs, use_cache=False).last_hidden_state
        return target_logprobs(hidden[token_mask], self._head, targets, self.vocabulary)

    def _model_inputs(self, rows: Sequence[np.ndarray], tokens: Tensor) -> dict[str, Tensor]:
        """Return the inputs of transformers' forward pass: [B, T] ids, and images."""
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
        # A shared token has the same target in all rows, except where tails begin; compute it once.
        pairs, inverse = torch.unique(places * self.vocabulary + targets, return_inverse=True)
        places, targets = pairs // self.vocabulary, pairs % self.vocabulary
        return target_logprobs(hidden[places], lean.logits, targets, self.vocabulary)[inverse]

    def _folded_hidden(self, lean: LeanModel, folded: Folded) -> Tensor:
        """Return the hidden states [n, H] of the stems' tokens, then of the tails'."""
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
        """The layers below the output layer; None if the model changes that layer's logits."""
        base: Any = base_of(self.model)
        decoder = base.model if self._vision is not None else base.get_decoder()
        return decoder if _is_plain(self.model, decoder) else None


def _token_mask(rows: Sequence[np.ndarray], device: torch.device) -> Tensor:
    """Return a mask [B, T]: True for tokens of the rows, False for padding."""
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return torch.arange(int(lengths.max()), device=device) < lengths[:, None]


def _caching_attention(stem_cache: dict[int, tuple[Tensor, Tensor]]) -> Attend:
    """Return causal attention within each row; it puts keys and values into ``stem_cache``."""

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
    """Return attention of ``count`` tokens per row to the row's stem and to its tail so far.

    ``owners`` [B] is the index of a row's stem, ``starts`` [B] the stem's length.
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
    """Return whether the output layer alone turns hidden states into the logits, bitwise."""
    head = model.get_output_embeddings()
    if head is None or decoder is base_of(model):
        return False
    probe = torch.arange(1, 5, device=model.device)[None]
    with torch.no_grad():
        expected = model(input_ids=probe, use_cache=False).logits
        hidden = getattr(decoder(input_ids=probe, use_cache=False), "last_hidden_state", None)
        return hidden is not None and torch.equal(head(hidden), expected)
