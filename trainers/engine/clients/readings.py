"""Computes log-probabilities of prompt tokens, for requests that ask for them.

    prompt_logprobs          of each prompt token
    topk_prompt_logprobs     of the k most likely tokens at each position
    target_prompt_logprobs   of the tokens that the request lists for each position

All of them are computed in the same forward pass over the prompt (``scoring.py``). Tokens before
the first requested position may come from the prefix cache. Log-probabilities are computed at
temperature 1, without top-k or top-p truncation.

Shapes: N tokens read together, V vocabulary size, T prompt tokens, K values per token.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from tinker import types
from tinker.types.topk_logprobs import MASK_LOGPROB, TopkLogprobs
from torch import Tensor

from evert.trainers.engine.clients.futures import chain, finished_future
from evert.trainers.engine.common.errors import SamplingRequestError
from evert.trainers.engine.sampling.scoring import Reader, log_probabilities

Score = Callable[[Sequence[tuple[int | None, Reader]]], "Future[list[list[Any]]]"]
"""Takes (last_n, reader) pairs and returns, for each pair, one value per prompt token.

``last_n`` is how many of the prompt's last tokens to read (None for all). If a token is not read,
its value is None.
"""


@dataclass(frozen=True)
class PromptOptions:
    """The prompt log-probabilities that a request asks for."""

    logprobs: bool = False
    topk: int = 0
    targets: types.TensorData | None = None
    """[T - 1, K] int64 token ids, padded with -1; dense or sparse."""
    last_n: int | None = None

    def check(self, length: int) -> None:
        """Raise an error if the options don't match a prompt of ``length`` tokens."""
        if self.topk < 0:
            raise SamplingRequestError(
                f"topk_prompt_logprobs is {self.topk}; expected 0 (off) or more."
            )
        check_last_n(self.last_n, length)
        if self.last_n is not None and not self.logprobs:
            raise SamplingRequestError(
                f"prompt_logprobs_last_n is {self.last_n}, but include_prompt_logprobs is not set. "
                "Set include_prompt_logprobs as well."
            )
        targets = self.targets
        if targets is not None and (
            targets.dtype != "int64"
            or len(targets.shape or []) != 2
            or targets.shape[0] != length - 1  # type: ignore[index]
        ):
            raise SamplingRequestError(
                f"target_prompt_logprobs is {targets.dtype} of shape {targets.shape}; expected "
                f"int64 of shape [{length - 1}, K]: one row for each prompt token except the "
                "first, padded with -1."
            )


def check_last_n(last_n: int | None, length: int) -> None:
    """Raise an error unless ``last_n`` is a valid number of prompt tokens to score."""
    if last_n is not None and not 1 <= last_n <= max(1, length - 1):
        raise SamplingRequestError(
            f"prompt_logprobs_last_n is {last_n} for a prompt of {length} tokens; expected 1 to "
            f"{max(1, length - 1)} (the first token has no log-probability), or None for all."
        )


@dataclass(frozen=True)
class _FieldReading:
    """One field of the response: which values to read, and how to build the field from them."""

    last_n: int | None
    reader: Reader
    make: Callable[[list[Any]], Any]


def prompt_fields(score: Score, options: PromptOptions) -> "Future[dict[str, Any]]":
    """Compute the requested ``SampleResponse`` fields in one pass over the prompt."""
    parts = _parts(options)
    if not parts:
        return finished_future(dict[str, Any]()).future()

    def fields(values: list[list[Any]]) -> dict[str, Any]:
        return {
            name: part.make(row) for (name, part), row in zip(parts.items(), values, strict=True)
        }

    scores = score([(part.last_n, part.reader) for part in parts.values()])
    return chain(scores, lambda values: finished_future(fields(values)).future())


def _parts(options: PromptOptions) -> dict[str, _FieldReading]:
    parts: dict[str, _FieldReading] = {}
    if options.logprobs:
        parts["prompt_logprobs_np"] = _FieldReading(
            options.last_n, log_probabilities, lambda values: np.array(values, dtype=np.float32)
        )
    if options.topk:
        parts["topk_prompt_logprobs_np"] = _FieldReading(
            options.last_n, _top_logprobs(options.topk), lambda rows: _topk(rows, options.topk)
        )
    if options.targets is not None:
        targets = _Targets(options.targets)
        parts["target_prompt_logprobs"] = _FieldReading(
            targets.last_n, targets, targets.in_request_layout
        )
    return parts


def _topk(rows: list[Any], k: int) -> TopkLogprobs:
    """Return the k most likely tokens at each position, most likely first."""
    ids = np.zeros((len(rows), k), np.int32)
    logprobs = np.full((len(rows), k), MASK_LOGPROB, np.float32)
    for i, row in enumerate(rows):
        if row is not None:
            ids[i, : len(row[0])], logprobs[i, : len(row[0])] = row
    return TopkLogprobs(ids, logprobs)


@cache
def _top_logprobs(k: int) -> Reader:
    """Return a reader that finds the k most likely tokens.

    The reader is cached, so that requests with the same k use the same reader and can be batched.
    """

    def read(logits: Tensor, tokens: np.ndarray, places: np.ndarray) -> Sequence[Any]:
        best = torch.log_softmax(logits, dim=-1).topk(min(k, logits.shape[1]), dim=-1)
        ids, logprobs = best.indices.cpu().numpy(), best.values.cpu().numpy()
        return list(zip(ids, logprobs, strict=True))

    return read


class _Targets:
    """Reads the log-probabilities of the tokens that a request lists for each position."""

    def __init__(self, targets: types.TensorData) -> None:
        self._targets = targets
        self._ids = targets.to_torch(pad_value=-1)
        positions = (self._ids >= 0).any(dim=1).nonzero()[:, 0].tolist()
        self.last_n = len(self._ids) - positions[0] if positions else 1
        """How many of the last tokens to read: all from the first position that has targets."""
        self._vocabulary = 0
        """The model's vocabulary size (0 until the first read)."""

    def __call__(self, logits: Tensor, tokens: np.ndarray, places: np.ndarray) -> Sequence[Any]:
        self._vocabulary = logits.shape[1]
        ids = self._ids[torch.from_numpy(places - 1)].to(logits.device)
        # Unknown ids are reported later, in ``in_request_layout``: raising here would also fail
        # the other requests in the batch.
        ids_in_range = ids.clamp(0, self._vocabulary - 1)
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, ids_in_range)
        return list(logprobs.masked_fill(ids < 0, 0.0).cpu().unbind())

    def in_request_layout(self, rows: list[Any]) -> types.TensorData:
        """Return the log-probabilities in the same layout as the request's targets."""
        if self._ids.numel() and int(self._ids.max()) >= self._vocabulary:
            raise SamplingRequestError(
                f"target_prompt_logprobs contains token id {int(self._ids.max())}, but the model's "
                f"ids go from 0 to {self._vocabulary - 1}. Use the model's tokenizer, and pad with "
                "-1."
            )
        dense = torch.zeros(self._ids.shape)
        for i, row in enumerate(rows[1:]):
            if row is not None:
                dense[i] = row
        return _in_layout_of(dense, self._targets)


def _in_layout_of(dense: Tensor, like: types.TensorData) -> types.TensorData:
    """Convert ``dense`` to the layout of ``like``. If ``like`` is sparse, keep only its cells."""
    if like.sparse_crow_indices is None or like.sparse_col_indices is None:
        return types.TensorData.from_torch(dense)
    counts = np.diff(like.sparse_crow_indices)
    rows = np.repeat(np.arange(len(counts)), counts)
    columns = np.array(like.sparse_col_indices, int)
    return types.TensorData(
        data=dense.numpy()[rows, columns],
        dtype="float32",
        shape=like.shape,
        sparse_crow_indices=like.sparse_crow_indices,
        sparse_col_indices=like.sparse_col_indices,
    )
