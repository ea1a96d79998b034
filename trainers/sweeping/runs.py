"""The runs of a sweep as processes: starting one, seeing how it ends, and how many fit.

A run is ``train.main`` in a process of its own: a crash, or the kernel killing what takes too
much memory, ends that run and nothing else. On Linux the processes are forked from one that has
imported everything already (``multiprocessing``'s fork server): importing takes longer than a
short run. It has touched no model and no GPU. Elsewhere each process starts afresh.

``Room`` decides whether another run fits: the first one shows what a run takes.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import psutil

from evert.trainers import train
from evert.trainers.runs import folder as run_folder
from evert.trainers.runs.folder import RunFolder
from evert.trainers.sweeping.record import Attempt, Try

PRELOADED = (
    "tinker_cookbook.rl.train",
    "transformers.models.qwen3.modeling_qwen3",
    "peft",
    "matplotlib.backends.backend_agg",
    "matplotlib.figure",
    "evert.bridge.dataset",
    "evert.trainers.engine.clients",
    "evert.trainers.train",
)
"""What every run imports sooner or later."""

ERROR_LINES = 6
STOP_SECONDS = 60.0
"""How long a run may take to save itself after Ctrl-C."""
SPARE = 1.25
"""A run is given this much more memory than the largest took so far."""


class Running:
    """A run under way.

    Args:
        tried: What is tried.
        folder: The run's folder.
        output: Where what it prints is appended.
        arguments: Of ``evert train``, without ``log_path``.
        group: Name of the sweep, for W&B to group its runs by.
    """

    def __init__(
        self, tried: Try, folder: Path, output: Path, arguments: Sequence[str], group: str
    ) -> None:
        self.tried = tried
        self.folder = RunFolder(folder, resumed=True)
        self.peak = 0
        """Most bytes of memory it was seen to take."""
        self._output = output
        self._before = output.stat().st_size if output.exists() else 0
        self._began = time.monotonic()
        environment = {"WANDB_RUN_GROUP": group, **os.environ}
        target = (str(Path.cwd()), environment, str(output), [*arguments, f"log_path={folder}"])
        self._process = _context().Process(target=run_training, args=target)
        self._process.start()

    @property
    def sentinel(self) -> int:
        """Becomes ready when the process ends; for ``multiprocessing.connection.wait``."""
        return int(self._process.sentinel)

    @property
    def over(self) -> bool:
        """Whether the process has ended."""
        return self._process.exitcode is not None

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self._began

    @property
    def memory(self) -> int:
        """Bytes of memory it takes now, its children included; 0 once it is over."""
        now = _memory(self._process.pid or 0)
        self.peak = max(self.peak, now)
        return now

    def interrupt(self) -> None:
        """What Ctrl-C does: it saves itself and ends."""
        self._send(signal.SIGINT)

    def kill(self) -> None:
        """End it at once; it can still be resumed from its last checkpoint."""
        self._process.kill()

    def wait(self, seconds: float) -> bool:
        """Wait for its end; whether it came."""
        self._process.join(max(0.0, seconds))
        return self.over

    def outcome(self) -> Attempt:
        """How it ended."""
        code = self._process.exitcode
        if code == 0:
            return Attempt("completed", self.seconds)
        if code == train.INTERRUPTED:
            return Attempt("interrupted", self.seconds, "interrupted")
        if code is not None and code < 0:
            return Attempt("failed", self.seconds, f"killed by {_signal_name(-code)}")
        return Attempt("failed", self.seconds, self._last_lines() or f"exit status {code}")

    def _last_lines(self) -> str:
        with self._output.open("rb") as output:
            output.seek(self._before)
            lines = output.read().decode("utf-8", errors="replace").splitlines()
        said = [line.rstrip() for line in lines if line.strip()]
        errors = [number for number, line in enumerate(said) if line.startswith("error: ")]
        return "\n".join(said[errors[-1] :][:ERROR_LINES] if errors else said[-ERROR_LINES:])

    def _send(self, number: int) -> None:
        if self._process.pid is not None and not self.over:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, number)


def _signal_name(number: int) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
    return f"{name} (out of memory?)" if name == "SIGKILL" else name


def _memory(pid: int) -> int:
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for member in family:
        with suppress(psutil.Error):
            # What ending it would free; pages shared with the fork server are not its own.
            total += member.memory_full_info().uss
    return total


def _context() -> Any:
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def run_training(cwd: str, environment: dict[str, str], output: str, arguments: list[str]) -> None:
    """The life of a run's process: ``evert train`` with its output in a file.

    Args:
        cwd: Where to run, as the fork server may be elsewhere.
        environment: All of it, likewise.
        output: File to append to.
        arguments: Of ``evert train``.
    """
    # A group of its own: Ctrl-C at the terminal is the sweep's to pass on, once. It may have been
    # started with the signal ignored, as shells do in the background.
    os.setsid()
    # An agent that starts processes gets what it would get in a process of its own.
    multiprocessing.set_start_method(None, force=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    with open(output, "ab") as file:
        _print_to(file)
    threading.Thread(target=_interrupt_when_orphaned, daemon=True).start()
    sys.exit(train.main(arguments, program=("evert", "train")))


def _print_to(file: BinaryIO) -> None:
    for number in (1, 2):
        os.dup2(file.fileno(), number)


def _interrupt_when_orphaned() -> None:
    """A sweep that was killed could not stop its runs: they do it themselves."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGINT)


class Room:
    """How many runs there is room for on this machine.

    Args:
        limit: Runs at a time; None to find out: one until a run has taken a step, then as many as
            there are cores for, while each fits into the free memory. One on a GPU.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._measured: int | None = None
        self._peak = 0

    def look(self, running: Sequence[Running]) -> None:
        """See what the runs take, if that matters."""
        for run in running if self._limit is None else ():
            taken = run.memory
            if run.folder.steps_done() or run.over:
                self._peak = max(self._peak, taken, run.peak)
                self._measured = self._measured or _by_cores(run.folder)

    def for_another(self, running: Sequence[Running]) -> bool:
        """Whether there is room for one more beside these."""
        if not running:
            return True
        if self._limit is not None:
            return len(running) < self._limit
        if self._measured is None or len(running) >= self._measured:
            return False
        growing = sum(max(0, self._peak - run.memory) for run in running)
        return free_memory() - growing > SPARE * self._peak


def _by_cores(folder: RunFolder) -> int | None:
    """Runs that the cores are enough for, going by what one says it runs on; None if it is mute."""
    engine = (folder.read_json(run_folder.RUN) or {}).get("engine")
    if engine is None:
        return None
    if str(engine.get("device", "cpu")) != "cpu":
        return 1
    return max(1, int(run_folder.machine()["cpus"] or 1) // int(engine.get("threads", 1)))


def free_memory() -> int:
    """Bytes that can be taken without swapping, or without the container's limit being hit."""
    free = int(psutil.virtual_memory().available)
    cgroup = Path("/sys/fs/cgroup")
    with suppress(OSError, ValueError):  # no container, or no limit ("max")
        limit = int((cgroup / "memory.max").read_text())
        stat = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        used = int((cgroup / "memory.current").read_text()) - int(stat.get("inactive_file", 0))
        free = min(free, limit - used)
    return free
