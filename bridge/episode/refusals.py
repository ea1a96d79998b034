"""Refusals: an agent that repeats refused calls must not slow down other agents.

Every refusal lets the event loop run other tasks: an agent that repeats a refused call at once
would block the loop, even for its own end. The first ``AT_ONCE`` refusals are immediate. Each later
one is delayed by a quarter of the time since the first, so that an agent that ignores them calls
less and less often. A call that is accepted resets the count.
"""

import asyncio
import time

import openai

AT_ONCE = 8
"""Refusals in a row that are not delayed."""

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
        """Return the latest refusal as a sentence after more than ``AT_ONCE`` refusals; else ""."""
        if self._count <= AT_ONCE or not self._latest:
            return ""
        return f"Its latest requests were refused: {self._latest}"

    async def hold_back(self, refusal: object) -> None:
        """Delay a caller's refusal, so that other tasks of this event loop run first."""
        await asyncio.sleep(self._pause(refusal))

    def hold_back_blocking(self, refusal: object) -> None:
        """Delay a refusal in a thread."""
        time.sleep(self._pause(refusal))

    def _pause(self, refusal: object) -> float:
        now = time.monotonic()
        if self._count == 0:
            self._since = now
        self._count += 1
        if isinstance(refusal, (str, openai.BadRequestError)):  # other errors are about the end
            self._latest = f"{refusal!s:.500}"
        return 0.0 if self._count <= AT_ONCE else min((now - self._since) / 4, LONGEST_PAUSE)
