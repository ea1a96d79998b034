"""The Cookbook's ``RolloutLimits``, and the model's context, as evert keeps them.

``Budget`` answers what they allow: how long a prompt, a reply, an episode may be.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

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
    is frozen: so this stands in for it, with all its other fields.
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
        """Most tokens of the next reply; None for no cap."""
        return tightest(self._present_cap(), self._cap)


class Budget:
    """What the limits of an Env and its policy's context allow."""

    def __init__(self, limits: RolloutLimits, context_length: int | None) -> None:
        self.limits = limits
        self._context = context_length
        self._response = limits.max_response_tokens if isinstance(limits, SequenceLimits) else None
        self.prompt = self._longest_prompt()

    def _longest_prompt(self) -> PromptLimit:
        """The tighter one of a budget (``stop/max_tokens``) and the model's context.

        ``stop/context_overflow`` is for the context alone: nobody chose to stop there.
        """
        budget, context, response = self.limits.max_trajectory_tokens, self._context, self._response
        tightest_of_both = tightest(budget, context)
        tokens = None if tightest_of_both is None else tightest_of_both - ROOM
        if response is not None:
            return PromptLimit(tokens, StopReason.MAX_TOKENS, response - ROOM)
        is_chosen = budget is not None and (context is None or budget <= context)
        reason = StopReason.MAX_TOKENS if is_chosen else StopReason.CONTEXT_OVERFLOW
        return PromptLimit(tokens, reason)

    def has_turn(self, taken: int) -> bool:
        """Whether there may be another turn after so many."""
        return self.limits.max_turns is None or taken < self.limits.max_turns

    def cap(self, asked: int | None, length: int, first: int | None) -> int | None:
        """Most tokens of a reply: the agent's own cap, or what there is room for; None: any.

        Args:
            asked: The agent's cap.
            length: Tokens of the prompt.
            first: The same of its sequence's first prompt; None before that.
        """
        whole, response = self._context, self._response
        room = None if whole is None else whole - length
        left = None if response is None or first is None else first + response - length
        return tightest(asked, room, left)

    def sample(self, cap: int | None, length: int, sampled: int) -> int | None:
        """Most tokens that a runner takes of a reply, by the Env's limits; None: any number.

        Args:
            cap: As ``cap``.
            length: Tokens of the prompt.
            sampled: Tokens that were sampled so far; a runner may meanwhile have taken more.
        """
        whole, all_ = self.limits.max_trajectory_tokens, self.limits.max_sampled_tokens
        left = None if whole is None else whole - length
        rest = None if all_ is None else all_ - sampled
        return tightest(cap, self.limits.max_turn_tokens, left, rest)

    def calls(self, most: int, taken: int, sampled: int) -> int:
        """Calls that may be sampled at a time: at most ``most``, and what the limits leave."""
        turns, tokens = self.limits.max_turns, self.limits.max_sampled_tokens
        left = None if turns is None else turns - taken
        rest = None if tokens is None else tokens - sampled - 1  # as runners have it, one is none
        return min(each for each in (most, left, rest) if each is not None)


def tightest(*caps: int | None) -> int | None:
    """The least of some caps; None: there is none."""
    return min([cap for cap in caps if cap is not None], default=None)
