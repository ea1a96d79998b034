"""Work that would hold the event loop: it is done in one of two threads."""

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Given = ParamSpec("Given")


async def off_loop(
    work: Callable[Given, Result], *args: Given.args, **options: Given.kwargs
) -> Result:
    """Have something done beside the running loop, and wait for it."""
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads(), lambda: work(*args, **options))


@cache
def _threads() -> ThreadPoolExecutor:
    # Of our own: the loop's default executor may be full of agents' threads that wait for us.
    return ThreadPoolExecutor(2, thread_name_prefix="evert off loop")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_threads.cache_clear)  # a fork has none of its threads
