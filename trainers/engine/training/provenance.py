"""Reads the provenance of a datum's tokens, for the loss that trains only on sampled tokens.

A sampling client made with ``record_stability_info=True`` marks the ids of its sequences
(``mark_recorded``), and ``Datum.with_provenance`` puts these ids into a datum. The datum also has
the log-probabilities of the sampled tokens, so the engine stores nothing.
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
    """Return the sequences with ids that mark them as recorded."""
    return [replace(s, sequence_id=_RECORDED + s.sequence_id) for s in sequences]


def sampled_mask(datum: types.Datum) -> Tensor:
    """Return a mask, float32 [N]: 1 for sampled targets, else 0."""
    spans = datum.loss_fn_input_spans or []
    parts = [
        torch.full((span.length,), float(isinstance(span, types.SampledProvenanceSpan)))
        for span in spans
    ]
    return torch.cat([torch.zeros(0), *parts])


def check_spans(datum: types.Datum, where: str, loss_fn: str) -> None:
    """Check that a datum has provenance and trains only on sampled tokens."""
    spans = datum.loss_fn_input_spans
    if spans is None:
        raise LossInputError(
            f"{where} for {loss_fn!r} has no provenance; expected spans that name the sampled "
            "sequence behind each token. Add them with datum.with_provenance, or use another loss."
        )
    unknown = [s.sequence_id for s in spans if not s.sequence_id.startswith(_RECORDED)]
    if unknown:
        raise LossInputError(
            f"{where} for {loss_fn!r} names the sequence {unknown[0]!r}, which was not recorded. "
            "Sample with a client made with record_stability_info=True."
        )
    advantages, sampled = datum.loss_fn_inputs["advantages"].to_numpy(), sampled_mask(datum).numpy()
    if len(sampled) != len(advantages) or np.any(advantages[sampled == 0]):
        raise LossInputError(
            f"{where} for {loss_fn!r} has spans over {len(sampled)} targets of {len(advantages)}, "
            "or an advantage on a target that was not sampled; expected spans over all targets, "
            "and advantage 0 on tokens that were not sampled. Fix the spans or the advantages."
        )
