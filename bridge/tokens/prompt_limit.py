"""The longest prompt that leaves a runner room to sample."""

from dataclasses import dataclass

from tinker_cookbook.rl.types import StopReason


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt that leaves a runner room to sample."""

    tokens: int | None  # its length; None: any
    reason: StopReason  # how an episode ends whose agent does not cope with it
    response: int | None = None  # most tokens after its sequence's first prompt; None: any

    def longest(self, first: int | None) -> int | None:
        """The longest prompt of a sequence whose first prompt has ``first`` tokens; None: is it."""
        if first is None or self.response is None:
            return self.tokens
        whole = first + self.response
        return whole if self.tokens is None else min(whole, self.tokens)


ANY_LENGTH = PromptLimit(None, StopReason.CONTEXT_OVERFLOW)
