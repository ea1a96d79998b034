"""Counts a run's tokens, and computes their cost.

The Cookbook has metrics of prompt tokens and sampled tokens, but not of tokens trained on, since a
conversation is trained on once, however many calls it took. We sum the lengths of the recorded
episodes' lineages, and scale the sum up if some episodes are not recorded. Held-out tasks before
the first step and after the last step are not counted.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import final

from evert.trainers.reporting.figures.metrics import HELD_OUT, TRAIN
from evert.trainers.reporting.run import Run
from evert.trainers.viewing import asking
from evert.trainers.viewing.incremental_index import Index


@final
@dataclass(frozen=True)
class Tokens:
    """Tokens of a whole run."""

    prefill: int
    sample: int
    train: int | None
    """None if the rollouts do not record it."""
    is_estimate: bool
    """Whether ``train`` is scaled up, since not all episodes are recorded."""


def cost(tokens: Tokens, prices: Mapping[str, float]) -> float | None:
    """Return dollars for the tokens that have a price; None without prices or with unknown counts.

    ``prices`` are dollars per million tokens, by the names of ``Tokens``.
    """
    counts = [(asdict(tokens)[name], price) for name, price in prices.items()]
    if not counts or any(count is None for count, _ in counts):
        return None
    return float(sum(count * price for count, price in counts) / 1e6)


def count_tokens(run: Run, index: Index, number: int) -> Tokens | None:
    """Count a run's tokens; ``number`` is its number in the index. None without such metrics."""
    if not any(f"{TRAIN}total_ac_tokens" in row for row in run.rows):
        return None
    prompt_tokens, sampled_tokens = (
        [run.total(f"{prefix}total_{kind}_tokens") for prefix in (TRAIN, HELD_OUT)]
        for kind in ("ob", "ac")
    )
    whole = round(prompt_tokens[0] + sampled_tokens[0])
    recorded, trained = asking.lengths(index, number)
    return Tokens(
        prefill=round(sum(prompt_tokens)),
        sample=round(sum(sampled_tokens)),
        train=round(trained / recorded * whole) if trained and recorded else None,
        is_estimate=recorded != whole,
    )
