"""The Cookbook's ``RolloutLimits``, and the model's context, as evert keeps them."""

from collections.abc import Callable
from typing import Any

import chz
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import StopReason

from evert.bridge.tokens.prompt_limit import PromptLimit

ROOM = 2
"""Tokens that a prompt has to leave: the Cookbook's runner takes a rest of one for none."""

MIN_CONTEXT = ROOM + 1


@chz.chz
class SequenceLimits(RolloutLimits):
    """The Cookbook's budgets, and one of each token sequence, which other trainers have room for.

    Attributes:
        max_response_tokens: Most tokens of a sequence after its first prompt: the replies, and what
            the agent says between them. A longer prompt is refused as one over
            ``max_trajectory_tokens`` is.
    """

    max_response_tokens: int | None = None


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


def prompt_limit(limits: RolloutLimits, context_length: int | None) -> PromptLimit:
    """The tighter one of a budget (``stop/max_tokens``) and the model's context.

    ``stop/context_overflow`` is for the context alone: nobody chose to stop there.
    """
    budget, response = limits.max_trajectory_tokens, response_limit(limits)
    if response is not None:
        most = min((each for each in (budget, context_length) if each is not None), default=None)
        tokens = None if most is None else most - ROOM
        return PromptLimit(tokens, StopReason.MAX_TOKENS, response - ROOM)
    if budget is not None and (context_length is None or budget <= context_length):
        return PromptLimit(budget - ROOM, StopReason.MAX_TOKENS)
    tokens = None if context_length is None else context_length - ROOM
    return PromptLimit(tokens, StopReason.CONTEXT_OVERFLOW)


def response_limit(limits: RolloutLimits) -> int | None:
    """Most tokens of a sequence after its first prompt; None: any."""
    return limits.max_response_tokens if isinstance(limits, SequenceLimits) else None
