"""The Cookbook's ``RolloutLimits`` as evert keeps them."""

from collections.abc import Callable
from typing import Any

from tinker_cookbook.rl.rollout_limits import RolloutLimits


class LiveLimits:
    """Limits whose cap on a turn is the present call's, if that is tighter.

    A runner takes ``env.rollout_limits`` once and reads it every turn, and ``RolloutLimits`` itself
    is frozen: so this stands in for it, and answers every other field from it.
    """

    def __init__(self, limits: RolloutLimits, present_cap: Callable[[], int | None]) -> None:
        self._limits = limits
        self._present_cap = present_cap

    def __getattr__(self, name: str) -> Any:
        if name == "_limits":  # of a copy that is being made
            raise AttributeError(name)
        return getattr(self._limits, name)

    @property
    def max_turn_tokens(self) -> int | None:
        """Most tokens of the next reply; None for no cap."""
        caps = (self._present_cap(), self._limits.max_turn_tokens)
        return min((cap for cap in caps if cap is not None), default=None)


def longest_prompt(limits: RolloutLimits) -> int | None:
    """Most tokens of a prompt that leaves a runner room to sample, which takes two; None: any."""
    budget = limits.max_trajectory_tokens
    return None if budget is None else budget - 2
