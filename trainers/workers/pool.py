"""``PoolRollouts``: workers are processes of this machine.

Each is a fresh interpreter (nothing is forked, and ``__main__`` is not imported again), in a
session of its own: Ctrl-C is the trainer's. They talk over the process's standard streams, so that
one whose trainer is gone, however it went, reads the end and ends itself.
"""

import asyncio
import itertools
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import suppress
from typing import Any

from evert.trainers.engine.machine import cores
from evert.trainers.workers.crew import Worker, WorkerLost
from evert.trainers.workers.executor import WorkerExecutor
from evert.trainers.workers.process import BOOT, END_SECONDS, HEAD, frame, read_head

SPARE_SECONDS = 5.0
"""How long an ending worker may take beyond what its groups may."""


class PoolRollouts(WorkerExecutor):
    """An executor for the Cookbook's ``rollout_executor``: groups play in processes beside this.

        with PoolRollouts(workers=4) as rollouts:
            asyncio.run(rl.train.main(config, rollout_executor=rollouts))

    Args:
        workers: Number of processes; None: one a core that this process may use.
        groups_per_worker: Most groups that one plays at a time, on its event loop.

    Attributes:
        lost_groups: How often a group was lost with its worker so far.

    Raises:
        ValueError: A number below 1.
    """

    kind = "processes of this machine"

    def __init__(self, workers: int | None = None, groups_per_worker: int = 16) -> None:
        super().__init__(cores() if workers is None else workers, groups_per_worker)

    async def start_worker(self) -> Worker:
        """Start a process.

        Raises:
            WorkerLost: It died before it was ready.
        """
        path = [os.path.join(os.getcwd(), folder) for folder in sys.path]
        command = sys.executable, "-c", BOOT, repr(path)
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, limit=2**22, start_new_session=True
        )
        worker = PoolWorker(process)
        try:
            await worker.greet()
        except BaseException:
            with suppress(ProcessLookupError):
                process.kill()
            raise
        return worker


class PoolWorker:
    """A process that plays groups (``process.py``)."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._reading: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        """The process's id."""
        return self._process.pid

    async def greet(self) -> None:
        """Wait until the process is ready.

        Raises:
            WorkerLost: It died before.
        """
        try:
            await self._receive()  # READY
        except (OSError, EOFError):
            raise WorkerLost(await self._ending()) from None
        self._reading = asyncio.create_task(self._read())

    async def play(self, parcel: bytes) -> bytes:
        """What came of a group; cancelled, the group is given up.

        Raises:
            WorkerLost: The process died.
        """
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        if self._reading is None or self._reading.done():
            raise WorkerLost(await self._ending())
        try:
            self._send(number, parcel)
            data: bytes = await answer
            return data
        except asyncio.CancelledError:
            self._send(number, b"")
            raise
        except EOFError:
            raise WorkerLost(await self._ending()) from None
        finally:
            self._answers.pop(number, None)

    async def gone(self) -> None:
        """Wait until it has died."""
        if self._reading is not None:
            await asyncio.wait([self._reading])

    async def end(self) -> None:
        """Have the process give up its groups and end; one that does not is killed."""
        stdin: Any = self._process.stdin
        stdin.close()
        try:
            async with asyncio.timeout(END_SECONDS + SPARE_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        finally:
            if self._reading is not None:
                self._reading.cancel()

    async def _read(self) -> None:
        """Hand out what comes back, until the process is gone."""
        try:
            while True:
                number, data = await self._receive()
                if (answer := self._answers.get(number)) is not None and not answer.done():
                    answer.set_result(data)
        except (OSError, EOFError):
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(EOFError())

    def _send(self, number: int, data: bytes) -> None:
        stdin: Any = self._process.stdin
        if not stdin.is_closing():
            stdin.write(frame(number, data))

    async def _receive(self) -> tuple[int, bytes]:
        """What the process says next.

        Raises:
            EOFError: It says no more.
        """
        stdout: Any = self._process.stdout
        number, size = read_head(await stdout.readexactly(HEAD))
        return number, await stdout.readexactly(size)

    async def _ending(self) -> str:
        """How the process ended, in words."""
        code = await self._process.wait()
        if code >= 0:
            return f"exit status {code}"
        name = signal.Signals(-code).name
        return f"killed by {name}" + " (out of memory?)" * (name == "SIGKILL")
