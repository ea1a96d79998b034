"""Runs the commands of one episode, and stops all processes that they started.

A ``Workplace`` is where an episode's commands run: it has the commands' folders, their environment
variables, and the values of ``{task}`` and the other placeholders. ``Workplace.run`` runs a command
until it exits, and returns a ``ProcessResult``. Outputs are written to unnamed temporary files, and
only the end of each file is read, so outputs can be arbitrarily long. A command may leave any kind
of file behind, so ``read_left`` only reads regular files up to a size limit, and does not follow
links.
"""

import asyncio
import errno
import json
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import IO, Any, TypeAlias

import psutil

from evert.agents import supervisor
from evert.agents.laying import lay
from evert.agents.sandbox import Sandbox
from evert.bridge.episode.agent import NO_TASK
from evert.bridge.errors import CommandError, InvalidAgentError
from evert.bridge.redaction import LONGEST_KEY, redacted_end

logger = logging.getLogger(__name__)

SUPERVISOR = [sys.executable, "-I", "-S", supervisor.__file__]

PATIENCE = 30
"""Seconds to wait for a command's processes to exit after they are killed."""

SHOWN_OUTPUT = 2000
"""Number of bytes from the end of each output to show in error messages."""

LOGGED_OUTPUT = 4000
"""Number of characters from the end of each output to include in the transition's logs."""

MARK = "EVERT_EPISODE"
"""The environment variable that marks an episode's processes."""

IN_HOME, IN_JUDGE = "{home}/", "{judge}/"
"""File name prefixes for files in the episode's home and in the judge's folder."""

LONGEST_VARIABLE = 100_000
"""Maximum size of an environment variable in bytes. Above a (higher) system limit, programs cannot
start."""

PLACEHOLDER = re.compile(
    r"\{(task|model|base_url|root_url|api_key|folder|home|env)(\[[^][{}]*\])?\}"
)


@dataclass(frozen=True)
class ProcessResult:
    """A command's result.

    Attributes:
        status: Exit status. If the command was killed by signal N, this is -N (128 + N in a
            sandbox).
        stdout: Standard output (at most the last megabyte).
        stderr: Standard error (at most the last megabyte).
        folder: The folder in which the command ran. Its files still exist; read them with ``read``.
    """

    status: int
    stdout: str
    stderr: str
    folder: Path

    def read(self, name: str) -> str | None:
        """Return the text of a file in ``folder``.

        Returns None if the file is missing, larger than a megabyte, a link or not a regular file.
        """
        try:
            return read_left(self.folder, name).decode(errors="replace")
        except (OSError, ValueError):
            return None


@dataclass(slots=True)
class Workplace:
    """Where an episode's commands run."""

    scratch: Sequence[Path]
    """Folders for the supervisor to remove if the trainer dies."""
    folder: Path
    rooms: Mapping[str, Path]
    """The folder for each file name prefix. Files with other prefixes are skipped."""
    task: Any
    values: Mapping[str, str]
    env: dict[str, str] = field(default_factory=dict)
    sandbox: Sandbox | None = None
    install: str = ""
    last_words: str = ""

    def fill(self, text: str, variables: Mapping[str, str] | None = None) -> str:
        """Fill in the placeholders in a text (``{env[NAME]}`` only if ``variables`` are given)."""
        return PLACEHOLDER.sub(lambda match: self._value(match, variables), text)

    def _value(self, match: re.Match[str], variables: Mapping[str, str] | None) -> str:
        name, part = match[1], match[2]
        if name == "env":
            if variables is None or part is None:
                return match[0]
            return _variable(part[1:-1], variables)
        if name != "task":
            return self.values[name] + (part or "")
        if part is None:
            return task_text(self.task)
        key = part[1:-1]
        try:
            return task_text(self.task[key if isinstance(self.task, Mapping) else int(key)])
        except (LookupError, TypeError, ValueError):
            raise InvalidAgentError(
                f"The command uses {match[0]}, but the task {self.task!r:.200} has no such part. "
                "Expected a task with that key or index."
            ) from None

    def lay(self, files: Mapping[str, str | bytes | Path]) -> None:
        """Write files to the folders in ``rooms``. A ``Path`` (file or folder) is copied."""
        for name, content in files.items():
            room, inner = room_of(name)
            if room not in self.rooms:
                continue
            data = self.fill(content).encode() if isinstance(content, str) else content
            try:
                lay(self.rooms[room], PurePath(inner), data)
            except (NotADirectoryError, IsADirectoryError) as error:
                raise CommandError(
                    f"The file {name!r} cannot be written to {self.rooms[room]}: {error}. evert "
                    "does not follow links because they may have been left by a command in an "
                    "earlier episode. Remove the conflicting file or link, or leave out cwd=... to "
                    "get a new folder for each episode."
                ) from error

    async def run(
        self, command: Sequence[str], role: str, sandbox: Sandbox | None = None
    ) -> ProcessResult:
        """Run a command and stop all processes that it started. ``role`` is used in messages."""
        filled = [self.fill(argument) for argument in command]
        if sandbox is not None:
            self._check_program(filled[0])
        with ExitStack() as stack:
            out, err = [stack.enter_context(tempfile.TemporaryFile()) for _ in range(2)]
            argv, descriptors = filled, list[int]()
            if sandbox is not None:
                argv, descriptors = stack.enter_context(sandbox.command(filled))
            process, report = self._start_supervisor(argv, descriptors, filled[0], out, err), b""
            try:
                report = await _next_report(process)
            finally:
                try:
                    await _end(process, self.env[MARK])
                finally:
                    ends = _output_ends(err, out)
                    self.last_words = f"The {role} {filled[0]!r} wrote last: {ends}"
            killed = (b"ended", -signal.SIGKILL)  # a supervisor that was killed reports nothing
            word, number = report.split() or killed
            if word == b"failed":
                self.last_words = ""
                why = OSError(int(number), os.strerror(int(number)))
                raise CommandError(self._start_failure(filled[0], why))
            stdout, stderr = [await asyncio.to_thread(end_of, file) for file in (out, err)]
        return ProcessResult(int(number), stdout, stderr, self.folder)

    def _check_program(self, program: str) -> None:
        """Raise if the program does not exist. In a sandbox, the supervisor cannot detect this."""
        path = os.path.join(self.folder, program) if "/" in program else program
        executable = shutil.which(path, os.F_OK, self.env.get("PATH", os.defpath))
        if executable is None or not os.access(executable, os.X_OK):
            number = errno.ENOENT if executable is None else errno.EACCES
            why = OSError(number, os.strerror(number))
            raise CommandError(self._start_failure(program, why))

    def _start_supervisor(
        self,
        command: list[str],
        descriptors: list[int],
        program: str,
        out: IO[bytes],
        err: IO[bytes],
    ) -> "Process":
        """Start a supervisor, which stops all processes when it reads a byte or EOF from stdin."""
        outputs = [out.fileno(), err.fileno()]
        options = [*outputs, "LC_CTYPE" in self.env, len(self.scratch), *self.scratch]
        try:
            return subprocess.Popen(
                [*SUPERVISOR, *map(str, options), *command],
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=err,
                pass_fds=[*outputs, *descriptors],
                start_new_session=True,
            )
        except (OSError, ValueError) as error:  # ValueError: a null character in an argument
            raise CommandError(self._start_failure(program, error)) from error

    def _start_failure(self, program: str, error: OSError | ValueError) -> str:
        too_long = isinstance(error, OSError) and error.errno == errno.E2BIG
        if too_long or isinstance(error, ValueError):
            why = "are too long" if too_long else f"are invalid: {error}"
            return (
                f"The program {program!r} could not be started because its arguments {why}. Read "
                "the task from the file in EVERT_TASK_FILE, or write a file in a setup function."
            )
        if not isinstance(error, FileNotFoundError):
            return f"The program {program!r} could not be started: {error}"
        how = self.install or "install it in a folder on the PATH, or pass its full path"
        return (
            f"The program {program!r} was not found, or its first line refers to a missing "
            f"interpreter. To fix this: {how}. The episode's folder only contains what files=... "
            "and setup=... created."
        )


def _variable(name: str, variables: Mapping[str, str]) -> str:
    try:
        return variables[name]
    except KeyError:
        raise InvalidAgentError(
            f"env=... uses {{env[{name}]}}, but the environment variable {name} is not set. Set it "
            "before you start the trainer, or remove it from env."
        ) from None


def room_of(name: str) -> tuple[str, str]:
    """Split a file name into its prefix and the path inside the corresponding folder."""
    room = next(room for room in (IN_HOME, IN_JUDGE, "") if name.startswith(room))
    return room, name.removeprefix(room)


def task_text(task: object) -> str:
    """Convert a task to text for a command. Strings are unchanged, anything else becomes JSON."""
    return "" if task is NO_TASK else task if isinstance(task, str) else json.dumps(task)


def end_of(file: IO[bytes], size: int = supervisor.KEPT_OUTPUT) -> str:
    """Return the last ``size`` bytes of a command's output as text."""
    start = max(0, os.fstat(file.fileno()).st_size - size)
    return os.pread(file.fileno(), size, start).decode(errors="replace")


def _output_ends(stderr: IO[bytes], stdout: IO[bytes]) -> str:
    files = {"stderr": stderr, "stdout": stdout}
    texts = {name: end_of(file, SHOWN_OUTPUT + LONGEST_KEY) for name, file in files.items()}
    ends = {name: redacted_end(text, SHOWN_OUTPUT).strip() for name, text in texts.items()}
    return "; ".join(f"{name} {end!r}" for name, end in ends.items() if end) or "nothing"


def read_left(folder: Path, name: str, limit: int = 2**20) -> bytes:
    """Read a regular file of at most ``limit`` bytes that a command left in the folder.

    Raises:
        ValueError: The file is too large, not a regular file, or reached through a link or "..".
        OSError: The file is missing or cannot be read.
    """
    path = folder / name
    if os.path.realpath(path) != str(path) or not path.is_relative_to(folder):
        raise ValueError("its path contains a link or leaves the folder")
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("it is not a regular file")
        content = os.pread(file, limit + 1, 0)
    finally:
        os.close(file)
    if len(content) > limit:
        raise ValueError(f"it is larger than {limit} bytes")
    return content


@asynccontextmanager
async def new_folder() -> AsyncIterator[Path]:
    """Create a temporary folder and remove it at the end. A failed removal is only logged."""
    real = os.path.realpath(tempfile.gettempdir())  # noqa: ASYNC240
    folder = tempfile.mkdtemp(prefix="evert-", dir=real)
    try:
        yield Path(folder)
    finally:
        if why := await asyncio.to_thread(supervisor.remove, folder):
            logger.warning("Could not remove the episode folder %s: %s.", folder, why)


# -- processes -------------------------------------------------------------------------------------

Process: TypeAlias = "subprocess.Popen[bytes]"


async def _next_report(process: Process) -> bytes:
    """Wait for the next report from a supervisor. Returns b"" if the supervisor has exited."""
    assert process.stdout is not None
    loop, reports, ready = asyncio.get_running_loop(), process.stdout.fileno(), asyncio.Event()
    loop.add_reader(reports, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(reports)
    return os.read(reports, 64)


async def _end(process: Process, mark: str) -> None:
    """Stop a supervisor and its processes. If this raises, some processes may still be running."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # the supervisor has exited
        os.write(process.stdin.fileno(), b"\n")
    process.stdin.close()
    try:
        for _ in range(PATIENCE):
            process.send_signal(signal.SIGCONT)  # the command may have paused the supervisor
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await _wait_until_gone(process)
                break
            await asyncio.to_thread(_kill_family, process, mark)
        else:
            raise CommandError(_survivors_message(process.pid))
    finally:
        process.stdout.close()
        if process.returncode is None:  # cancelled again or stuck; reap it later to avoid a zombie
            threading.Thread(target=process.wait, name="evert reaper", daemon=True).start()
    if process.returncode != 0 or sys.platform != "linux":
        await asyncio.to_thread(_kill_family, process, mark)


async def _wait_until_gone(process: Process) -> None:
    while await _next_report(process):
        pass
    while process.poll() is None:  # noqa: ASYNC110  # no event for the loop to wait on
        await asyncio.sleep(0.001)


def _survivors_message(supervisor: int) -> str:
    with suppress(psutil.Error):
        survivors = psutil.Process(supervisor).children(recursive=True)
        names = ", ".join(f"{survivor.name()} ({survivor.pid})" for survivor in survivors[:10])
        return (
            f"{len(survivors)} processes started by the command did not exit within {PATIENCE} "
            f"seconds of being killed: {names}. They run as a different user, or are stuck in the "
            "kernel."
        )
    return f"The command did not exit within {PATIENCE} seconds of being killed."


def _kill_family(process: Process, mark: str) -> None:
    """Kill a supervisor's descendants, and all processes with the episode's mark."""
    family = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    with suppress(psutil.Error):
        if process.returncode is None:  # otherwise, the PID may belong to another process
            family += psutil.Process(process.pid).children(recursive=True)
    for member in family:
        with suppress(psutil.Error):
            member.kill()
    psutil.wait_procs(family, timeout=2)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(MARK) == mark
    except psutil.Error:
        return False
