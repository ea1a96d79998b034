"""A pass of the model in training: from rows of tokens to log-probabilities of their targets.

An adapter of a shared base runs as its sampler runs it (``lean.py``), any other model as
transformers runs it. Logits are computed in one piece where they are small, and a stretch at a time
where not (``logits.py``), which takes a model whose logits are those of its output layer and
nothing else; that is tried once, on a few tokens.
"""

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from evert.trainers.engine.models.base_models import base_of
from evert.trainers.engine.models.lean import LeanModel, can_be_lean
from evert.trainers.engine.models.logits import (
    fits_whole,
    float_logits,
    logprobs_of,
    target_logprobs,
)
from evert.trainers.engine.models.pictures import sight_of
from evert.trainers.engine.models.shared import original_of
from evert.trainers.engine.sampling.batches import pad
from evert.trainers.engine.sampling.lean_batch import attention


class Passes:
    """The forward passes of one model in training."""

    def __init__(self, model: Any) -> None:
        """Run ``model``, whatever its weights are when it runs."""
        self.model = model
        self.count = 0
        """Passes so far."""
        self._counting = threading.Lock()
        self._sight = sight_of(model)
        self._is_lean = original_of(model) is not None and can_be_lean(model)
        self._decoder: Any = None
        self._checkpointing = False

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights; an adapter's may be another."""
        return self.model.get_input_embeddings().weight.dtype  # type: ignore[no-any-return]

    @property
    def vocabulary(self) -> int:
        """Tokens the model knows."""
        return int(self.model.get_input_embeddings().weight.shape[0])

    def set_checkpointing(self, wanted: bool) -> None:
        """Have the backward passes to come compute each layer again, or not."""
        base: Any = base_of(self.model)
        if wanted == self._checkpointing or not base.supports_gradient_checkpointing:
            return
        self._checkpointing = wanted
        if self._is_lean:
            return
        if wanted:
            base.gradient_checkpointing_enable(
                {"use_reentrant": False, "preserve_rng_state": False}
            )
        else:
            base.gradient_checkpointing_disable()
        for module in base.modules():
            # Layers heed it in training mode alone; what is inside of them must not drop out.
            if hasattr(module, "gradient_checkpointing"):
                module.training = wanted

    def logprobs(self, rows: Sequence[Sequence[int]], targets: Tensor) -> Tensor:
        """Log-probabilities of the targets. May run in several threads at a time.

        Args:
            rows: Token ids.
            targets: [sum of the rows' lengths] or [sum, K], row after row.

        Returns:
            Of the targets' shape, float32.
        """
        with self._counting:
            self.count += 1
        tokens = pad(rows, self.device)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        real = torch.arange(tokens.shape[1], device=self.device) < lengths[:, None]
        if self._is_lean:
            hidden, head = self._lean_hidden(tokens)
            return target_logprobs(hidden[real], head, targets, self.vocabulary)
        # Right padding needs no mask: a causal model's earlier tokens never see it.
        given = self._given(rows, tokens)
        if self._small(tokens) or self._plain_decoder() is None:
            logits = self.model(**given, use_cache=False).logits
            return logprobs_of(logits[real].float(), targets)
        hidden = self._plain_decoder()(**given, use_cache=False).last_hidden_state
        return target_logprobs(hidden[real], self._head, targets, self.vocabulary)

    def _given(self, rows: Sequence[Sequence[int]], tokens: Tensor) -> dict[str, Tensor]:
        """What the model's own forward pass takes for some rows: [B, T] ids, and images."""
        if self._sight is None:
            return {"input_ids": tokens}
        arrays = [np.asarray(row) for row in rows]
        places = np.zeros((3, *tokens.shape), np.int64)
        for number, row in enumerate(arrays):
            places[:, number, : len(row)] = self._sight.positions(row)
        return {
            "input_ids": self._sight.ids(tokens),
            "position_ids": torch.from_numpy(places).to(self.device),
            **self._sight.pixels(arrays, self.device),
        }

    def _lean_hidden(self, tokens: Tensor) -> tuple[Tensor, Any]:
        lean = LeanModel(self.model, copied=False)
        lean.reserve(tokens.shape[1])
        positions = torch.arange(tokens.shape[1], device=self.device).expand_as(tokens)
        again = self._checkpointing
        hidden = lean.hidden(tokens, positions, _causal, checkpointing=again)
        return hidden, lean.logits

    def _small(self, tokens: Tensor) -> bool:
        return self.dtype == torch.float32 and fits_whole(tokens.numel(), self.vocabulary)

    def _head(self, hidden: Tensor) -> Tensor:
        head = self.model.get_output_embeddings()
        if type(head) is nn.Linear:
            return float_logits(hidden, head.weight, head.bias)
        return head(hidden).float()  # type: ignore[no-any-return]

    def _plain_decoder(self) -> Any:
        """The layers below the output layer; None where the model does more to its logits."""
        if self._decoder is None:
            base: Any = base_of(self.model)
            decoder = base.model if self._sight is not None else base.get_decoder()
            self._decoder = (decoder if _is_plain(self.model, decoder) else None,)
        return self._decoder[0]


def _causal(layer: int, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Each token sees itself and what came before it in its row."""
    return attention(queries, keys.transpose(1, 2), values.transpose(1, 2), mask=None)


def _is_plain(model: Any, decoder: Any) -> bool:
    """Whether the logits are the output layer's of the decoder's last hidden state, to the bit."""
    head = model.get_output_embeddings()
    if head is None or decoder is base_of(model):
        return False
    probe = torch.arange(1, 5, device=model.device)[None]
    with torch.no_grad():
        expected = model(input_ids=probe, use_cache=False).logits
        hidden = getattr(decoder(input_ids=probe, use_cache=False), "last_hidden_state", None)
        return hidden is not None and torch.equal(head(hidden), expected)
