"""Prices of the hosted Tinker service, run costs, and settings for custom prices."""

from dataclasses import dataclass
from typing import NamedTuple

import chz

from evert.trainers.config.fields import size

DATE, SOURCE = "2026-10-07", "https://tinker-docs.thinkingmachines.ai/tinker/models/"
CACHED = 0.2
"""Price of a cached prompt token, as a fraction of ``prefill``."""


@chz.chz
class PriceSettings:
    """Custom prices to calculate the cost of runs."""

    prefill_price: float | None = size(None, "dollars per million prompt tokens", 0)
    sample_price: float | None = size(None, "dollars per million sampled tokens", 0)
    train_price: float | None = size(None, "dollars per million tokens trained on", 0)

    @property
    def prices(self) -> dict[str, float]:
        """The prices that were set, in dollars per million tokens: prefill, sample, train."""
        prices = {name: getattr(self, f"{name}_price") for name in ("prefill", "sample", "train")}
        return {name: price for name, price in prices.items() if price is not None}


class Price(NamedTuple):
    """Dollars per million tokens for prompts, replies and training."""

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
"""Prices of some models on the service, before discounts."""


@dataclass(frozen=True)
class Cost:
    """Cost range in dollars.

    The minimum assumes that all tokens are in prompts, and the maximum that all are in replies.
    """

    minimum: float
    maximum: float

    def __str__(self) -> str:
        return f"${self.minimum:,.2f} to ${self.maximum:,.2f}"


def run_cost(price: Price, episodes: int, tokens: int, turns: int) -> Cost:
    """Return the cost of sampling episodes and training once on each of them.

    Args:
        tokens: Tokens per episode (prompts and replies), counting every token once.
        turns: Model calls per episode. Each prompt repeats the conversation so far. We assume that
            all turns have the same length, and that the repeated tokens are cached.
    """
    repeated = CACHED * price.prefill * (turns - 1) / 2
    millions = episodes * tokens / 1e6
    return Cost(
        millions * (price.prefill + repeated + price.train),
        millions * (price.sample + repeated + price.train),
    )
