"""Reads the provenance of a datum's tokens, for the loss that trains only on sampled tokens.

Sampling clients created with ``record_stability_info=True`` mark their sequence ids
(``mark_recorded``), and ``Datum.with_provenance`` adds these ids to a datum. The datum also
contains the log-probabilities of the sampled tokens, so the engine doesn't have to store anything.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from tinker import types
from torch import Tensor

from evert.trainers.engine.common.errors import LossInputError

_RECORDED = "recorded-"


def mark_recorded(sequences: Sequence[types.SampledSequence]) -> list[types.SampledSequence]:
    """Return the sequences with their ids marked as recorded."""
    return [replace(s, sequence_id=_RECORDED + s.sequence_id) for s in sequences]


def sampled_mask(datum: types.Datum) -> Tensor:
    """Return a float32 mask [N] that is 1 for sampled targets and 0 for all others."""
    spans = datum.loss_fn_input_spans or []
    parts = [
        torch.full((span.length,), float(isinstance(span, types.SampledProvenanceSpan)))
        for span in spans
    ]
    return torch.cat([torch.zeros(0), *parts])


def check_spans(datum: types.Datum, where: str, loss_fn: str) -> None:
    """Raise an error if provenance is missing, or an unsampled token has an advantage."""
    spans = datum.loss_fn_input_spans
    if spans is None:
        raise LossInputError(
            f"{where} for {loss_fn!r} has no provenance; expected spans that identify the sampled "
            "sequence of each token. Add them with datum.with_provenance, or use a different loss."
        )
    unknown = [s.sequence_id for s in spans if not s.sequence_id.startswith(_RECORDED)]
    if unknown:
        raise LossInputError(
            f"{where} for {loss_fn!r} refers to sequence {unknown[0]!r}, which was not recorded. "
            "Create the sampling client with record_stability_info=True."
        )
    advantages, sampled = datum.loss_fn_inputs["advantages"].to_numpy(), sampled_mask(datum).numpy()
    if len(sampled) != len(advantages) or np.any(advantages[sampled == 0]):
        raise LossInputError(
            f"{where} for {loss_fn!r} has spans for {len(sampled)} of {len(advantages)} targets, "
            "or a nonzero advantage on a target that was not sampled; expected spans for all "
            "targets, and advantage 0 for tokens that were not sampled. Fix the spans or the "
            "advantages."
        )
