"""``PoolRollouts``: workers are processes on this machine.

Each is a fresh interpreter (nothing is forked, and ``__main__`` is not imported again) in a new
session, so that Ctrl-C reaches only the trainer. Trainer and worker communicate over the worker's
standard streams: when the trainer ends, the worker's input ends, and the worker exits. Processes
that a dead worker has forked may keep the streams open, so the executor also watches the process.
"""

import asyncio
import itertools
import os
import signal
import sys
from asyncio.subprocess import PIPE, SubprocessStreamProtocol
from contextlib import suppress
from typing import Any

from evert.bridge.errors import NEEDS_UNIX

if sys.platform == "win32":
    raise ImportError(f"PoolRollouts {NEEDS_UNIX}")

from evert.trainers.workers.executor import WorkerExecutor
from evert.trainers.workers.process import BOOT, END_SECONDS, HEAD, READY, frame
from evert.trainers.workers.supervision import Worker, WorkerLost, answers

START_SECONDS = 300.0
"""Seconds that a worker may take to be ready: many may import heavy modules at once."""
REST_SECONDS = 2.0
"""Seconds that the streams and the process may outlive each other."""
SPARE_SECONDS = 5.0
"""Seconds that a worker may take to end, beyond ``END_SECONDS`` for its groups."""


class PoolRollouts(WorkerExecutor):
    """An executor for the Cookbook's ``rollout_executor`` that plays groups in local processes.

        with PoolRollouts(workers=4) as rollouts:
            asyncio.run(rl.train.main(config, rollout_executor=rollouts))

    Args:
        workers: Number of processes; None: one per core that this process may use.
        groups_per_worker: Maximum groups that a worker plays concurrently, on its event loop.
        worker_timeout: Seconds within which a worker's event loop has to answer, or the worker is
            killed. Blocking agents run in threads, and do not block the loop; async agents that
            compute block it, and so does C code that keeps the GIL. None: no limit.

    Attributes:
        lost_groups: Losses of groups so far: a worker that dies loses each group that it plays.

    Raises:
        ValueError: A number is below 1, or a time is not above 0.
    """

    kind = "processes on this machine"

    async def start_worker(self) -> Worker:
        """Start a process.

        Raises:
            WorkerLost: The process died before it was ready, or was not ready in time.
        """
        path = [os.path.join(os.getcwd(), folder) for folder in sys.path]
        command = sys.executable, "-P", "-c", BOOT, repr(path)
        start = asyncio.get_running_loop().subprocess_exec
        _, worker = await start(
            PoolWorker, *command, stdin=PIPE, stdout=PIPE, stderr=None, start_new_session=True
        )
        try:
            if not await answers(worker, START_SECONDS):
                await worker.end(f"was not ready after {START_SECONDS:g} s")
            if worker.lost is not None:
                raise worker.lost
        except BaseException:
            await worker.end("was no longer needed", signal.SIGTERM)
            raise
        return worker


class PoolWorker(SubprocessStreamProtocol):
    """A process that plays groups (``process.py``); asyncio's protocol for its streams."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(limit=2**22, loop=loop)
        self.lost: WorkerLost | None = None
        self._exited: asyncio.Future[None] = loop.create_future()
        self._numbers = itertools.count(READY + 1)
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._why = ""

    def connection_made(self, transport: Any) -> None:
        """Note that the process has started."""
        super().connection_made(transport)
        self.pid, self._process = transport.get_pid(), transport
        self._attending = asyncio.create_task(self._attend())

    def process_exited(self) -> None:
        """Note that the process has ended; other processes may still have its streams open."""
        super().process_exited()
        self._exited.set_result(None)

    async def play(self, parcel: bytes) -> bytes:
        """Play a group; return its packed ``GroupOutcome``. Cancelling this cancels the group."""
        number = next(self._numbers)
        try:
            data = await self._reply_to(number, parcel)
        except asyncio.CancelledError:
            self._send(number, b"")
            raise
        if not data:
            await self.end("gave up a group that it had to play")
            raise self.lost or WorkerLost()
        return data

    async def ready(self) -> None:
        """Wait until the worker's event loop answers, or the worker has died."""
        with suppress(WorkerLost):
            await self._reply_to(READY, b"")

    async def wait_gone(self) -> None:
        """Wait until the worker has died, or has closed its pipe."""
        await asyncio.wait([self._attending])

    async def end(self, why: str = "", number: signal.Signals = signal.SIGABRT) -> None:
        """Make the process cancel its groups and exit; then kill it and its forks.

        If a reason is given, the process gets the signal ``number`` and no time to clean up, and
        errors name the reason; on SIGABRT the process writes its threads' stacks.
        """
        self._why = why or self._why
        patience = REST_SECONDS if self._why else END_SECONDS + SPARE_SECONDS
        stdin: Any = self.stdin
        stdin.close()
        with suppress(ProcessLookupError):
            if self._why:
                self._process.send_signal(number)
        try:
            await asyncio.wait([self._exited], timeout=patience)
        finally:  # even if this call is cancelled
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)  # the process and its forks
            await asyncio.wait([self._exited, self._attending], timeout=SPARE_SECONDS)
            self._process.close()

    async def _attend(self) -> None:
        """Deliver results until the process ends; its unfinished groups are then lost."""
        reading = asyncio.create_task(self._read())
        await asyncio.wait([reading, self._exited], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([reading, self._exited], timeout=REST_SECONDS)
        reading.cancel()
        if not self._exited.done():
            self._why = self._why or "closed its pipe"
        self.lost = WorkerLost(f"process {self.pid} {self._ending()}")
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self.lost)

    async def _read(self) -> None:
        stdout: Any = self.stdout
        with suppress(OSError, EOFError):
            while True:
                number, size = HEAD.unpack(await stdout.readexactly(HEAD.size))
                data = await stdout.readexactly(size)
                if (answer := self._answers.get(number)) is not None and not answer.done():
                    answer.set_result(data)

    async def _reply_to(self, number: int, data: bytes) -> bytes:
        if self.lost is not None:
            raise self.lost
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        try:
            self._send(number, data)
            return await answer
        finally:
            del self._answers[number]

    def _send(self, number: int, data: bytes) -> None:
        stdin: Any = self.stdin
        if not stdin.is_closing():
            stdin.write(frame(number, data))

    def _ending(self) -> str:
        if self._why:
            return f"was killed, since it {self._why}"
        code = self._process.get_returncode()
        if code >= 0:
            return f"ended with exit status {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}" + " (out of memory?)" * (name == "SIGKILL")
