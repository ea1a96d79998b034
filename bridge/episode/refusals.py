"""Refusals: an agent whose calls are refused one after the other does not hold up the others.

Every refusal gives the event loop a turn: a refused call that is made again at once would keep the
loop from everything else, the agent's own end too. The first few come at once. From then on each is
held back for a quarter of the time since the first, so that an agent that ignores them asks ever
more rarely. A call that is taken begins anew.
"""

import asyncio
import time

import openai

AT_ONCE = 8
"""Refusals in a row that are not held back."""

LONGEST_PAUSE = 60.0
"""Seconds that a refusal is held back at most."""


class Refusals:
    """The refusals of one episode since a call was taken. Safe from any thread and event loop."""

    def __init__(self) -> None:
        self._count = 0
        self._since = 0.0
        self._latest = ""

    def end(self) -> None:
        """A call was taken."""
        self._count, self._latest = 0, ""

    def hint(self) -> str:
        """A sentence for an agent whose requests are all refused; empty where they are not."""
        if self._count <= AT_ONCE or not self._latest:
            return ""
        return f"Its latest requests were refused: {self._latest}"

    async def hold_back(self, refusal: object) -> None:
        """Let the other tasks of this event loop go on before a caller gets its refusal."""
        await asyncio.sleep(self._pause(refusal))

    def hold_back_blocking(self, refusal: object) -> None:
        """The same in a thread."""
        time.sleep(self._pause(refusal))

    def _pause(self, refusal: object) -> float:
        now = time.monotonic()
        if self._count == 0:
            self._since = now
        self._count += 1
        if isinstance(refusal, (str, openai.BadRequestError)):  # its end explains nothing
            self._latest = f"{refusal!s:.500}"
        return 0.0 if self._count <= AT_ONCE else min((now - self._since) / 4, LONGEST_PAUSE)
