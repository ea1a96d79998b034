"""Converts training requests to tensors, validates them, and splits them into micro-batches.

Requests are validated before they are passed to the worker, so an invalid request doesn't affect
the accumulated gradient or other calls.

Shapes: N tokens in a datum, K targets per token.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tinker import types
from torch import Tensor

from evert.trainers.engine.common.errors import LossInputError
from evert.trainers.engine.models.pictures import Picture, PictureReader
from evert.trainers.engine.training.families import cut
from evert.trainers.engine.training.losses import (
    Loss,
    check_inputs,
    get_loss,
    resolve_settings,
    warn_of_alpha,
)
from evert.trainers.engine.training.provenance import check_spans, sampled_mask


@dataclass
class DatumTensors:
    """A datum as tensors."""

    tokens: np.ndarray  # [N] int64
    targets: Tensor  # [N] or [N, K]
    inputs: dict[str, Tensor]  # other loss inputs: float32, with the same shape as the targets
    pictures: Sequence[Picture] = ()  # images in ``tokens``

    def to(self, device: torch.device) -> "DatumTensors":
        """Return a copy with its tensors on the given device."""
        inputs = {key: value.to(device) for key, value in self.inputs.items()}
        return replace(self, targets=self.targets.to(device), inputs=inputs)


@dataclass(frozen=True)
class Limits:
    """Limits on the data that a model accepts."""

    vocabulary: int
    """The model's vocabulary size."""
    context: int
    """Maximum number of tokens in a datum."""
    reader: PictureReader
    """Parses the model's inputs, including images."""


@dataclass(frozen=True)
class Work:
    """A training request: the data, on the CPU, and the loss."""

    examples: list[DatumTensors]
    loss: Loss
    settings: Mapping[str, float]


def read_work(
    data: Sequence[types.Datum], loss_fn: str, config: Mapping[str, Any] | None, limits: Limits
) -> Work:
    """Validate a request and convert its data to tensors.

    Raises:
        LossInputError: A datum or the config is not valid for the loss or the model.
    """
    loss, settings = get_loss(loss_fn), resolve_settings(loss_fn, config)
    if not data:
        raise LossInputError("The data is empty; expected at least one datum.")
    examples = [_read(datum, loss_fn, f"Datum {i}", limits) for i, datum in enumerate(data)]
    if loss.from_spans:
        warn_of_alpha()
    return Work(examples, loss, settings)


def read_custom(data: Sequence[types.Datum], limits: Limits) -> Work:
    """Convert data for a custom loss, treating it as cross-entropy data with all weights 0.

    Only the custom loss itself uses the data's other loss inputs. Raises the same errors as
    ``read_work``.
    """
    plain = []
    for i, datum in enumerate(data):
        targets = datum.loss_fn_inputs.get("target_tokens")
        if targets is None:
            raise LossInputError(
                f"Datum {i} for a custom loss has loss_fn_inputs {sorted(datum.loss_fn_inputs)}; "
                "they must include target_tokens."
            )
        weights = types.TensorData.from_torch(torch.zeros(targets.to_torch().shape))
        inputs = {"target_tokens": targets, "weights": weights}
        plain.append(types.Datum(model_input=datum.model_input, loss_fn_inputs=inputs))
    return read_work(plain, "cross_entropy", None, limits)


def _read(datum: types.Datum, loss_fn: str, where: str, limits: Limits) -> DatumTensors:
    check_inputs(loss_fn, datum.loss_fn_inputs, where)
    try:
        row = limits.reader.read(datum.model_input)
    except ValueError as error:
        raise LossInputError(f"{where} {error}") from error
    tokens = np.asarray(row.ids, dtype=np.int64)
    if not 1 <= len(tokens) <= limits.context:
        raise LossInputError(
            f"{where} has {len(tokens)} input tokens; expected at least 1 and at most the model's "
            f"context length of {limits.context}. Shorten it."
        )
    text = tokens[tokens >= 0] if row.pictures else tokens
    _check_ids(text, f"{where}: model_input", limits)
    tensors = {key: value.to_torch() for key, value in datum.loss_fn_inputs.items()}
    targets = tensors.pop("target_tokens").long()
    if targets.ndim not in (1, 2) or len(targets) != len(tokens):
        raise LossInputError(
            f"{where}: target_tokens has shape {(*targets.shape,)} for {len(tokens)} input tokens; "
            f"expected ({len(tokens)},), one target per token, or ({len(tokens)}, K)."
        )
    _check_ids(targets.numpy(), f"{where}: target_tokens", limits)
    for key, value in tensors.items():
        if value.shape != targets.shape:
            raise LossInputError(
                f"{where}: {key} has shape {(*value.shape,)}; expected {(*targets.shape,)}, the "
                "shape of target_tokens."
            )
    if get_loss(loss_fn).from_spans:
        check_spans(datum, where, loss_fn)
        tensors["sampled"] = sampled_mask(datum)
    inputs = {key: value.float() for key, value in tensors.items()}
    _check_finite(inputs, where)
    return DatumTensors(tokens, targets, inputs, row.pictures)


def _check_ids(ids: np.ndarray, what: str, limits: Limits) -> None:
    if ids.size and not 0 <= ids.min() <= ids.max() < limits.vocabulary:
        wrong = ids[(ids < 0) | (ids >= limits.vocabulary)]
        raise LossInputError(
            f"{what} contains token id {wrong[0]}, but the model's ids go from 0 to "
            f"{limits.vocabulary - 1}. Use the model's own tokenizer. To skip a target, set its "
            "weight (or advantage) to 0."
        )


def _check_finite(inputs: Mapping[str, Tensor], where: str) -> None:
    for key, values in inputs.items():
        wrong = (~torch.isfinite(values)).nonzero().tolist()
        if wrong:
            raise LossInputError(
                f"{where}: {key} is {values[(*wrong[0],)].item()} at position {wrong[0]}; "
                "expected finite numbers. Check how it was computed."
            )


def micro_batches(examples: Sequence[DatumTensors], budget: int, *, folds: bool) -> list[list[int]]:
    """Split examples into micro-batches. Return the indices in each micro-batch.

    ``budget`` is the maximum number of tokens in a micro-batch, including padding. Longer examples
    get a micro-batch of their own. If ``folds`` is True, group examples by common prefixes instead
    of by length.
    """
    # Only examples with the same K and the same inputs can be in the same batch.
    kinds: dict[tuple[Any, ...], list[int]] = {}
    for i, example in enumerate(examples):
        kind = (*example.targets.shape[1:], *sorted(example.inputs))
        kinds.setdefault(kind, []).append(i)
    divide = cut if folds else length_sorted
    return [
        [rows[j] for j in group]
        for rows in kinds.values()
        for group in divide([examples[i].tokens for i in rows], budget)
    ]


def length_sorted(rows: Sequence[np.ndarray], budget: int) -> Iterable[list[int]]:
    """Group rows by length, longest first, into groups of at most ``budget`` padded tokens.

    Rows that are longer than ``budget`` get a group of their own.
    """
    group: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i])):
        if group and (len(group) + 1) * len(rows[group[0]]) > budget:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
