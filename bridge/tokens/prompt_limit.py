"""The longest prompt that leaves a runner room to sample."""

from dataclasses import dataclass

from tinker_cookbook.rl.types import StopReason


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt that leaves a runner room to sample."""

    tokens: int | None  # its length; None for no limit
    reason: StopReason  # of an episode that ends because a prompt exceeds the limit
    response: int | None = None  # limit on tokens after a sequence's first prompt; None: no limit

    def longest(self, first: int | None) -> int | None:
        """The limit on a prompt's tokens, if its sequence's first has ``first``; None: no limit.

        ``first`` is None for the first prompt itself.
        """
        if first is None or self.response is None:
            return self.tokens
        total = first + self.response
        return total if self.tokens is None else min(total, self.tokens)


ANY_LENGTH = PromptLimit(None, StopReason.CONTEXT_OVERFLOW)
