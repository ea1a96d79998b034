"""What a run will cost on the hosted Tinker service, by one dated table of its prices."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from evert.trainers.commands.plan import PlanSettings

DATE, SOURCE = "2026-10-07", "https://tinker-docs.thinkingmachines.ai/tinker/models/"
CACHED = 0.2
"""The share of ``prefill`` for tokens of a prompt that the service has just read."""


class Price(NamedTuple):
    """Dollars per million tokens of prompts, of replies, and of training data."""

    prefill: float
    sample: float
    train: float


PRICES = {
    "Qwen/Qwen3-8B": Price(0.195, 0.60, 0.44),
    "Qwen/Qwen3.5-4B": Price(0.33, 1.005, 0.737),
    "Qwen/Qwen3.5-9B": Price(0.66, 1.995, 1.463),
    "Qwen/Qwen3.8-27B": Price(1.86, 5.595, 4.103),
    "moonshotai/Kimi-K2.6": Price(2.205, 5.49, 4.84),
    "openai/gpt-oss-20b": Price(0.18, 0.45, 0.396),
    "openai/gpt-oss-120b": Price(0.33, 0.84, 0.737),
    "thinkingmachines/Inkling": Price(3.74, 9.36, 11.22),
    "thinkingmachines/Inkling-Small": Price(1.16, 2.88, 3.46),
}
"""Models of the service, without discounts; it has more."""


@dataclass(frozen=True)
class Cost:
    """Dollars: at least, if episodes are nearly all prompt, and at most, if nearly all replies."""

    least: float
    most: float

    def __str__(self) -> str:
        return f"${self.least:,.2f} to ${self.most:,.2f}"


def run_cost(price: Price, episodes: int, tokens: int, turns: int) -> Cost:
    """Cost of episodes that are sampled and trained on once.

    Args:
        tokens: Of an episode: prompts and replies, each token once.
        turns: Model calls of an episode. Each prompt after the first repeats what was before; the
            turns are taken to be equally long, and what they repeat to be cached.
    """
    repeated = CACHED * price.prefill * (turns - 1) / 2
    millions = episodes * tokens / 1e6
    return Cost(
        millions * (price.prefill + repeated + price.train),
        millions * (price.sample + repeated + price.train),
    )


def as_text(settings: "PlanSettings") -> str:
    """Return the plan of a run on the service.

    Raises:
        KeyError: The table does not have the model.
    """
    episodes = settings.steps * settings.batch_size * settings.group_size
    tokens, turns = settings.tokens, settings.turns
    cost = run_cost(PRICES[settings.model], episodes, tokens, turns)
    step = Cost(cost.least / settings.steps, cost.most / settings.steps)
    shape = f"{settings.steps} steps of {settings.batch_size} tasks, {settings.group_size} each"
    rows = [
        ("episodes", f"{episodes:,}", shape),
        ("tokens", f"{episodes * tokens:,}", f"{tokens:,} an episode, in {turns} model calls"),
        ("a step", str(step), "all prompt, to all replies"),
        ("the run", str(cost), ""),
    ]
    lines = [
        f"{settings.model} on the hosted service, at its prices of {DATE}",
        *(f"  {name:<10}{value:>24}  {note}".rstrip() for name, value, note in rows),
        "Not counted: evaluation, warm-up, a KL penalty, and storage of checkpoints ($0.10 per GB "
        "and month).",
        f"Prices change: {SOURCE}",
    ]
    return "\n".join(lines)
