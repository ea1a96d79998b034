"""Reads log-probabilities of prompt tokens, for requests that ask for them.

    prompt_logprobs          of each token
    topk_prompt_logprobs     of the k most likely tokens at each position
    target_prompt_logprobs   of tokens that the request names for each position

All are read in the same pass over the prompt (``scoring.py``). Tokens before the first position
that is read may come from the prefix cache. Log-probabilities are at temperature 1, untruncated.

Shapes: N tokens read together, V vocabulary, T tokens of the prompt, K values per token.
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
"""Pairs of (number of last tokens to read or None for all, reader) -> each pair's values by token.

A token that is not read has the value None.
"""


@dataclass(frozen=True)
class PromptOptions:
    """A request's options about its prompt."""

    logprobs: bool = False
    topk: int = 0
    targets: types.TensorData | None = None
    """[T - 1, K] int64 token ids, -1 for none; dense or sparse."""
    last_n: int | None = None

    def check(self, length: int) -> None:
        """Check the request's options for a prompt of ``length`` tokens."""
        if self.topk < 0:
            raise SamplingRequestError(
                f"topk_prompt_logprobs is {self.topk}; expected 0 (none) or more."
            )
        check_last_n(self.last_n, length)
        if self.last_n is not None and not self.logprobs:
            raise SamplingRequestError(
                f"prompt_logprobs_last_n is {self.last_n}, but include_prompt_logprobs is not set; "
                "expected both. Set include_prompt_logprobs."
            )
        targets = self.targets
        if targets is not None and (
            targets.dtype != "int64"
            or len(targets.shape or []) != 2
            or targets.shape[0] != length - 1  # type: ignore[index]
        ):
            raise SamplingRequestError(
                f"target_prompt_logprobs is {targets.dtype} of shape {targets.shape}; expected "
                f"int64 of shape [{length - 1}, K]: a row for each token of the prompt except the "
                "first, and -1 for no token."
            )


def check_last_n(last_n: int | None, length: int) -> None:
    """Check how many of a prompt's last tokens are to be scored."""
    if last_n is not None and not 1 <= last_n <= max(1, length - 1):
        raise SamplingRequestError(
            f"prompt_logprobs_last_n is {last_n} for a prompt of {length} tokens; expected 1 to "
            f"{max(1, length - 1)} (the first token has no log-probability), or None for all."
        )


@dataclass(frozen=True)
class _FieldReading:
    """One field of the response: the values to read, and how to make the field from them."""

    last_n: int | None
    reader: Reader
    make: Callable[[list[Any]], Any]


def prompt_fields(score: Score, options: PromptOptions) -> "Future[dict[str, Any]]":
    """Read a prompt's values in one pass; return fields of a ``SampleResponse``."""
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
    """Return the k most likely tokens at each position, the most likely first."""
    ids = np.zeros((len(rows), k), np.int32)
    logprobs = np.full((len(rows), k), MASK_LOGPROB, np.float32)
    for i, row in enumerate(rows):
        if row is not None:
            ids[i, : len(row[0])], logprobs[i, : len(row[0])] = row
    return TopkLogprobs(ids, logprobs)


@cache
def _top_logprobs(k: int) -> Reader:
    """Return one reader per k, so that requests with the same k are read together."""

    def read(logits: Tensor, tokens: np.ndarray, places: np.ndarray) -> Sequence[Any]:
        best = torch.log_softmax(logits, dim=-1).topk(min(k, logits.shape[1]), dim=-1)
        ids, logprobs = best.indices.cpu().numpy(), best.values.cpu().numpy()
        return list(zip(ids, logprobs, strict=True))

    return read


class _Targets:
    """Reads the log-probabilities of the tokens that a request names for each position."""

    def __init__(self, targets: types.TensorData) -> None:
        self._targets = targets
        self._ids = targets.to_torch(pad_value=-1)
        positions = (self._ids >= 0).any(dim=1).nonzero()[:, 0].tolist()
        self.last_n = len(self._ids) - positions[0] if positions else 1
        """Number of last tokens to read, from the first position with a named token."""
        self._vocabulary = 0
        """Size of the model's vocabulary; 0 until the first read."""

    def __call__(self, logits: Tensor, tokens: np.ndarray, places: np.ndarray) -> Sequence[Any]:
        self._vocabulary = logits.shape[1]
        ids = self._ids[torch.from_numpy(places - 1)].to(logits.device)
        # ``in_request_layout`` refuses unknown ids: an error here would also fail other requests.
        ids_in_range = ids.clamp(0, self._vocabulary - 1)
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, ids_in_range)
        return list(logprobs.masked_fill(ids < 0, 0.0).cpu().unbind())

    def in_request_layout(self, rows: list[Any]) -> types.TensorData:
        """Return the log-probabilities in the layout of the request."""
        if self._ids.numel() and int(self._ids.max()) >= self._vocabulary:
            raise SamplingRequestError(
                f"target_prompt_logprobs names token id {int(self._ids.max())}; the model knows 0 "
                f"to {self._vocabulary - 1}. Use the model's tokenizer, and -1 for none."
            )
        dense = torch.zeros(self._ids.shape)
        for i, row in enumerate(rows[1:]):
            if row is not None:
                dense[i] = row
        return _in_layout_of(dense, self._targets)


def _in_layout_of(dense: Tensor, like: types.TensorData) -> types.TensorData:
    """Return a tensor in the layout of ``like``, with the same cells if ``like`` is sparse."""
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
