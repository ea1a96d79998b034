"""Runs the commands of one episode, and ends every process that they started.

``Workplace`` is where an episode's commands run: its folders, its environment variables, and the
values of ``{task}`` and the other placeholders. ``Workplace.run`` runs a command to its end and
returns a ``ProcessResult``. A command's outputs go to unnamed temporary files; only the end of each
is read, so an output may be of any length. A command may leave files of any kind, so ``read_left``
reads only regular files up to a size limit, and does not follow links.
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
"""Seconds to wait for a command's processes to end after they are killed."""

SHOWN_OUTPUT = 2000
"""How many bytes of the end of each output an error message shows."""

LOGGED_OUTPUT = 4000
"""How many characters of the end of an output go to the transition's logs."""

MARK = "EVERT_EPISODE"
"""The environment variable that marks the processes of an episode."""

IN_HOME, IN_JUDGE = "{home}/", "{judge}/"
"""Prefixes of file names: files for the episode's home, and files for the judge's folder."""

LONGEST_VARIABLE = 100_000
"""Most bytes of an environment variable. Above the system's limit, no program starts."""

PLACEHOLDER = re.compile(
    r"\{(task|model|base_url|root_url|api_key|folder|home|env)(\[[^][{}]*\])?\}"
)


@dataclass(frozen=True)
class ProcessResult:
    """A command that has ended.

    Attributes:
        status: Exit status. If signal N killed the command: -N, or 128 + N in a sandbox.
        stdout: Its standard output, at most the last megabyte.
        stderr: Its standard error, at most the last megabyte.
        folder: The folder in which it ran. Its files are still there; ``read`` reads them.
    """

    status: int
    stdout: str
    stderr: str
    folder: Path

    def read(self, name: str) -> str | None:
        """Return the text of a file that the command left in ``folder``.

        Return None if the file is missing, longer than a megabyte, a link or not a regular file.
        """
        try:
            return read_left(self.folder, name).decode(errors="replace")
        except (OSError, ValueError):
            return None


@dataclass(slots=True)
class Workplace:
    """Where an episode's commands run."""

    scratch: Sequence[Path]
    """The folders that the supervisor removes if the trainer dies."""
    folder: Path
    rooms: Mapping[str, Path]
    """The folder for each prefix of file names. Files with other prefixes are skipped."""
    task: Any
    values: Mapping[str, str]
    env: dict[str, str] = field(default_factory=dict)
    sandbox: Sandbox | None = None
    install: str = ""
    last_words: str = ""

    def fill(self, text: str, variables: Mapping[str, str] | None = None) -> str:
        """Fill in the placeholders of a text; ``{env[NAME]}`` only if ``variables`` are given."""
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
                f"The command asks for {match[0]}, which the task {self.task!r:.200} does not "
                "have. Expected a task with that key or index."
            ) from None

    def lay(self, files: Mapping[str, str | bytes | Path]) -> None:
        """Write the files that belong here. A ``Path`` is copied, as a file or a whole folder."""
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
                    "does not follow links, which an earlier episode's command may have left. "
                    "Remove what is in the way, or leave out cwd= to get a new folder each time."
                ) from error

    async def run(
        self, command: Sequence[str], role: str, sandbox: Sandbox | None = None
    ) -> ProcessResult:
        """Run a command, then end every process that it started; messages call it ``role``."""
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
            killed = (b"ended", -signal.SIGKILL)  # nothing is reported if the supervisor is killed
            word, number = report.split() or killed
            if word == b"failed":
                self.last_words = ""
                why = OSError(int(number), os.strerror(int(number)))
                raise CommandError(self._start_failure(filled[0], why))
            stdout, stderr = [await asyncio.to_thread(end_of, file) for file in (out, err)]
        return ProcessResult(int(number), stdout, stderr, self.folder)

    def _check_program(self, program: str) -> None:
        """Raise if the program does not exist, which the supervisor cannot notice in a sandbox."""
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
        """Start a supervisor. When its stdin gets a byte or closes, it ends every process."""
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
                f"The program {program!r} cannot be started: its arguments {why}. Read the task "
                "from the file that EVERT_TASK_FILE names, or write a file in a setup function."
            )
        if not isinstance(error, FileNotFoundError):
            return f"The program {program!r} cannot be started: {error}"
        how = self.install or "install it in a folder of PATH, or give its full path"
        return (
            f"The program {program!r} was not found (or the interpreter that its first line names)."
            f" To fix it: {how}. The episode's folder has only what files= and setup= put there."
        )


def _variable(name: str, variables: Mapping[str, str]) -> str:
    try:
        return variables[name]
    except KeyError:
        raise InvalidAgentError(
            f"env= asks for {{env[{name}]}}, but the environment variable {name} is not set here. "
            "Set it before you start the trainer, or leave it out of env=."
        ) from None


def room_of(name: str) -> tuple[str, str]:
    """Split a file's name into its prefix and its path in the prefix's folder."""
    room = next(room for room in (IN_HOME, IN_JUDGE, "") if name.startswith(room))
    return room, name.removeprefix(room)


def task_text(task: object) -> str:
    """Return a task as text for a command: text unchanged, anything else as JSON."""
    return "" if task is NO_TASK else task if isinstance(task, str) else json.dumps(task)


def end_of(file: IO[bytes], size: int = supervisor.KEPT_OUTPUT) -> str:
    """Return the last ``size`` bytes of an output as text."""
    start = max(0, os.fstat(file.fileno()).st_size - size)
    return os.pread(file.fileno(), size, start).decode(errors="replace")


def _output_ends(stderr: IO[bytes], stdout: IO[bytes]) -> str:
    files = {"stderr": stderr, "stdout": stdout}
    texts = {name: end_of(file, SHOWN_OUTPUT + LONGEST_KEY) for name, file in files.items()}
    ends = {name: redacted_end(text, SHOWN_OUTPUT).strip() for name, text in texts.items()}
    return "; ".join(f"{name} {end!r}" for name, end in ends.items() if end) or "nothing"


def read_left(folder: Path, name: str, limit: int = 2**20) -> bytes:
    """Read a regular file that a command left in the folder, of at most ``limit`` bytes.

    Raises:
        ValueError: It is longer, or not a regular file, or a link or its name leads elsewhere.
        OSError: It is missing or cannot be read.
    """
    path = folder / name
    if os.path.realpath(path) != str(path) or not path.is_relative_to(folder):
        raise ValueError("a link or its name leads elsewhere")
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise ValueError("it is not a regular file")
        content = os.pread(file, limit + 1, 0)
    finally:
        os.close(file)
    if len(content) > limit:
        raise ValueError(f"it is longer than {limit} bytes")
    return content


@asynccontextmanager
async def new_folder() -> AsyncIterator[Path]:
    """Yield a new folder, and remove it at the end. If that fails, the episode still counts."""
    real = os.path.realpath(tempfile.gettempdir())  # noqa: ASYNC240
    folder = tempfile.mkdtemp(prefix="evert-", dir=real)
    try:
        yield Path(folder)
    finally:
        if why := await asyncio.to_thread(supervisor.remove, folder):
            logger.warning("An episode's folder %s is left behind: %s.", folder, why)


# -- processes -------------------------------------------------------------------------------------

Process: TypeAlias = "subprocess.Popen[bytes]"


async def _next_report(process: Process) -> bytes:
    """Wait for a supervisor's next report, and return it; empty once the supervisor is gone."""
    assert process.stdout is not None
    loop, reports, ready = asyncio.get_running_loop(), process.stdout.fileno(), asyncio.Event()
    loop.add_reader(reports, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(reports)
    return os.read(reports, 64)


async def _end(process: Process, mark: str) -> None:
    """Tell a supervisor to end every process, and wait. If this raises, the supervisor goes on."""
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # the supervisor is gone
        os.write(process.stdin.fileno(), b"\n")
    process.stdin.close()
    try:
        for _ in range(PATIENCE):
            process.send_signal(signal.SIGCONT)  # the command may have stopped it
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await _wait_until_gone(process)
                break
            await asyncio.to_thread(_kill_family, process, mark)
        else:
            raise CommandError(_survivors_message(process.pid))
    finally:
        process.stdout.close()
        if process.returncode is None:  # cancelled again, or it hangs: a zombie would stay
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
            f"{len(survivors)} processes that the command started did not end within {PATIENCE} "
            f"seconds of being killed: {names}. They run as another user, or hang in the kernel."
        )
    return f"The command did not end within {PATIENCE} seconds of being killed."


def _kill_family(process: Process, mark: str) -> None:
    """Kill a supervisor's descendants and the processes marked as the episode's, in its place."""
    family = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    with suppress(psutil.Error):
        if process.returncode is None:  # else its PID may belong to another process
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
