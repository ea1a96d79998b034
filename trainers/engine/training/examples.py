"""Training data as tensors: datums are read and checked, and cut into micro-batches.

Shapes: N tokens of a datum, K targets a token.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tinker import types
from torch import Tensor

from evert.trainers.engine.common.errors import LossInputError
from evert.trainers.engine.models.pictures import Picture, PictureReader
from evert.trainers.engine.training.families import cut
from evert.trainers.engine.training.losses import check_inputs, get_loss
from evert.trainers.engine.training.provenance import sampled_mask


@dataclass
class Example:
    """A datum as tensors on the model's device."""

    tokens: np.ndarray  # [N] int64
    targets: Tensor  # [N] or [N, K]
    inputs: dict[str, Tensor]  # The loss's other inputs, each of the targets' shape, float32
    pictures: Sequence[Picture] = ()  # Those that the tokens name


def read_example(
    datum: types.Datum, loss_fn: str, where: str, device: torch.device, reader: PictureReader
) -> Example:
    """Read and check a datum, called ``where`` in messages, as tensors on a device."""
    check_inputs(loss_fn, datum.loss_fn_inputs, where)
    tensors = {key: value.to_torch() for key, value in datum.loss_fn_inputs.items()}
    targets = tensors.pop("target_tokens").long().to(device)
    try:
        row = reader.read(datum.model_input)
    except ValueError as error:
        raise LossInputError(f"{where} {error}") from error
    shapes = {key: tuple(value.shape) for key, value in tensors.items()}
    wrong = {key: shape for key, shape in shapes.items() if shape != tuple(targets.shape)}
    if not row.ids or targets.ndim not in (1, 2) or len(targets) != len(row.ids) or wrong:
        raise LossInputError(
            f"{where} has {len(row.ids)} input tokens and target_tokens of shape "
            f"{tuple(targets.shape)}, with {shapes}; expected one target (or one row of K) "
            "for each input token, and every other tensor of the same shape as the targets."
        )
    if get_loss(loss_fn).from_spans:
        tensors["sampled"] = sampled_mask(datum)
    inputs = {key: value.float().to(device) for key, value in tensors.items()}
    return Example(np.asarray(row.ids, dtype=np.int64), targets, inputs, row.pictures)


def micro_batches(examples: Sequence[Example], budget: int, *, folds: bool) -> list[list[int]]:
    """The numbers of the examples in each micro-batch, all of one kind.

    ``budget``: most tokens, padding included; a longer one is alone. ``folds``: those that begin
    alike belong together, and not those of like lengths.
    """
    # Examples with K targets a token cannot share a batch with those of another K.
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
    """Group rows by length, longest first; a row over ``budget``, padding included, is alone."""
    group: list[int] = []
    for i in sorted(range(len(rows)), key=lambda i: -len(rows[i])):
        if group and (len(group) + 1) * len(rows[group[0]]) > budget:
            yield group
            group = []
        group.append(i)
    if group:
        yield group
