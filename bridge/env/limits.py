"""Enforces the Cookbook's ``RolloutLimits`` and the model's context length.

``Budget`` computes the maximum length of prompts, replies and episodes.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import chz
from tinker_cookbook.rl.rollout_limits import RolloutLimits
from tinker_cookbook.rl.types import StopReason

from evert.bridge.tokens.prompt_limit import PromptLimit

ROOM = 2
"""Number of tokens that a prompt must leave free, because the Cookbook's runner stops when only one
token remains."""

MIN_CONTEXT = ROOM + 1


@chz.chz
class SequenceLimits(RolloutLimits):
    """The Cookbook's limits, plus a limit per token sequence, as in other trainers.

    Attributes:
        max_response_tokens: Maximum number of tokens in a sequence after its first prompt. This
            includes the replies and the agent's messages between them. Prompts that exceed the
            limit are refused, as with ``max_trajectory_tokens``. The default is no limit.
    """

    max_response_tokens: int | None = None


class LiveLimits:
    """Limits whose ``max_turn_tokens`` takes the current call's ``max_tokens`` into account.

    The runner gets ``env.rollout_limits`` once and reads its fields every turn. The fields of
    ``RolloutLimits`` cannot change, so the Env returns this object, which has the same fields.
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
        """Maximum number of tokens in the next reply (None: no limit)."""
        return tightest(self._present_cap(), self._cap)


class Budget:
    """Combines an Env's limits with the context length of its policy."""

    def __init__(self, limits: RolloutLimits, context_length: int | None) -> None:
        self.limits = limits
        self._context = context_length
        self._response = limits.max_response_tokens if isinstance(limits, SequenceLimits) else None
        self.prompt = self._longest_prompt()

    def _longest_prompt(self) -> PromptLimit:
        """Return the smaller of the token budget and the context length, with its stop reason.

        The stop reason is ``max_tokens`` if the budget is not larger than the context length, or if
        ``max_response_tokens`` is set; otherwise, it is ``context_overflow``.
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
        """Return whether another turn is allowed after ``turns`` turns."""
        return self.limits.max_turns is None or turns < self.limits.max_turns

    def cap(self, max_tokens: int | None, length: int, first: int | None) -> int | None:
        """Return the maximum length of a reply, or None if there is no limit.

        This is the agent's ``max_tokens`` or the remaining space, whichever is smaller.

        Args:
            max_tokens: The agent's ``max_tokens``.
            length: Number of tokens in the prompt.
            first: Number of tokens in the sequence's first prompt, or None for a new sequence.
        """
        context, response = self._context, self._response
        room = None if context is None else context - length
        response_room = None if response is None or first is None else first + response - length
        return tightest(max_tokens, room, response_room)

    def sample(self, cap: int | None, length: int, sampled: int) -> int | None:
        """Return the length of the longest reply that the runner accepts (None: no limit).

        Args:
            cap: The result of ``cap``.
            length: Number of tokens in the prompt.
            sampled: Number of tokens sampled so far. The runner's own count may be higher.
        """
        max_length, max_sampled = self.limits.max_trajectory_tokens, self.limits.max_sampled_tokens
        room = None if max_length is None else max_length - length
        remaining = None if max_sampled is None else max_sampled - sampled
        return tightest(cap, self.limits.max_turn_tokens, room, remaining)

    def calls(self, limit: int, turns: int, sampled: int) -> int:
        """Return how many calls may be sampled at the same time (at most ``limit``)."""
        max_turns, max_sampled = self.limits.max_turns, self.limits.max_sampled_tokens
        turns_left = None if max_turns is None else max_turns - turns
        # The runner stops when only one token remains.
        tokens_left = None if max_sampled is None else max_sampled - sampled - 1
        return min(cap for cap in (limit, turns_left, tokens_left) if cap is not None)


def tightest(*caps: int | None) -> int | None:
    """Return the smallest limit, where None means no limit."""
    return min([cap for cap in caps if cap is not None], default=None)
