"""The maximum prompt length that leaves room for the reply."""

from dataclasses import dataclass

from tinker_cookbook.rl.types import StopReason


@dataclass(frozen=True, slots=True)
class PromptLimit:
    """The maximum prompt length that leaves room for the reply."""

    tokens: int | None  # maximum length of a prompt; None for no limit
    reason: StopReason  # stop reason for an episode with a prompt over the limit
    response: int | None = None  # maximum tokens after a lineage's first prompt; None for no limit

    def longest(self, first: int | None) -> int | None:
        """Return the maximum number of tokens in a prompt, or None for no limit.

        ``first`` is the length of the lineage's first prompt, or None if this prompt is the first.
        """
        if first is None or self.response is None:
            return self.tokens
        total = first + self.response
        return total if self.tokens is None else min(total, self.tokens)


ANY_LENGTH = PromptLimit(None, StopReason.CONTEXT_OVERFLOW)
