"""Keeps slow work off the event loop.

evert's own slow work runs in a few threads (``off_loop``). Agent frameworks use the loop's default
executor, which ``give_threads`` makes large enough.
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
"""Maximum number of threads that one event loop's agents may block; threads start when needed."""


async def off_loop(
    work: Callable[Params, Result], *args: Params.args, **options: Params.kwargs
) -> Result:
    """Run ``work`` in a thread, and wait for its result without blocking the event loop."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads(2), partial(work, *args, **options))


async def finished(work: Awaitable[Result]) -> Result:
    """Wait for ``work`` to finish even if this wait is cancelled; then raise the cancellation."""
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
    """Return the result of ``make``; if cancelled, wait for that result and ``undo`` it."""
    making = asyncio.ensure_future(make)
    try:
        return await finished(making)
    except asyncio.CancelledError:
        with suppress(Exception):  # ``make`` failed: nothing to undo
            await finished(undo(making.result()))
        raise


@cache
def threads(count: int) -> ThreadPoolExecutor:
    """Return a shared pool of ``count`` threads: waiting agents may fill the loop's own pool."""
    return ThreadPoolExecutor(count, thread_name_prefix="evert off loop")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=threads.cache_clear)  # threads do not survive a fork


def give_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Give an event loop's default executor enough threads for frameworks that block them.

    By default it has only a few threads. Waiting agents would occupy all of them, and other agents
    could never make the calls that the trainer waits for. An executor set by the user is kept.
    """
    # There is no public way to get a loop's executor or a pool's size.
    executors = (obj for obj in gc.get_referents(loop) if isinstance(obj, Executor))  # for uvloop
    present = getattr(loop, "_default_executor", None) or next(executors, None)
    size = getattr(present, "_max_workers", 0)
    if present is None or (type(present) is ThreadPoolExecutor and size == _default_size()):
        loop.set_default_executor(ThreadPoolExecutor(AGENT_THREADS, thread_name_prefix="asyncio"))
        if present is not None:
            present.shutdown(wait=False)  # the old pool still finishes its work


@cache
def _default_size() -> int:
    pool = ThreadPoolExecutor()
    pool.shutdown()
    return pool._max_workers
