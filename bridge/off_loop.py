"""Keeps slow work off the event loop.

evert runs its own slow work in a few threads (``off_loop``). Agent frameworks use the loop's
default executor, which ``give_threads`` makes large enough for them.
"""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Params = ParamSpec("Params")

AGENT_THREADS = 1024
"""Maximum number of threads that agents on one event loop can block. Started on demand."""


async def off_loop(
    work: Callable[Params, Result], *args: Params.args, **options: Params.kwargs
) -> Result:
    """Run ``work`` in a thread and await its result without blocking the event loop."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads(2), partial(work, *args, **options))


async def finished(work: Awaitable[Result]) -> Result:
    """Wait until ``work`` is done, even when cancelled; the cancellation is raised afterwards."""
    working, cancelled = asyncio.ensure_future(work), False
    while not working.done():
        try:
            await asyncio.wait([working])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        raise asyncio.CancelledError from working.exception()
    return working.result()


async def acquire(make: Awaitable[Result], undo: Callable[[Result], Awaitable[object]]) -> Result:
    """Return the result of ``make``. If cancelled, wait for that result and pass it to ``undo``."""
    making = asyncio.ensure_future(make)
    try:
        return await finished(making)
    except asyncio.CancelledError:
        with suppress(Exception):  # if ``make`` failed, there is nothing to undo
            await finished(undo(making.result()))
        raise


@cache
def threads(count: int) -> ThreadPoolExecutor:
    """Return a shared pool of ``count`` threads.

    The loop's own pool is not used, because waiting agents may occupy all of its threads.
    """
    return ThreadPoolExecutor(count, thread_name_prefix="evert off loop")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=threads.cache_clear)  # threads do not survive a fork


def give_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Make an event loop's default executor large enough for frameworks that block its threads.

    By default, this executor has only a few threads. If waiting agents occupied all of them, other
    agents could never make the calls that the trainer is waiting for. An executor that the user has
    set is not replaced.
    """
    # There is no public API for a loop's executor or a pool's size.
    executors = (obj for obj in gc.get_referents(loop) if isinstance(obj, Executor))  # for uvloop
    present = getattr(loop, "_default_executor", None) or next(executors, None)
    size = getattr(present, "_max_workers", 0)
    if present is None or (type(present) is ThreadPoolExecutor and size == _default_size()):
        loop.set_default_executor(ThreadPoolExecutor(AGENT_THREADS, thread_name_prefix="asyncio"))
        if present is not None:
            present.shutdown(wait=False)  # the old pool still finishes its pending work


@cache
def _default_size() -> int:
    pool = ThreadPoolExecutor()
    pool.shutdown()
    return pool._max_workers
