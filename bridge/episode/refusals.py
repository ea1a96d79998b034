"""Refusals: an agent that repeats refused calls must not slow down other agents.

Every refusal first lets the event loop run other tasks. Otherwise an agent that immediately repeats
a refused call would block the loop, and could not even be ended. The first ``AT_ONCE`` refusals are
immediate. Each later refusal is delayed by a quarter of the time since the first, so an agent that
ignores refusals calls less and less often. An accepted call resets the count.
"""

import asyncio
import time

import openai

AT_ONCE = 8
"""Number of consecutive refusals that are not delayed."""

LONGEST_PAUSE = 60.0
"""Longest delay of a refusal, in seconds."""


class Refusals:
    """An episode's refusals since the last accepted call. Safe from any thread and event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0
        self._latest = ""

    def end(self) -> None:
        """Reset the count, since a call was accepted."""
        self._count, self._latest = 0, ""

    def hint(self) -> str:
        """Return a sentence with the latest refusal if more than ``AT_ONCE`` occurred, else ""."""
        if self._count <= AT_ONCE or not self._latest:
            return ""
        return f"Its latest requests were refused: {self._latest}"

    async def hold_back(self, refusal: object) -> None:
        """Delay a refusal so that other tasks on this event loop run first."""
        await asyncio.sleep(self._pause(refusal))

    def hold_back_blocking(self, refusal: object) -> None:
        """Delay a refusal in a thread."""
        time.sleep(self._pause(refusal))

    def _pause(self, refusal: object) -> float:
        now = time.monotonic()
        if self._count == 0:
            self._since = now
        self._count += 1
        if isinstance(refusal, (str, openai.BadRequestError)):  # otherwise the episode is over
            self._latest = f"{refusal!s:.500}"
        return 0.0 if self._count <= AT_ONCE else min((now - self._since) / 4, LONGEST_PAUSE)
