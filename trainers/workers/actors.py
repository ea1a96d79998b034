"""``RayRollouts``: workers are Ray's actors, on this machine or on a cluster.

Each is an actor with one event loop, on which its groups play side by side. Ray restarts and
retries nothing: a dead actor's groups come back to the executor, which counts them, and another
actor takes its place.
"""

import asyncio
import importlib
import logging
import os
import sys
from typing import Any

from evert.bridge.errors import MissingPackageError
from evert.trainers.engine.machine import cores
from evert.trainers.workers.crew import Worker, WorkerLost
from evert.trainers.workers.executor import WorkerExecutor

logger = logging.getLogger(__name__)

PATIENCE = 60.0
"""Seconds for which nothing is said of an actor that is not there yet."""
NO_ROOM = (
    "A worker waits for room on the Ray cluster (`ray status` says what is free). Ask for fewer "
    "workers, or for less for each (num_cpus=); those that have started play meanwhile."
)
OWN = "local"
"""The address of a Ray of one's own on this machine."""


class RayRollouts(WorkerExecutor):
    """An executor for the Cookbook's ``rollout_executor``: groups play in Ray's actors.

        with RayRollouts(workers=64, groups_per_worker=8, address="auto") as rollouts:
            asyncio.run(rl.train.main(config, rollout_executor=rollouts))

    Where Ray is in use in this process already, it is used as it is; else it is started, and shut
    down with the executor.

    Args:
        workers: Number of actors; None: one a core that this process may use.
        groups_per_worker: Most groups that one plays at a time, on its event loop.
        address: Of a cluster: "auto", "HOST:6379" or "ray://HOST:10001"; None: RAY_ADDRESS, or a
            Ray of its own on this machine.
        host: Address of this machine at which workers sample from its engine; None: loopback where
            all nodes are this machine, else the one by which Ray knows it.
        **options: Of each actor: ``num_cpus`` (1), ``resources``, ``runtime_env``, ...

    Attributes:
        lost_groups: How often a group was lost with its worker so far.

    Raises:
        ValueError: A number below 1.
        ConnectionError: There is no cluster at the address.
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
        **options: Any,
    ) -> None:
        number = cores() if workers is None else workers
        ray = _ray()
        self._starts_ray = not ray.is_initialized()
        if self._starts_ray:
            _start_ray(ray, address or os.environ.get("RAY_ADDRESS") or OWN, max(number, cores()))
        nodes = [node for node in ray.nodes() if node["Alive"]]
        near = "127.0.0.1" if len(nodes) == 1 else ray.util.get_node_ip_address()
        # Beside the groups there is ``wait``, which never ends.
        options = {"num_cpus": 1, **options, "max_concurrency": groups_per_worker + 1}
        self._actor = ray.remote(Actor).options(**options)
        super().__init__(number, groups_per_worker, host or near)

    async def start_worker(self) -> Worker:
        """Start an actor; where the cluster has no room for one, wait until it has.

        Raises:
            WorkerLost: It died before it was ready.
        """
        worker = RayWorker(self._actor.remote(sys.path))
        loop = asyncio.get_running_loop()
        waiting = loop.call_later(PATIENCE, logger.warning, "%s", NO_ROOM)
        try:
            await worker.ready()
        except BaseException:
            await worker.end()
            raise
        finally:
            waiting.cancel()
        return worker

    def _release(self) -> None:
        if self._starts_ray:
            _ray().shutdown()


def _ray() -> Any:
    """The package.

    Raises:
        MissingPackageError: It is not installed.
    """
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        raise MissingPackageError(
            "RayRollouts needs the package ray, which is not installed. Install it with "
            "pip install 'evert[ray]'; evert.PoolRollouts plays in processes of this machine."
        ) from error


def _start_ray(ray: Any, address: str, cpus: int) -> None:
    """Use a cluster, or start a Ray with as many CPUs as there are to be workers."""
    own = {"num_cpus": cpus, "include_dashboard": False} if address == OWN else {}
    ray.init(address, log_to_driver=False, logging_level="ERROR", **own)


class Actor:
    """What runs in an actor's process.

    Args:
        path: The trainer's ``sys.path``: where it has been looked for modules, too.
    """

    def __init__(self, path: list[str]) -> None:
        from evert.trainers.workers.playing import become_worker

        sys.path += [folder for folder in path if folder not in sys.path]
        become_worker()

    async def ready(self) -> int:
        """The process's id."""
        return os.getpid()

    async def wait(self) -> None:
        """Never ends; whoever awaits it learns when the process does."""
        await asyncio.Event().wait()

    async def play(self, parcel: bytes) -> bytes:
        """What came of a group."""
        from evert.trainers.workers.playing import play

        return await play(parcel)


class RayWorker:
    """An actor that plays groups.

    Attributes:
        pid: Its process's id, on its own machine; None: it is not ready.
    """

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.pid: int | None = None

    async def ready(self) -> None:
        """Wait until it is there.

        Raises:
            WorkerLost: It died before.
        """
        self.pid = await _answer(self._actor.ready.remote())

    async def play(self, parcel: bytes) -> bytes:
        """What came of a group; cancelled, the group is given up.

        Raises:
            WorkerLost: The actor died.
        """
        reference = self._actor.play.remote(parcel)
        try:
            data: bytes = await _answer(reference)
        except BaseException:
            _ray().cancel(reference)
            raise
        return data

    async def gone(self) -> None:
        """Wait until it has died."""
        try:
            await _answer(self._actor.wait.remote())
        except WorkerLost:
            return

    async def end(self) -> None:
        """Kill it."""
        _ray().kill(self._actor)


async def _answer(reference: Any) -> Any:
    """What a call of an actor returns.

    Raises:
        WorkerLost: The actor died.
    """
    try:
        return await reference
    except _ray().exceptions.RayError as error:
        raise WorkerLost(f"{type(error).__name__}: {_first_lines(error)}") from error


def _first_lines(error: Exception) -> str:
    """What Ray says of an error, without its advice."""
    lines = [line.strip() for line in str(error).splitlines()]
    return " ".join(line for line in lines if line)[:300]
