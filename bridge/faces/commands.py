"""Commands of one episode: filled in, run in its folder, and gone with all that they started.

``Place`` is where an episode's commands run: its folders, its environment, and what stands for
``{task}`` and the like. ``Place.run`` runs one to its end and returns a ``ProcessResult``. What a
command writes goes to files; only their ends are ever read, so that no output is too long.
"""

import asyncio
import errno
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import psutil

from evert.bridge.agent import NO_TASK
from evert.bridge.errors import CommandError, InvalidAgentError
from evert.bridge.faces import supervisor
from evert.bridge.secrets import LONGEST_KEY, redacted_end

SUPERVISOR = [sys.executable, "-I", "-S", supervisor.__file__]

PATIENCE = 30.0
"""Seconds that what a command started may take to end once it is killed."""

SHOWN_OUTPUT = 2000
"""Bytes of the end of each output that a message shows."""

MARK = "EVERT_REWARD_FILE"
"""The environment variable by which a process is known to belong to an episode."""

IN_HOME = "{home}/"
"""How the name of a file begins that is laid into the episode's home."""

LONGEST_VARIABLE = 100_000
"""Bytes of an environment variable; systems have a limit, and a program with a longer one cannot
be started at all."""

PLACEHOLDER = re.compile(
    r"\{(task|model|base_url|root_url|api_key|folder|home|env)(\[[^][{}]*\])?\}"
)


@dataclass(frozen=True)
class ProcessResult:
    """A command that has ended.

    Attributes:
        status: Exit status; negative: the signal that ended it.
        stdout: What it wrote; of more than a megabyte the end.
        stderr: What it wrote to the other; of more than a megabyte the end.
        folder: Where it ran; its files are still there.
    """

    status: int
    stdout: str
    stderr: str
    folder: Path


@dataclass(slots=True)
class Place:
    """Where an episode's commands run.

    Attributes:
        scratch: A folder of the episode, for their outputs.
        folder: Where they run.
        home: A further folder of the episode, for configuration that is not the agent's work.
        task: What is filled in for ``{task}``; ``NO_TASK``: nothing.
        values: What is filled in for the other placeholders, by name.
        env: Their environment variables.
        install: How to get the program; empty: as any.
        running: The latest command and the files of its two outputs; None before the first.
    """

    scratch: Path
    folder: Path
    home: Path
    task: Any
    values: Mapping[str, str]
    env: dict[str, str] = field(default_factory=dict)
    install: str = ""
    running: tuple[str, Path, Path] | None = None

    def fill(self, text: str, variables: Mapping[str, str] | None = None) -> str:
        """The text with its placeholders filled in; what is filled in is not filled in again.

        Args:
            text: With placeholders.
            variables: What ``{env[NAME]}`` is filled in from; None: it stays as it is.

        Raises:
            InvalidAgentError: The task has not the part that ``{task[name]}`` asks for, or there is
                no such variable.
        """
        return PLACEHOLDER.sub(lambda found: self._value(found, variables), text)

    def _value(self, found: re.Match[str], variables: Mapping[str, str] | None) -> str:
        name, part = found[1], found[2]
        if name == "env":
            return found[0] if variables is None or part is None else _named(part[1:-1], variables)
        if name != "task":
            return self.values[name] + (part or "")
        if part is None:
            return task_text(self.task)
        key = part[1:-1]
        try:
            return task_text(self.task[key if isinstance(self.task, Mapping) else int(key)])
        except (LookupError, TypeError, ValueError):
            raise InvalidAgentError(
                f"The command asks for {found[0]}, which the task {self.task!r:.200} has not. "
                "Expected tasks that are mappings with that key."
            ) from None

    def lay(self, files: Mapping[str, str | bytes | Path]) -> None:
        """Write files, and copy those that are paths, folders whole.

        Raises:
            OSError: One cannot be read or written.
            InvalidAgentError: As ``fill``.
        """
        for name, content in files.items():
            inner = name.removeprefix(IN_HOME)
            path = (self.folder if inner == name else self.home) / inner
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, str):
                path.write_text(self.fill(content), encoding="utf-8")
            elif isinstance(content, bytes):
                path.write_bytes(content)
            elif content.is_dir():
                shutil.copytree(content, path, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy(content, path)

    async def run(self, command: Sequence[str], role: str) -> ProcessResult:
        """Run a command to its end, and end all that it started.

        Args:
            command: Program and arguments, with placeholders.
            role: Of the command in this episode, for messages: "command", "setup", "reward".

        Raises:
            CommandError: It cannot be started, or leaves what cannot be ended.
            InvalidAgentError: A placeholder cannot be filled in.
        """
        filled = [self.fill(argument) for argument in command]
        out, err = self.scratch / f"{role}.out", self.scratch / f"{role}.err"
        process = self._supervised(filled, out, err)
        try:
            self.running = (f"{role} {filled[0]!r}", out, err)
            said = (await _said(process)).split()
            if said and said[0] == b"failed":
                self.running = None
                why = OSError(int(said[1]), os.strerror(int(said[1])))
                raise CommandError(self._not_started(filled[0], why))
        finally:
            await _ended(process, self.env[MARK])
        status = int(said[1]) if said else -signal.SIGKILL  # its supervisor was killed, too
        return ProcessResult(status, end_of(out), end_of(err), self.folder)

    def report(self) -> str:
        """What the latest command wrote last, for a message; empty when there is none."""
        if self.running is None:
            return ""
        name, *outputs = self.running
        tails = [end_of(path, SHOWN_OUTPUT + LONGEST_KEY) for path in reversed(outputs)]
        tails = [redacted_end(tail, SHOWN_OUTPUT).strip() for tail in tails]
        named = zip(("stderr", "stdout"), tails, strict=True)
        ends = "; ".join(f"{output} {end!r}" for output, end in named if end) or "nothing"
        return f"The {name} wrote last: {ends}"

    def _supervised(self, command: list[str], out: Path, err: Path) -> "Process":
        """Start the supervisor of a command; a word to it, or the end of its input, ends it all.

        Raises:
            CommandError: The arguments cannot be handed to a program.
        """
        with out.open("w+b") as stdout, err.open("w+b") as stderr:
            outputs = [stdout.fileno(), stderr.fileno()]
            options = [*outputs, self.scratch, "LC_CTYPE" in self.env]
            try:
                return subprocess.Popen(
                    [*SUPERVISOR, *map(str, options), *command],
                    cwd=self.folder,
                    env=self.env,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=stderr,
                    pass_fds=outputs,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:  # ValueError: a null character in an argument
                raise CommandError(self._not_started(command[0], error)) from error

    def _not_started(self, program: str, error: OSError | ValueError) -> str:
        if isinstance(error, OSError) and error.errno == errno.E2BIG:
            return (
                f"The program {program!r} cannot be started: its arguments are too long. The task "
                "is in the file that EVERT_TASK_FILE names, too, or lay it out in a setup function."
            )
        if not isinstance(error, FileNotFoundError):
            return f"The program {program!r} cannot be started: {error}"
        how = self.install or "install it where PATH leads, or give its whole path"
        return (
            f"The program {program!r} was not found (or the interpreter that its first line names)."
            f" To mend it: {how}. Its folder holds nothing but what files= and setup= put there."
        )


def _named(name: str, variables: Mapping[str, str]) -> str:
    try:
        return variables[name]
    except KeyError:
        raise InvalidAgentError(
            f"env= hands the command {{env[{name}]}}, but the environment variable {name} is not "
            "set here. Set it before you start the trainer, or leave it out of env=."
        ) from None


def task_text(task: object) -> str:
    """A task as a command is told it: text as it is, anything else as JSON."""
    return "" if task is NO_TASK else task if isinstance(task, str) else json.dumps(task)


def end_of(path: Path, size: int = supervisor.KEPT_OUTPUT) -> str:
    """The last ``size`` bytes of a file as text; empty when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""


# -- processes -------------------------------------------------------------------------------------

Process: TypeAlias = "subprocess.Popen[bytes]"


async def _said(process: Process) -> bytes:
    """What a supervisor says next; empty when it is gone."""
    assert process.stdout is not None
    loop, reports, ready = asyncio.get_running_loop(), process.stdout.fileno(), asyncio.Event()
    loop.add_reader(reports, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(reports)
    return os.read(reports, 64)


async def _ended(process: Process, mark: str) -> None:
    """Have a supervisor end all that there is, and wait until it is gone itself.

    Raises:
        CommandError: Something cannot be ended; the supervisor goes on trying.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):  # it is gone
        os.write(process.stdin.fileno(), b"\n")
    process.stdin.close()
    try:
        async with asyncio.timeout(PATIENCE):
            while await _said(process):
                pass
    except TimeoutError:
        raise CommandError(_not_ended(process.pid)) from None
    finally:
        process.stdout.close()
    if process.wait() != 0 or sys.platform != "linux":
        await asyncio.to_thread(_kill_marked, mark)


def _not_ended(supervisor: int) -> str:
    with suppress(psutil.Error):
        left = psutil.Process(supervisor).children(recursive=True)
        names = ", ".join(f"{one.name()} ({one.pid})" for one in left[:10])
        return (
            f"Of what the command started {len(left)} processes did not end within {PATIENCE} "
            f"seconds of being killed: {names}. They run as another user, or hang in the system."
        )
    return f"The command did not end within {PATIENCE} seconds of being killed."


def _kill_marked(mark: str) -> None:
    """Kill what carries an episode's environment, where there is no supervisor that knows more."""
    family = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(family, timeout=2)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(MARK) == mark
    except psutil.Error:
        return False
