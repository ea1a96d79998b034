"""Count a run's tokens and compute their cost.

The Cookbook logs how many tokens are in prompts and how many are sampled, but not how many are
trained on. A conversation is trained on only once, no matter how many calls it took. We therefore
add up the lengths of all lineages in the recorded episodes, and scale the sum if not all episodes
are recorded. The evaluations before the first step and after the last step are not included.
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
    """Token counts of a whole run."""

    prefill: int
    sample: int
    train: int | None
    """Number of tokens trained on, or None if the rollouts do not record it."""
    is_estimate: bool
    """Whether ``train`` was scaled up because not all episodes are recorded."""


def cost(tokens: Tokens, prices: Mapping[str, float]) -> float | None:
    """Return the cost in dollars, or None if there are no prices or a priced count is unknown.

    ``prices`` are in dollars per million tokens, with the same names as in ``Tokens``.
    """
    counts = [(asdict(tokens)[name], price) for name, price in prices.items()]
    if not counts or any(count is None for count, _ in counts):
        return None
    return float(sum(count * price for count, price in counts) / 1e6)


def count_tokens(run: Run, index: Index, number: int) -> Tokens | None:
    """Count a run's tokens, or return None if they were not logged.

    ``number`` is the run's number in the index.
    """
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
