"""Measure how long an event loop is blocked, and end a row that blocks it for ever.

    async with stalls.watched() as stall:
        ...
    assert stall.longest < stalls.LONGEST

Only the processor time of the loop's own thread counts, so a busy machine changes nothing.
A call that blocks without using the processor is ended by ``stalls.no_longer_than``.
"""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

LONGEST = 0.25
"""Seconds of processor time that an event loop may spend without a turn for anybody else."""

EVERY = 0.001
"""Seconds between two turns of the ticker."""


@dataclass
class Stall:
    """Attributes:
    longest: The most processor time of the loop's thread between two turns, in seconds.
    """

    longest: float = 0.0


class Blocked(BaseException):
    """An event loop's thread did not come back from a call."""


@asynccontextmanager
async def watched() -> AsyncIterator[Stall]:
    stall = Stall()
    ticker = asyncio.create_task(_tick(stall))
    try:
        yield stall
        await asyncio.sleep(2 * EVERY)  # one more turn counts what was done last
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
