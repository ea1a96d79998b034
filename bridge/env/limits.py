"""The Cookbook's ``RolloutLimits`` and the model's context, as evert enforces them.

``Budget`` limits the length of prompts, replies and episodes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import chz
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import StopReason

from evert.bridge.tokens.prompt_limit import PromptLimit

ROOM = 2
"""Tokens that a prompt must leave free: the Cookbook's runner stops when only one token is left."""

MIN_CONTEXT = ROOM + 1


@chz.chz
class SequenceLimits(RolloutLimits):
    """The Cookbook's budgets, and a budget for each token sequence, as in other trainers.

    Attributes:
        max_response_tokens: Maximum number of tokens in a sequence after its first prompt: the
            replies, and the agent's messages between them. Longer prompts are refused, as with
            ``max_trajectory_tokens``. None: no budget.
    """

    max_response_tokens: int | None = None


class LiveLimits:
    """Limits with a ``max_turn_tokens`` that is lowered to the current call's cap.

    A runner gets ``env.rollout_limits`` once and reads it every turn, but ``RolloutLimits`` is
    frozen. This object replaces it, and has all of its other fields.
    """

    def __init__(self, limits: RolloutLimits, present_cap: Callable[[], int | None]) -> None:
        fields = chz.asdict(limits, shallow=True)
        self._cap: int | None = fields.pop("max_turn_tokens")
        self._present_cap = present_cap
        vars(self).update(fields)

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

    @property
    def max_turn_tokens(self) -> int | None:
        """Maximum number of tokens in the next reply; None for no cap."""
        return tightest(self._present_cap(), self._cap)


class Budget:
    """The limits of an Env and of its policy's context."""

    def __init__(self, limits: RolloutLimits, context_length: int | None) -> None:
        self.limits = limits
        self._context = context_length
        self._response = limits.max_response_tokens if isinstance(limits, SequenceLimits) else None
        self.prompt = self._longest_prompt()

    def _longest_prompt(self) -> PromptLimit:
        """Return the lower of the budget and the context, with the stop reason.

        A budget that the user chose gives ``stop/max_tokens``; otherwise ``stop/context_overflow``.
        """
        budget, context, response = self.limits.max_trajectory_tokens, self._context, self._response
        tightest_of_both = tightest(budget, context)
        tokens = None if tightest_of_both is None else tightest_of_both - ROOM
        if response is not None:
            return PromptLimit(tokens, StopReason.MAX_TOKENS, response - ROOM)
        is_chosen = budget is not None and (context is None or budget <= context)
        reason = StopReason.MAX_TOKENS if is_chosen else StopReason.CONTEXT_OVERFLOW
        return PromptLimit(tokens, reason)

    def has_turn(self, turns: int) -> bool:
        """Whether another turn is allowed after ``turns`` turns."""
        return self.limits.max_turns is None or turns < self.limits.max_turns

    def cap(self, max_tokens: int | None, length: int, first: int | None) -> int | None:
        """Return a reply's maximum length: the agent's cap, or the room left if less; None: no cap.

        Args:
            max_tokens: The agent's cap.
            length: Tokens of the prompt.
            first: Tokens of its sequence's first prompt; None if the sequence has no prompt yet.
        """
        context, response = self._context, self._response
        room = None if context is None else context - length
        response_room = None if response is None or first is None else first + response - length
        return tightest(max_tokens, room, response_room)

    def sample(self, cap: int | None, length: int, sampled: int) -> int | None:
        """Return the longest reply that a runner accepts under the Env's limits; None: any length.

        Args:
            cap: The result of ``cap``.
            length: Tokens of the prompt.
            sampled: Tokens sampled so far; the runner's own count may already be higher.
        """
        max_length, max_sampled = self.limits.max_trajectory_tokens, self.limits.max_sampled_tokens
        room = None if max_length is None else max_length - length
        remaining = None if max_sampled is None else max_sampled - sampled
        return tightest(cap, self.limits.max_turn_tokens, room, remaining)

    def calls(self, limit: int, turns: int, sampled: int) -> int:
        """Return how many calls may be sampled at the same time: at most ``limit``."""
        max_turns, max_sampled = self.limits.max_turns, self.limits.max_sampled_tokens
        turns_left = None if max_turns is None else max_turns - turns
        # Runners stop when only one token is free.
        tokens_left = None if max_sampled is None else max_sampled - sampled - 1
        return min(cap for cap in (limit, turns_left, tokens_left) if cap is not None)


def tightest(*caps: int | None) -> int | None:
    """Return the lowest cap; None means no cap."""
    return min([cap for cap in caps if cap is not None], default=None)
