"""Checks training requests before they reach the worker.

A refused request affects no other: nothing was computed, the accumulated gradient stays, and the
calls before and after it are served. A message names the datum and its field, what we got and what
was expected. ``training/examples.py`` checks the format of a datum, here and in the worker.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from tinker import types

from evert.trainers.engine.common.errors import LossInputError, TrainingError
from evert.trainers.engine.training.examples import Example, Limits, bare, read_examples
from evert.trainers.engine.training.losses import get_loss, resolve_settings, warn_of_alpha


def check_data(
    data: Sequence[types.Datum], loss_fn: str, config: Mapping[str, Any] | None, limits: Limits
) -> None:
    """Check a request to train."""
    resolve_settings(loss_fn, config)
    _check_finite(read_examples(data, loss_fn, limits))
    if get_loss(loss_fn).from_spans:
        warn_of_alpha()


def check_custom_data(data: Sequence[types.Datum], limits: Limits) -> None:
    """Check a request with a custom loss, which may read any inputs beside the targets."""
    read_examples(
        [bare(datum, f"Datum {i}") for i, datum in enumerate(data)], "cross_entropy", limits
    )


def check_step(params: types.AdamParams) -> None:
    """Check the parameters of an optimizer step."""
    for name, value in params.model_dump(exclude={"grad_clip_norm"}).items():
        most = 1.0 if name.startswith("beta") else math.inf
        if not math.isfinite(value) or value < 0 or value >= most:
            raise TrainingError(
                f"optim_step got {name}={value}; expected a number from 0"
                f"{' to below 1' if most == 1.0 else ' on'}. The weights are unchanged."
            )


def _check_finite(examples: Sequence[Example]) -> None:
    for i, example in enumerate(examples):
        for key, values in example.inputs.items():
            wrong = (~torch.isfinite(values)).nonzero().tolist()
            if wrong:
                raise LossInputError(
                    f"Datum {i}: {key} is {values[(*wrong[0],)].item()} at position {wrong[0]}; "
                    "expected finite numbers. Check how it was computed."
                )
