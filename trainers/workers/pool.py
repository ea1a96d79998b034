"""``PoolRollouts``: uses processes on this machine as workers.

Each worker is a fresh interpreter (it is not forked, and doesn't import ``__main__`` again) in a
new session, so that Ctrl-C only reaches the trainer. The trainer and the worker communicate over
the worker's stdin and stdout. When the trainer exits, the worker's stdin is closed, and the worker
exits. If a dead worker has forked other processes, these may keep the streams open, so the executor
also watches the process itself.
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
"""Startup timeout in seconds. It is long because many workers may import large modules at once."""
REST_SECONDS = 2.0
"""Maximum number of seconds between the streams closing and the process exiting."""
SPARE_SECONDS = 5.0
"""Seconds that a worker may take to exit, in addition to ``END_SECONDS`` for its groups."""


class PoolRollouts(WorkerExecutor):
    """An executor for the Cookbook's ``rollout_executor`` that plays groups in local processes.

        with PoolRollouts(workers=4) as rollouts:
            asyncio.run(rl.train.main(config, rollout_executor=rollouts))

    Args:
        workers: Number of processes (default: one per core available to this process).
        groups_per_worker: Maximum number of groups that a worker plays concurrently.
        worker_timeout: If a worker's event loop doesn't respond for this many seconds, the worker
            is killed (None: never). Synchronous agents run in threads and don't block the event
            loop. It can be blocked by computation in async agents, or by C code that holds the GIL.

    Attributes:
        lost_groups: How many times a group has been lost so far because its worker died.

    Raises:
        ValueError: A number is less than 1, or a timeout is not greater than 0.
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
    """A process that plays groups (``process.py``), as an asyncio protocol for its streams."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(limit=2**22, loop=loop)
        self.lost: WorkerLost | None = None
        self._exited: asyncio.Future[None] = loop.create_future()
        self._numbers = itertools.count(READY + 1)
        self._answers: dict[int, asyncio.Future[bytes]] = {}
        self._why = ""

    def connection_made(self, transport: Any) -> None:
        """Called when the process has started."""
        super().connection_made(transport)
        self.pid, self._process = transport.get_pid(), transport
        self._attending = asyncio.create_task(self._attend())

    def process_exited(self) -> None:
        """Called when the process has exited. Its forks may still have the streams open."""
        super().process_exited()
        self._exited.set_result(None)

    async def play(self, parcel: bytes) -> bytes:
        """Play a group and return its packed ``GroupOutcome``. Can be cancelled."""
        number = next(self._numbers)
        try:
            data = await self._reply_to(number, parcel)
        except asyncio.CancelledError:
            self._send(number, b"")
            raise
        if not data:
            await self.end("abandoned a group that was not cancelled")
            raise self.lost or WorkerLost()
        return data

    async def ready(self) -> None:
        """Wait until the worker's event loop responds or the worker has died."""
        with suppress(WorkerLost):
            await self._reply_to(READY, b"")

    async def wait_gone(self) -> None:
        """Wait until the worker has died or closed its pipe."""
        await asyncio.wait([self._attending])

    async def end(self, why: str = "", number: signal.Signals = signal.SIGABRT) -> None:
        """Make the process cancel its groups and exit, then kill it and its forks.

        If a reason is given, the process gets the signal ``number`` at once, with no time to clean
        up, and errors state the reason. On SIGABRT, the process dumps its threads' stacks.
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
        """Deliver results until the process exits. Groups that are unfinished by then are lost."""
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
            return f"was killed because it {self._why}"
        code = self._process.get_returncode()
        if code >= 0:
            return f"exited with status {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}" + " (out of memory?)" * (name == "SIGKILL")
