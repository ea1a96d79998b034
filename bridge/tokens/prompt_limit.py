"""The longest prompt that leaves a runner room to sample."""

from dataclasses import dataclass

from tinker_cookbook.rl.types import StopReason


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The longest prompt that leaves a runner room to sample."""

    tokens: int | None  # maximum length of a prompt; None for no limit
    reason: StopReason  # stop reason of an episode in which a prompt exceeds the limit
    response: int | None = None  # maximum tokens after a lineage's first prompt; None: no limit

    def longest(self, first: int | None) -> int | None:
        """Return the limit on a prompt's tokens; None for no limit.

        ``first`` is the number of tokens of its lineage's first prompt; None if this is the first.
        """
        if first is None or self.response is None:
            return self.tokens
        total = first + self.response
        return total if self.tokens is None else min(total, self.tokens)


ANY_LENGTH = PromptLimit(None, StopReason.CONTEXT_OVERFLOW)
