"""The event loop that all environments of a process share: an anyio blocking portal.

Gymnasium's calls are synchronous and agents are async, so a thread runs the event loop. This works
in a script, and inside a running loop (a notebook). The thread starts with the first environment
that needs it, and ends when the last one releases it. A forked child starts a new portal.
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
"""Seconds to wait for the last tasks when the loop ends."""


class Loop:
    """One user of the shared loop, until ``leave`` or until its owner is garbage-collected.

    Attributes:
        at_end: Work to do on the loop before the release, or None. It must not refer to the owner.
    """

    def __init__(self, owner: object) -> None:
        self.at_end: Callable[[], Coroutine[Any, Any, None]] | None = None
        self._shared = _shared(os.getpid())
        self._portal = self._shared.enter(self)
        self._collected = weakref.finalize(owner, self._leave_soon)
        self._collected.atexit = False

    @property
    def is_ours(self) -> bool:
        """Whether the loop runs in this process; a forked child lacks its thread."""
        return self._shared is _shared(os.getpid())

    def run(self, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run ``work`` on the loop and wait for its result."""
        future: Future[Result] = Future()  # before the start, so that Ctrl-C can always cancel it
        try:
            self._start(partial(_settle, work, future))
            return future.result()
        except BaseException:  # mainly Ctrl-C: the work must also stop
            future.cancel()
            raise

    def _start(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            self._portal.start_task_soon(work)
        except RuntimeError as error:
            raise EnvStateError(
                "A Gymnasium environment of evert was used from inside an async agent that runs on "
                "the same event loop; it would wait for itself forever. Use it in a thread: "
                "`await asyncio.to_thread(env.step, action)`."
            ) from error

    def leave(self) -> None:
        """Do the work ``at_end``, and release the loop. Idempotent."""
        self._collected.detach()
        self.finish()
        self._shared.leave(self)

    def finish(self) -> None:
        """Do the work ``at_end``."""
        work, self.at_end = self.at_end, None
        if work is not None:
            with contextlib.suppress(RuntimeError, TimeoutError):  # the loop ended, or is blocked
                self._portal.start_task_soon(work).result(PATIENCE)

    def _leave_soon(self) -> None:
        """Release the loop in another thread: the garbage collector may call this on the loop."""
        if self.is_ours:
            threading.Thread(target=self.leave, name="evert gymnasium", daemon=True).start()


async def _settle(work: Callable[[], Coroutine[Any, Any, Result]], future: Future[Result]) -> None:
    """Run ``work`` and put its result into ``future``. Cancelling ``future`` cancels the work."""
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
    except BaseException as error:  # even KeyboardInterrupt, since other episodes share the loop
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(result)


class _Shared:
    """The portal of one process. Its thread runs while it has users.

    A forked child inherits its parent's object with the users and keeps both, since garbage
    collection would report their tasks as lost.
    """

    def __init__(self) -> None:
        self.users: set[Loop] = set()
        self._lock = threading.Lock()
        self._thread = threading.Thread()
        self._portal: Future[BlockingPortal] = Future()

    def enter(self, user: Loop) -> BlockingPortal:
        """Add a user and return the portal, which is started if needed."""
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
        """Remove a user. After the last one the portal ends, and its tasks are cancelled."""
        with self._lock:
            if user not in self.users:
                return
            self.users.discard(user)
            if self.users:
                return
            portal, thread, self._thread = self._portal.result(), self._thread, threading.Thread()
        with contextlib.suppress(RuntimeError):  # the portal has ended
            portal.start_task_soon(portal.stop, True)
        thread.join(PATIENCE)
        if thread.is_alive():
            logger.error(
                "evert's event loop did not end within %s s; its thread keeps running. An agent "
                "ignores its cancellation, or blocks the loop.",
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
def _finish_all() -> None:  # does not end the loop: that would start threads, which now fails
    for loop in list(_shared(os.getpid()).users):
        loop.finish()
