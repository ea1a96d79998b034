"""Measure how long an event loop is blocked, and stop rows that block it forever.

    async with stalls.watched() as stall:
        ...
    assert stall.longest < stalls.LONGEST

This measures the CPU time of the loop's own thread, so other load does not affect the result.
``stalls.no_longer_than`` interrupts calls that block without using the CPU.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

LONGEST = 0.25
"""Maximum CPU time in seconds for which an event loop may be blocked."""

EVERY = 0.001
"""Seconds between two ticks."""


@dataclass
class Stall:
    """Attributes:
    longest: The longest time for which the loop was blocked, in seconds of CPU time.
    """

    longest: float = 0.0


class Blocked(BaseException):
    """The event loop's thread is stuck in a call."""


@asynccontextmanager
async def watched() -> AsyncIterator[Stall]:
    stall = Stall()
    ticker = asyncio.create_task(_tick(stall))
    try:
        yield stall
        await asyncio.sleep(2 * EVERY)  # one more tick, to include the last measurement
    finally:
        ticker.cancel()
        with suppress(asyncio.CancelledError):
            await ticker


async def _tick(stall: Stall) -> None:
    before = time.thread_time()
    while True:
        await asyncio.sleep(EVERY)
        now = time.thread_time()
        stall.longest = max(stall.longest, now - before)
        before = now


@contextmanager
def no_longer_than(seconds: int) -> Iterator[None]:
    """Raise ``Blocked`` in the main thread after this many seconds, even in a blocking call."""

    def block_is_over(number: int, frame: FrameType | None) -> None:
        raise Blocked(f"The event loop was still blocked after {seconds} s.")

    earlier = signal.signal(signal.SIGALRM, block_is_over)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, earlier)
