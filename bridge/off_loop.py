"""Work that would hold the event loop: evert's own is done in a few threads.

Frameworks do theirs in the loop's default executor, which ``give_threads`` makes large enough.
"""

import asyncio
import gc
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from typing import ParamSpec, TypeVar
from weakref import WeakSet

Result = TypeVar("Result")
Given = ParamSpec("Given")

AGENT_THREADS = 1024
"""Threads that the agents of one event loop may block at once; each is made when it is needed."""

_seen: WeakSet[asyncio.AbstractEventLoop] = WeakSet()


async def off_loop(
    work: Callable[Given, Result], *args: Given.args, **options: Given.kwargs
) -> Result:
    """Have something done beside the running loop, and wait for it."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(threads(2), lambda: work(*args, **options))


async def made(make: Awaitable[Result], undo: Callable[[Result], Awaitable[object]]) -> Result:
    """What is being made; who is cancelled meanwhile waits for it, and has it undone."""
    making = asyncio.ensure_future(make)
    try:
        return await asyncio.shield(making)
    except asyncio.CancelledError:
        with suppress(Exception):  # it could not be made
            await undo(await making)
        raise


@cache
def threads(count: int) -> ThreadPoolExecutor:
    """A pool of that many; the loop's default one may be full of agents that wait for us."""
    return ThreadPoolExecutor(count, thread_name_prefix="evert off loop")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=threads.cache_clear)  # a fork has none of its threads


def give_threads(loop: asyncio.AbstractEventLoop) -> None:
    """Give an event loop's default executor enough threads for frameworks that block in them.

    Its default is a handful: as many agents would wait in them, and the rest could never make the
    calls that a trainer waits for. An executor that somebody chose is left alone.
    """
    if loop in _seen:
        return
    _seen.add(loop)
    hidden = (one for one in gc.get_referents(loop) if isinstance(one, Executor))  # uvloop's
    present = getattr(loop, "_default_executor", None) or next(hidden, None)
    size = getattr(present, "_max_workers", 0)
    if present is None or (type(present) is ThreadPoolExecutor and size == _default_size()):
        loop.set_default_executor(ThreadPoolExecutor(AGENT_THREADS, thread_name_prefix="asyncio"))
        if present is not None:
            present.shutdown(wait=False)  # what it was given, it still does


@cache
def _default_size() -> int:
    pool = ThreadPoolExecutor()
    pool.shutdown()
    return pool._max_workers
