"""Starts an executor's workers concurrently, replaces those that die, and assigns groups to them.

Everything runs on the executor's event loop. Each group is assigned to the worker with the fewest
groups. If a group's worker dies several times, the group may be the cause. The group is then played
*alone*, on a worker without other groups, so that no other groups are lost and the cause is clear.

We regularly check that each worker's event loop responds. If it doesn't, the worker is killed.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from evert.trainers.workers.errors import WorkerError

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 60.0
"""Time limit in seconds for a worker to respond."""
WAITS = 4
"""The limit is split into this many waits. If our process is suspended, only one wait expires."""
SILENT = (
    "did not respond for {:g} s: it is suspended, its pipe is broken, or its event loop is blocked "
    "(its stderr shows where)"
)
MOST_STARTS = 3
"""How many times in a row a worker may die during startup."""


class WorkerLost(Exception):
    """A worker died; the message states the cause. Only used inside the executor."""


class Worker(Protocol):
    """A process that plays groups."""

    async def play(self, parcel: bytes) -> bytes:
        """Play a group and return its packed ``GroupOutcome``. Cancelling this stops the group."""
        ...

    async def ready(self) -> None:
        """Wait until the worker's event loop responds or the worker has died."""

    async def wait_gone(self) -> None:
        """Wait until the worker has died."""

    async def end(self, why: str = "") -> None:
        """Stop the worker and its groups. If given ``why``, stop at once and state it in errors."""


@dataclass(eq=False)
class WorkerSlot:
    """A slot for one worker, and the number of groups that the worker is playing."""

    worker: Worker | None = None
    """None if the worker is not ready yet or has died."""
    groups: int = 0
    is_alone: bool = False


class Crew:
    """Starts workers, replaces those that die, and assigns groups to them."""

    def __init__(
        self,
        start: Callable[[], Awaitable[Worker]],
        workers: int,
        groups_per_worker: int,
        patience: float | None,
    ) -> None:
        self._start = start
        self._patience = patience
        self._room = groups_per_worker
        self._places = [WorkerSlot() for _ in range(workers)]
        self._waiting = deque[asyncio.Future[WorkerSlot]]()
        self._alone = deque[asyncio.Future[WorkerSlot]]()
        self._error: WorkerError | None = None
        self._keeping = [asyncio.create_task(self._keep(place)) for place in self._places]

    async def play(self, parcel: bytes, *, alone: bool = False) -> bytes:
        """Play a group, optionally ``alone`` on a worker, and return its packed outcome."""
        place = await self._place(self._alone if alone else self._waiting)
        worker = place.worker
        try:
            if worker is None:
                raise WorkerLost("it died before it received the group")
            return await worker.play(parcel)
        except WorkerLost:
            if place.worker is worker:
                place.worker = None  # don't assign more groups to it
            raise
        finally:
            place.groups -= 1
            place.is_alone = False
            self._deal()

    async def end(self) -> None:
        """Stop all workers."""
        for keeping in self._keeping:
            keeping.cancel()
        await asyncio.gather(*self._keeping, return_exceptions=True)

    async def _keep(self, place: WorkerSlot) -> None:
        starts, why = 0, ""
        while starts < MOST_STARTS:
            try:
                worker = await self._start()
            except WorkerError as error:  # no workers can be started
                self._fail(str(error))
                return
            except Exception as error:
                lost = isinstance(error, WorkerLost)
                starts, why = starts + 1, str(error) if lost else f"{type(error).__name__}: {error}"
                logger.warning("A worker could not be started: %s.", why)
                continue
            starts, place.worker = 0, worker
            self._deal()
            watching = asyncio.create_task(self._watch(worker))
            try:
                await worker.wait_gone()
            finally:
                watching.cancel()
                place.worker = None
                await worker.end()
        self._places.remove(place)
        if not self._places:
            self._fail(
                f"No workers could be started: each died {MOST_STARTS} times before it was ready. "
                f"The last reason: {why}. Check its output, that evert is installed where the "
                "workers run, and that there is enough memory."
            )

    async def _watch(self, worker: Worker) -> None:
        if self._patience is not None:
            while await answers(worker, self._patience):  # noqa: ASYNC110
                await asyncio.sleep(self._patience / WAITS)
            await worker.end(SILENT.format(self._patience))

    async def _place(self, queue: "deque[asyncio.Future[WorkerSlot]]") -> WorkerSlot:
        if self._error is not None:
            raise self._error
        waiting: asyncio.Future[WorkerSlot] = asyncio.get_running_loop().create_future()
        queue.append(waiting)
        self._deal()
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                waiting.result().groups -= 1
                waiting.result().is_alone = False
                self._deal()
            raise

    def _deal(self) -> None:
        up = [place for place in self._places if place.worker is not None and not place.is_alone]
        while up and (alone := _next(self._alone)) is not None:
            target = min(up, key=lambda place: place.groups)
            up.remove(target)  # assign no more groups to this worker, so that it becomes free
            if target.groups:
                break
            self._alone.popleft()
            target.groups, target.is_alone = 1, True
            alone.set_result(target)
        while up and (waiting := _next(self._waiting)) is not None:
            free = min(up, key=lambda place: place.groups)
            if free.groups >= self._room:
                break
            self._waiting.popleft()
            free.groups += 1
            waiting.set_result(free)

    def _fail(self, why: str) -> None:
        self._error = WorkerError(why)
        for waiting in (*self._alone, *self._waiting):
            if not waiting.done():
                waiting.set_exception(self._error)


async def answers(worker: Worker, seconds: float) -> bool:
    """Return whether a worker responds or dies within ``seconds``."""
    asking = asyncio.ensure_future(worker.ready())
    try:
        for _ in range(WAITS):
            await asyncio.wait({asking}, timeout=seconds / WAITS)
        return asking.done()
    finally:
        asking.cancel()


def _next(queue: "deque[asyncio.Future[WorkerSlot]]") -> "asyncio.Future[WorkerSlot] | None":
    while queue and queue[0].done():
        queue.popleft()
    return queue[0] if queue else None
