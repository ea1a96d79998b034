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
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from evert.bridge.agent import NO_TASK
from evert.bridge.errors import CommandError, InvalidAgentError

KEPT_OUTPUT = 2**20
"""Bytes of the end of each output that a ``ProcessResult`` has."""

SHOWN_OUTPUT = 2000
"""Bytes of the end of each output that a message shows."""

MARK = "EVERT_REWARD_FILE"
"""The environment variable by which a process is known to belong to an episode."""

IN_HOME = "{home}/"
"""How the name of a file begins that is laid into the episode's home."""

LONGEST_VARIABLE = 100_000
"""Bytes of an environment variable; systems have a limit, and a program with a longer one cannot
be started at all."""

PLACEHOLDER = re.compile(r"\{(task|model|base_url|root_url|api_key|folder|home)(\[[^][{}]*\])?\}")


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

    def fill(self, text: str) -> str:
        """The text with its placeholders filled in; what is filled in is not filled in again.

        Raises:
            InvalidAgentError: The task has not the part that ``{task[name]}`` asks for.
        """
        return PLACEHOLDER.sub(self._value, text)

    def _value(self, found: re.Match[str]) -> str:
        name, part = found[1], found[2]
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
        """Run a command to its end.

        Args:
            command: Program and arguments, with placeholders.
            role: Of the command in this episode, for messages: "command", "setup", "reward".

        Raises:
            CommandError: It cannot be started.
            InvalidAgentError: A placeholder cannot be filled in.
        """
        filled = [self.fill(argument) for argument in command]
        out, err = self.scratch / f"{role}.out", self.scratch / f"{role}.err"
        self.running = (f"{role} {filled[0]!r}", out, err)
        async with self._running(filled, out, err) as process:
            status = await process.wait()
        return ProcessResult(status, end_of(out), end_of(err), self.folder)

    def report(self) -> str:
        """What the latest command wrote last, for a message; empty when there is none."""
        if self.running is None:
            return ""
        name, *outputs = self.running
        tails = [end_of(path, SHOWN_OUTPUT).strip() for path in reversed(outputs)]
        named = zip(("stderr", "stdout"), tails, strict=True)
        ends = "; ".join(f"{output} {end!r}" for output, end in named if end) or "nothing"
        return f"The {name} wrote last: {ends}"

    @asynccontextmanager
    async def _running(
        self, command: list[str], out: Path, err: Path
    ) -> AsyncIterator[asyncio.subprocess.Process]:
        """A process in a session of its own, whose tree is gone in the end."""
        with out.open("wb") as stdout, err.open("wb") as stderr:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    cwd=self.folder,
                    env=self.env,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:  # ValueError: a null character in an argument
                self.running = None
                raise CommandError(self._not_started(command[0], error)) from error
            try:
                yield process
            finally:
                await asyncio.to_thread(_kill_tree, process.pid, self.env[MARK])
                await process.wait()

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


def task_text(task: object) -> str:
    """A task as a command is told it: text as it is, anything else as JSON."""
    return "" if task is NO_TASK else task if isinstance(task, str) else json.dumps(task)


def end_of(path: Path, size: int = KEPT_OUTPUT) -> str:
    """The last ``size`` bytes of a file as text; empty when there is no file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - size))
            return file.read(size).decode(errors="replace")
    except OSError:
        return ""


# -- processes -------------------------------------------------------------------------------------


def _kill_tree(pid: int, mark: str) -> None:
    """Kill a session's processes, and those that left it but still carry its environment."""
    family = [process for process in psutil.process_iter() if _is_marked(process, mark)]
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    for process in family:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs([process for process in family if process.pid != pid], timeout=2)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(MARK) == mark
    except psutil.Error:
        return False
