"""The door: what a training request holds is checked before it reaches the worker.

A request that is refused here is refused alone: nothing was computed, the gradient that has
accumulated stays, and the calls before and after it are served. A message names the datum and its
field, what it has and what was expected.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tinker import types

from evert.trainers.engine.common.errors import LossInputError, TrainingError
from evert.trainers.engine.models.pictures import PictureReader
from evert.trainers.engine.training.losses import (
    check_inputs,
    get_loss,
    resolve_settings,
    warn_of_alpha,
)
from evert.trainers.engine.training.provenance import check_spans


@dataclass(frozen=True)
class Limits:
    """What a model can take."""

    vocabulary: int
    """Tokens it knows."""
    context: int
    """Most tokens of a datum."""
    reader: PictureReader
    """Reads its images."""


def check_data(
    data: Sequence[types.Datum],
    loss_fn: str,
    config: Mapping[str, Any] | None,
    limits: Limits,
) -> None:
    """Check a request to train."""
    loss = get_loss(loss_fn)
    resolve_settings(loss_fn, config)
    _check_some(data)
    for i, datum in enumerate(data):
        check_inputs(loss_fn, datum.loss_fn_inputs, f"Datum {i}")
        _check_datum(datum, f"Datum {i}", limits)
        if loss.from_spans:
            check_spans(datum, f"Datum {i}", loss_fn)
    if loss.from_spans:
        warn_of_alpha()


def check_custom_data(data: Sequence[types.Datum], limits: Limits) -> None:
    """The same for a loss of the caller's own, which may read what it likes beside the targets."""
    _check_some(data)
    for i, datum in enumerate(data):
        if "target_tokens" not in datum.loss_fn_inputs:
            raise LossInputError(
                f"Datum {i} for a custom loss has loss_fn_inputs {sorted(datum.loss_fn_inputs)}; "
                "expected target_tokens among them."
            )
        targets = {"target_tokens": datum.loss_fn_inputs["target_tokens"]}
        _check_datum(types.Datum(datum.model_input, targets), f"Datum {i}", limits)


def check_step(params: types.AdamParams) -> None:
    """Check the parameters of an optimizer step."""
    for name, value in params.model_dump(exclude={"grad_clip_norm"}).items():
        most = 1.0 if name.startswith("beta") else math.inf
        if not math.isfinite(value) or value < 0 or value >= most:
            raise TrainingError(
                f"optim_step got {name}={value}; expected a number from 0"
                f"{' to below 1' if most == 1.0 else ' on'}. The weights are unchanged."
            )


def _check_some(data: Sequence[types.Datum]) -> None:
    if not data:
        raise LossInputError("Got no data; expected at least one datum.")


def _check_datum(datum: types.Datum, where: str, limits: Limits) -> None:
    try:
        row = limits.reader.read(datum.model_input)
    except ValueError as error:
        raise LossInputError(f"{where} {error}") from error
    tokens = np.asarray(row.ids)
    if not 1 <= len(tokens) <= limits.context:
        raise LossInputError(
            f"{where} has {len(tokens)} input tokens; expected 1 to the model's context of "
            f"{limits.context}. Shorten it."
        )
    text = tokens[tokens >= 0] if row.pictures else tokens
    _check_ids(text, f"{where}: model_input", limits)
    arrays = {key: value.to_numpy() for key, value in datum.loss_fn_inputs.items()}
    targets = arrays.pop("target_tokens")
    if targets.ndim not in (1, 2) or len(targets) != len(tokens):
        raise LossInputError(
            f"{where}: target_tokens has shape {targets.shape} for {len(tokens)} input tokens; "
            f"expected ({len(tokens)},), one target for each, or ({len(tokens)}, K)."
        )
    _check_ids(targets, f"{where}: target_tokens", limits)
    for key, array in arrays.items():
        if array.shape != targets.shape:
            raise LossInputError(
                f"{where}: {key} has shape {array.shape}; expected {targets.shape}, the shape of "
                "target_tokens."
            )
        if not np.isfinite(array).all():
            at = np.argwhere(~np.isfinite(array))[0].tolist()
            raise LossInputError(
                f"{where}: {key} is {array[(*at,)]} at position {at}; expected finite numbers. "
                "Look at what it was computed from."
            )


def _check_ids(ids: np.ndarray, what: str, limits: Limits) -> None:
    if ids.size and not 0 <= ids.min() <= ids.max() < limits.vocabulary:
        wrong = ids[(ids < 0) | (ids >= limits.vocabulary)]
        raise LossInputError(
            f"{what} has token id {wrong[0]}; the model knows 0 to {limits.vocabulary - 1}. Use "
            "its own tokenizer; a target that is not to be learned has weight (or advantage) 0."
        )
