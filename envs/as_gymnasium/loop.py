"""The event loop (an anyio blocking portal) that all environments in a process share.

Gymnasium's API is synchronous but agents are async, so the event loop runs in a thread. This works
in scripts as well as inside a running event loop, such as in a notebook. The thread starts when the
first environment needs it and stops when the last one releases it. A forked child starts a new
portal.
"""

import asyncio
import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import cache, partial
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from evert.bridge.errors import EnvStateError

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

PATIENCE = 5.0
"""Seconds to wait for the remaining tasks when the loop stops."""


class Loop:
    """A handle to the shared loop, valid until ``leave`` or until its owner is garbage-collected.

    Attributes:
        at_end: Work to run on the loop before it is released, or None. It must not reference the
            owner; otherwise, the owner could never be garbage-collected.
    """

    def __init__(self, owner: object) -> None:
        self.at_end: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._shared = _shared(os.getpid())
        self._portal = self._shared.enter(self)
        self._collected = weakref.finalize(owner, self._leave_soon)
        self._collected.atexit = False

    @property
    def is_ours(self) -> bool:
        """Whether the loop runs in this process. A forked child has no such thread."""
        return self._shared is _shared(os.getpid())

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run ``work`` on the loop and wait for its result."""
        future: Future[Result] = Future()  # created first, so that Ctrl-C can always cancel it
        try:
            self._start(partial(_settle, work, future))
            return future.result()
        except BaseException:  # mainly for Ctrl-C, which must stop the work as well
            future.cancel()
            raise

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            self._portal.start_task_soon(work)
        except RuntimeError as error:
            raise EnvStateError(
                "An evert Gymnasium environment was used inside an async agent that runs on the "
                "same event loop, which would deadlock. Use it in a thread: "
                "`await asyncio.to_thread(env.step, action)`."
            ) from error

    def leave(self) -> None:
        """Run the ``at_end`` work and release the loop. Idempotent."""
        self._collected.detach()
        self.finish()
        self._shared.leave(self)

    def finish(self) -> None:
        """Run the ``at_end`` work, if any."""
        work, self.at_end = self.at_end, None
        if work is not None:
            with contextlib.suppress(RuntimeError, TimeoutError):  # the loop is stopped or blocked
                self._portal.start_task_soon(work).result(PATIENCE)

    def _leave_soon(self) -> None:
        """Release the loop in another thread, since garbage collection may run on the loop."""
        if self.is_ours:
            threading.Thread(target=self.leave, name="evert gymnasium", daemon=True).start()


async def _settle(work: Callable[[], Coroutine[Any, Any, Result]], future: Future[Result]) -> None:
    """Run ``work`` and set the result of ``future``. Cancelling ``future`` cancels the work."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def cancel_task(future: Future[Result]) -> None:
        if future.cancelled():
            loop.call_soon_threadsafe(task.cancel)

    future.add_done_callback(cancel_task)
    try:
        result = await work()
    except asyncio.CancelledError:
        future.cancel()
        raise
    except BaseException as error:  # even KeyboardInterrupt must not stop the shared loop
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(result)


class _Shared:
    """A process's portal. Its thread runs as long as there are users.

    A forked child keeps the parent's object and users, because garbage-collecting them would make
    asyncio complain about pending tasks.
    """

    def __init__(self) -> None:
        self.users: set[Loop] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread()
        self._portal: Future[BlockingPortal] = Future()

    def enter(self, user: Loop) -> BlockingPortal:
        """Add a user and return the portal, starting it if needed."""
        with self._lock:
            if not self._thread.is_alive():
                self._portal = Future()
                self._thread = threading.Thread(
                    target=anyio.run, args=(self._serve,), name="evert gymnasium", daemon=True
                )
                self._thread.start()
            self.users.add(user)
            return self._portal.result()

    def leave(self, user: Loop) -> None:
        """Remove a user. After the last one, stop the portal and cancel its tasks."""
        with self._lock:
            if user not in self.users:
                return
            self.users.discard(user)
            if self.users:
                return
            portal, thread, self._thread = self._portal.result(), self._thread, threading.Thread()
        with contextlib.suppress(RuntimeError):  # the portal has already stopped
            portal.start_task_soon(portal.stop, True)
        thread.join(PATIENCE)
        if thread.is_alive():
            logger.error(
                "evert's event loop did not stop within %s s, so its thread keeps running. An "
                "agent ignores cancellation or blocks the loop.",
                PATIENCE,
            )

    async def _serve(self) -> None:
        async with BlockingPortal() as portal:
            self._portal.set_result(portal)
            await portal.sleep_until_stopped()


@cache
def _shared(pid: int) -> _Shared:
    return _Shared()


@atexit.register
def _finish_all() -> None:  # the loop keeps running, as no thread can start at exit
    for loop in list(_shared(os.getpid()).users):
        loop.finish()
