"""``WorkerExecutor``: base class for executors that play Cookbook groups on workers.

    with PoolRollouts(workers=4, groups_per_worker=8) as rollouts:
        asyncio.run(rl.train.main(config, rollout_executor=rollouts))

Subclasses define how workers are started. Everything runs on a single event loop in the executor's
thread, so no locks are needed. If a worker dies, its groups are counted as lost and played again.
If ``MOST_LOSSES`` workers die while they play the same group, an error that names the group's task
is raised. For the last attempt, the group gets a worker of its own.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Any, ClassVar

from tinker_cookbook.rl.rollouts import _run_rollout_sync
from tinker_cookbook.rl.types import TrajectoryGroup

from evert.bridge.episode.agent import agent_name
from evert.bridge.errors import repr_of
from evert.bridge.groups.group import ChatAgentGroupBuilder
from evert.trainers.system.machine import cores
from evert.trainers.workers.errors import LostGroupError, WorkerError
from evert.trainers.workers.offers import Offers
from evert.trainers.workers.supervision import ANSWER_SECONDS, Crew, Worker, WorkerLost
from evert.trainers.workers.travel import GroupOutcome, unpack

logger = logging.getLogger(__name__)

MOST_LOSSES = 3
"""How many workers may die while playing a group before we give up."""
ALONE_AFTER = 2
"""How many workers may die while playing a group before it gets a worker of its own."""

Tell = Callable[..., object]
"""Calls a function, with the given arguments, on the event loop that submitted the group."""


class WorkerExecutor(Executor):
    """Plays groups on workers."""

    kind: ClassVar[str] = "workers"
    """Describes the workers in messages."""

    def __init__(
        self,
        workers: int | None = None,
        groups_per_worker: int = 16,
        *,
        worker_timeout: float | None = ANSWER_SECONDS,
        host: str = "127.0.0.1",
    ) -> None:
        workers = cores() if workers is None else workers
        for name, number in (("workers", workers), ("groups_per_worker", groups_per_worker)):
            if number < 1:
                raise ValueError(f"{name} must be at least 1, got {number}.")
        if worker_timeout is not None and not worker_timeout > 0:
            raise ValueError(
                f"worker_timeout must be greater than 0 or None, got {worker_timeout}."
            )
        self.workers = workers
        self.worker_timeout = worker_timeout
        self.lost_groups = 0
        self.groups_per_worker = groups_per_worker
        self._offers = Offers(host)
        self._groups = set[asyncio.Task[Any]]()
        self._is_closed = False
        self._loop = asyncio.new_event_loop()
        self._over = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="evert rollouts", daemon=True)
        self._thread.start()

    async def start_worker(self) -> Worker:
        """Start a worker."""
        raise NotImplementedError

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        """Play a Cookbook group. The future returns its trajectories, or None for a dropped group.

        If this is called on an event loop, the group's strategy is notified on the same loop.
        """
        if fn is not _run_rollout_sync:
            raise WorkerError(
                f"A {type(self).__name__} was given {repr_of(fn)}, but it can only play groups "
                "from the Cookbook's rl.train.main (rollout_executor=). Use a different "
                "executor for other work."
            )
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        [task] = args
        return asyncio.run_coroutine_threadsafe(self._group(task, _teller()), self._loop)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Stop the workers once all submitted groups have finished. Idempotent."""
        self._is_closed = True
        with suppress(RuntimeError):  # the loop is already closed
            self._loop.call_soon_threadsafe(self._finish, cancel_futures)
        if wait:
            self._thread.join()

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self.shutdown(cancel_futures=kind is not None)

    def __str__(self) -> str:
        return f"{self.workers} {self.kind} with up to {self.groups_per_worker} groups each"

    # -- in the executor's thread ----------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._work())

    async def _work(self) -> None:
        made_of = self.workers, self.groups_per_worker, self.worker_timeout
        self._crew = Crew(self.start_worker, *made_of)
        try:
            await self._over.wait()
            while self._groups:
                await asyncio.wait(self._groups)
        finally:
            await self._crew.end()
            self._offers.close()
            self._release()

    def _release(self) -> None:
        """Release shared resources after the workers have stopped."""

    def _finish(self, give_up: bool) -> None:
        if give_up:
            for group in self._groups:
                group.cancel()
        self._over.set()

    async def _group(self, task: Any, tell: Tell) -> TrajectoryGroup | None:
        this = asyncio.current_task()
        if this is not None:
            self._groups.add(this)
            this.add_done_callback(self._groups.discard)
        count_group = getattr(task.strategy, "count_group", None)
        outcome, error = GroupOutcome(), None
        try:
            async with self._offers.packed(task) as parcel:
                outcome = await self._outcome(parcel, task, tell)
            error = outcome.error.unpacked() if outcome.error is not None else None
        except Exception as raised:
            error = raised
        for record in outcome.records:
            if (local_logger := logging.getLogger(record.name)).isEnabledFor(record.levelno):
                local_logger.handle(record)
        for rows in outcome.rows:
            task.env_group_builder.record.write(rows)
        if error is not None and not isinstance(error, Exception):
            error = WorkerError(f"{_name(task)} raised {type(error).__name__} in a worker: {error}")
        if isinstance(task.env_group_builder, ChatAgentGroupBuilder):
            tell(task.env_group_builder.report_rewards, outcome.rewards or [])
        if count_group is not None:
            tell(count_group, task.env_group_builder, outcome.account, error)
        if error is not None:
            raise error
        return outcome.result

    async def _outcome(self, parcel: bytes, task: Any, tell: Tell) -> GroupOutcome:
        lost = WorkerLost()
        for losses in range(MOST_LOSSES):
            try:
                data = await self._crew.play(parcel, alone=losses >= ALONE_AFTER)
                came: GroupOutcome = unpack(data, _name(task))
                return came
            except WorkerLost as error:
                lost = error
            self.lost_groups += 1
            logger.warning("%s was lost because its worker died: %s.", _name(task), lost)
            if (count_lost := getattr(task.strategy, "count_lost", None)) is not None:
                tell(count_lost, str(lost))
        raise LostGroupError(
            f"{_name(task)} was lost because its worker died {MOST_LOSSES} times, the last time "
            f"with no other groups on that worker: {lost}. Find out what kills the process (out "
            "of memory, os._exit, a crash in a C extension) or blocks its event loop for longer "
            "than worker_timeout (computation in an async agent). In the trainer's process, this "
            "group would crash or block the run."
        )


def _teller() -> Tell:
    """Return a ``Tell`` that calls functions on the running loop, or directly if there is none."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return lambda function, *arguments: function(*arguments)

    def tell(*call: Any) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(*call)

    return tell


def _name(task: Any) -> str:
    builder = task.env_group_builder
    agent = getattr(builder, "agent", None)
    if agent is None:
        return f"The group {repr_of(builder)}"
    return f"The group of agent {agent_name(agent)} on task {repr_of(builder.task)}"
