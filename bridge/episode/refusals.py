"""Slows down agents that keep repeating refused calls, so that other agents are not affected.

Before each refusal we yield to the event loop. Otherwise an agent that immediately repeats a
refused call would block the loop, and we could not even cancel the agent. The first ``AT_ONCE``
refusals are not delayed. Each later refusal is delayed by a quarter of the time since the first
one, so an agent that ignores errors makes calls less and less often. The count is reset when a call
is accepted.
"""

import asyncio
import time

import openai

AT_ONCE = 8
"""Number of consecutive refusals that are returned without a delay."""

LONGEST_PAUSE = 60.0
"""Maximum delay of a refusal, in seconds."""


class Refusals:
    """Counts the refusals in an episode since the last accepted call.

    Safe to use from any thread and event loop.
    """

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0
        self._latest = ""

    def end(self) -> None:
        """Reset the count, because a call was accepted."""
        self._count, self._latest = 0, ""

    def hint(self) -> str:
        """Describe the latest refusal if there were more than ``AT_ONCE``; otherwise return ""."""
        if self._count <= AT_ONCE or not self._latest:
            return ""
        return f"Its latest requests were refused: {self._latest}"

    async def hold_back(self, refusal: object) -> None:
        """Wait before a refusal, letting other tasks on this event loop run."""
        await asyncio.sleep(self._pause(refusal))

    def hold_back_blocking(self, refusal: object) -> None:
        """Block the current thread before a refusal."""
        time.sleep(self._pause(refusal))

    def _pause(self, refusal: object) -> float:
        now = time.monotonic()
        if self._count == 0:
            self._since = now
        self._count += 1
        if isinstance(refusal, (str, openai.BadRequestError)):  # otherwise, the episode is over
            self._latest = f"{refusal!s:.500}"
        return 0.0 if self._count <= AT_ONCE else min((now - self._since) / 4, LONGEST_PAUSE)
