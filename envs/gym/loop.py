"""The event loop that all environments of a process share, in a thread of its own.

Gymnasium calls plainly and agents are async, so somebody must run a loop. A thread of its own works
in a script and inside a running loop (a notebook) alike. It starts with the first episode and ends
when the last environment is closed; ``acquire`` and ``release`` count the users. A forked child has
no threads: it forgets its parent's loop and starts its own when it needs one.
"""

import asyncio
import atexit
import logging
import os
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from evert.bridge.errors import EnvStateError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

JOIN_TIMEOUT = 5.0
"""Seconds to wait for the loop's last tasks when it is stopped."""


class LoopThread:
    """An event loop that runs in a daemon thread until ``stop``."""

    def __init__(self) -> None:
        self.users = 0
        self._pid = os.getpid()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="evert gymnasium", daemon=True)
        self._thread.start()
        self._started.wait()

    @property
    def is_alive(self) -> bool:
        """Whether it runs in this process."""
        return self._thread.is_alive() and self._pid == os.getpid()

    def _run(self) -> None:
        asyncio.run(self._serve())  # which also cancels what is left, and joins its executor

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        self._later: set[asyncio.Task[Any]] = set()
        self._started.set()
        await self._stopped.wait()
        await asyncio.gather(*self._later, return_exceptions=True)

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do ``work`` on the loop and wait for its result.

        Raises:
            EnvStateError: Called from the loop itself, which would wait for itself for ever.
        """
        if threading.get_ident() == self._thread.ident:
            work.close()
            raise EnvStateError(
                "A Gymnasium environment of evert was used from inside an async agent that runs on "
                "the same event loop; it would wait for itself for ever. Use it in a thread: "
                "`await asyncio.to_thread(env.step, action)`."
            )
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:  # Ctrl-C, above all: the work must not go on behind our back
            future.cancel()
            raise

    def run_later(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do ``work`` on the loop, before it stops; wait for nothing."""

        def start() -> None:
            task = self._loop.create_task(work)
            self._later.add(task)
            task.add_done_callback(self._later.discard)

        self._loop.call_soon_threadsafe(start)

    def stop(self, *, wait: bool) -> None:
        """End the loop: its tasks are cancelled. ``wait`` until its thread is gone."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        if not wait or threading.get_ident() == self._thread.ident:
            return
        self._thread.join(JOIN_TIMEOUT)
        if self._thread.is_alive():
            logger.error(
                "evert's event loop did not end within %s s; it is left behind. An agent swallows "
                "its cancellation, or blocks the loop.",
                JOIN_TIMEOUT,
            )


_lock = threading.RLock()  # re-entrant: a collected environment releases wherever we just are
_shared: LoopThread | None = None


def acquire() -> LoopThread:
    """The shared loop, started if need be. Give it back with ``release``."""
    global _shared
    with _lock:
        if _shared is None or not _shared.is_alive:
            _shared = LoopThread()
        _shared.users += 1
        return _shared


def release(loop: LoopThread, *, wait: bool = True) -> None:
    """Give a loop back; the last user stops it."""
    global _shared
    with _lock:
        loop.users -= 1
        if loop.users > 0 or not loop.is_alive:
            return
        if _shared is loop:
            _shared = None
    loop.stop(wait=wait)


_strays: list[object] = []


def keep_from_collector(stray: object) -> None:
    """Keep what a forked child inherits but cannot end: collecting it would report lost tasks."""
    _strays.append(stray)


def _forget() -> None:
    global _lock, _shared
    _lock = threading.RLock()  # another thread may have held it at the fork
    _shared = None


def _stop_at_exit() -> None:
    if _shared is not None and _shared.is_alive:
        _shared.stop(wait=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(_stop_at_exit)
