"""``RayRollouts``: uses Ray actors as workers, on this machine or on a cluster.

Each actor plays its groups concurrently on one event loop. Ray doesn't restart actors or retry
calls by itself. When an actor dies, its groups are returned to the executor, which counts them and
starts a new actor, unless Ray has died on this machine.
"""

import asyncio
import importlib
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from evert.bridge.errors import MissingPackageError
from evert.trainers.system.machine import cores
from evert.trainers.workers.errors import WorkerError
from evert.trainers.workers.executor import WorkerExecutor
from evert.trainers.workers.supervision import ANSWER_SECONDS, Worker, WorkerLost, answers

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds to wait for an actor before checking on Ray and logging a warning."""
NO_ROOM = (
    "A worker is waiting for free resources on the Ray cluster (see `ray status`). Use fewer "
    "workers, or fewer CPUs per worker (num_cpus=). Workers that have started keep running."
)
NODE_DIED = (
    "The Ray node on this machine has died, so no more groups can be played. See its logs in "
    "/tmp/ray/session_latest/logs. It usually dies because it runs out of memory. Restart Ray and "
    "resume the run with the same command, or use processes on this machine (rollouts=pool)."
)
NOT_STARTED = (
    "Ray could not be started on this machine ({}: {}). Try again when the machine is less busy, "
    "start Ray separately (`ray start --head`) and pass ray_address=auto, or don't use Ray "
    "(rollouts=pool)."
)
OWN = "local"
"""The address that makes Ray start a new cluster on this machine."""


class RayRollouts(WorkerExecutor):
    """An executor for the Cookbook's ``rollout_executor`` that plays groups in Ray actors.

        with RayRollouts(workers=64, groups_per_worker=8, address="auto") as rollouts:
            asyncio.run(rl.train.main(config, rollout_executor=rollouts))

    If Ray is already initialized in this process, the executor uses it. Otherwise, it starts Ray or
    joins a cluster, and calls ``ray.shutdown()`` when it is shut down.

    Args:
        workers: Number of actors (default: one per core available to this process).
        groups_per_worker: Maximum number of groups that an actor plays concurrently.
        address: The cluster's address: "auto", "HOST:6379" or "ray://HOST:10001" (default:
            RAY_ADDRESS, or a new cluster on this machine).
        host: Address that workers use to sample from this machine's engine (default: loopback if
            this machine is the only node, otherwise its address in Ray).
        worker_timeout: See ``PoolRollouts``.
        **options: Options for each actor: ``num_cpus`` (1), ``resources``, ``runtime_env``, ...

    Attributes:
        lost_groups: How many times a group has been lost so far because its worker died.

    Raises:
        ValueError: A number is less than 1, or a timeout is not greater than 0.
        ConnectionError: There is no cluster at this address.
        WorkerError: Ray could not be started.
        MissingPackageError: Ray is not installed.
    """

    kind = "Ray actors"

    def __init__(
        self,
        workers: int | None = None,
        groups_per_worker: int = 16,
        *,
        address: str | None = None,
        host: str | None = None,
        worker_timeout: float | None = ANSWER_SECONDS,
        **options: Any,
    ) -> None:
        ray = _ray()
        self._starts_ray = not ray.is_initialized()
        if self._starts_ray:
            _start_ray(
                ray, address or os.environ.get("RAY_ADDRESS") or OWN, max(workers or 0, cores())
            )
        nodes = [node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]]
        near = _near(nodes, ray.util.get_node_ip_address())
        # Allow two calls in addition to the groups: ``wait``, which never returns, and
        # ``ready``.
        options = {"num_cpus": 1, **options, "max_concurrency": groups_per_worker + 2}
        self._actor = ray.remote(Actor).options(**options)
        self._node = ray.get_runtime_context().get_node_id()
        super().__init__(
            workers, groups_per_worker, worker_timeout=worker_timeout, host=host or near
        )

    async def start_worker(self) -> Worker:
        """Start an actor, waiting until the cluster has enough resources for it.

        Raises:
            WorkerLost: The actor died before it was ready.
            WorkerError: Ray has died.
        """
        worker = RayWorker(self._actor.remote(sys.path))
        try:
            while not await answers(worker, PATIENCE):
                nodes = await asyncio.to_thread(_ray().nodes)
                if self._node not in [node["NodeID"] for node in nodes if node["Alive"]]:
                    raise WorkerError(NODE_DIED)
                logger.warning("%s", NO_ROOM)
            if worker.lost is not None:
                raise worker.lost
        except BaseException:
            await worker.end()
            raise
        return worker

    def _release(self) -> None:
        if self._starts_ray:
            _ray().shutdown()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "RayRollouts requires the ray package, which is not installed. Run "
            "pip install 'evert[ray]', or use evert.PoolRollouts to use processes on this machine."
        ) from error


def _start_ray(ray: Any, address: str, cpus: int) -> None:
    options = {"num_cpus": cpus, "include_dashboard": False} if address == OWN else {}
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR", **options)
    except (ConnectionError, ValueError):
        raise
    except Exception as error:
        ray.shutdown()
        raise WorkerError(NOT_STARTED.format(type(error).__name__, _first_lines(error))) from error


class Actor:
    """The Ray actor."""

    def __init__(self, path: list[str]) -> None:
        from evert.trainers.workers.playing import become_worker

        sys.path += [folder for folder in path if folder not in sys.path]
        become_worker()

    async def ready(self) -> int:
        """Return the process id."""
        return os.getpid()

    async def wait(self) -> None:
        """Never return. The call fails when the process exits."""
        await asyncio.Event().wait()

    async def play(self, parcel: bytes) -> bytes:
        """Play a group and return its packed ``GroupOutcome``."""
        from evert.trainers.workers.playing import play

        return await play(parcel)


class RayWorker:
    """The executor's handle for an actor. Implements ``Worker``."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._why = ""
        self.pid: int | None = None
        self.lost: WorkerLost | None = None

    async def ready(self) -> None:
        """Wait until the actor's event loop responds or the actor has died."""
        with suppress(WorkerLost):
            self.pid = await self._answer(self._actor.ready.remote())

    async def play(self, parcel: bytes) -> bytes:
        """Play a group and return its packed ``GroupOutcome``. Can be cancelled."""
        reference = self._actor.play.remote(parcel)
        try:
            data: bytes = await self._answer(reference)
        except BaseException:
            _ray().cancel(reference)
            raise
        return data

    async def wait_gone(self) -> None:
        """Wait until the actor has died."""
        with suppress(WorkerLost):
            await self._answer(self._actor.wait.remote())

    async def end(self, why: str = "") -> None:
        """Kill the actor. Errors will state ``why``, if given, or the reason reported by Ray."""
        if why:
            self._why = f"process {self.pid} was killed because it {why}"
        _ray().kill(self._actor)

    async def _answer(self, reference: Any) -> Any:
        """Wait for the result of a call. Raise ``WorkerLost`` if the actor died."""
        try:
            return await reference
        except _ray().exceptions.RayError as error:
            reason = self._why or f"{type(error).__name__}: {_first_lines(error)}"
            self.lost = WorkerLost(reason)
            raise self.lost from error


def _near(nodes: Sequence[str], host: str) -> str:
    """Return the address that workers on these nodes can use to reach this machine."""
    return "127.0.0.1" if list(nodes) == [host] else host


def _first_lines(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line)[:300]
