"""``Bubblewrap``: a Harbor environment that runs tasks in a local sandbox (Linux only).

    HarborAgent("terminus-2", environment="bubblewrap")

The sandbox shares this machine's system folders, read-only. The rest of its root is a new folder
with the files that the task's Dockerfile copies (``plan.py``). ``/tmp``, processes and loopback are
isolated (``evert.agents.sandbox``), and only the episode's model can be reached.

One sandbox lives from ``start`` to ``stop``, and ``inside.py`` runs all commands in it. Files are
copied through a command's stdin and stdout rather than by path, because the agent could replace any
path with a symlink.
"""

# pyright: reportMissingImports=false

import asyncio
import json
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import EnvironmentCapabilities
from harbor.environments.tar_transfer import extract_dir, pack_dir

from evert.agents.commands import end_of
from evert.agents.sandbox import PYTHON, Sandbox, sandbox_problem
from evert.agents.supervisor import remove
from evert.bridge.clients.http.server import RELAYED_PORT
from evert.trainers.integrations.harbor import inside
from evert.trainers.integrations.harbor.options import SYSTEM_PATH
from evert.trainers.integrations.harbor.plan import ImagePlan

INSIDE = "/run/evert/inside.py"

VARIABLES = {
    "PATH": SYSTEM_PATH,
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "TERM": "xterm-256color",
}
"""Default environment variables for commands; the task and the agent can override them."""

LONGEST_OUTPUT = 2**24
"""Maximum number of bytes to read from the end of a command's output."""

MOVED = 600.0
"""Timeout in seconds for copying files in or out; the same as in Harbor's own environments."""

PATIENCE = 5.0
"""Seconds to wait for a sandbox to exit before killing it."""


class Bubblewrap(BaseEnvironment):  # type: ignore[misc]
    """A sandbox as a Harbor environment.

    Args:
        model: Unix socket that serves the episode's model. None disables the network.
        readonly: Local files and folders to make visible in the sandbox, such as programs.

    Raises:
        SandboxBuildFailedError: The task needs an image or, in ``start``, this machine cannot
            create a sandbox.
        ValueError: ``mounts`` is set, or a path in ``readonly`` does not exist.
    """

    def __init__(
        self, *args: Any, model: str | None = None, readonly: Sequence[str] = (), **options: Any
    ) -> None:
        if options.get("mounts"):
            raise ValueError("bubblewrap has no mounts=. Pass readonly=[PATH] in kwargs instead.")
        self._readonly = {str(path): path for path in (Path(name).absolute() for name in readonly)}
        if gone := [name for name, path in self._readonly.items() if not path.exists()]:
            raise ValueError(f"bubblewrap: the readonly= path {gone[0]} does not exist.")
        self._model = model
        self._folder: Path | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._inbox: socket.socket | None = None
        self._errors: IO[bytes] | None = None
        super().__init__(*args, **options)

    @staticmethod
    def type() -> str:
        """Return the environment's name."""
        return "bubblewrap"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """Tell Harbor that the network can be disabled or restricted to the model."""
        return EnvironmentCapabilities(
            disable_internet=True, network_allowlist=True, network_allowlist_ipv4_addresses=True
        )

    def _validate_definition(self) -> None:
        name, folder = self.environment_name, self.environment_dir
        self._plan = ImagePlan.of(name, folder, self.task_env_config)

    async def start(self, force_build: bool) -> None:
        """Copy the task's files and start the sandbox."""
        if problem := sandbox_problem():
            raise SandboxBuildFailedError(f"Cannot create a sandbox for the task: {problem}.")
        self._folder = Path(tempfile.mkdtemp(prefix="evert-harbor-"))
        root = self._folder / "root"
        for target in ("/root", "/tests", "/solution", *self._mount_targets()):
            (root / target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(self._plan.lay, root)
        sandbox = Sandbox(
            writable={"/": root},
            readonly={**self._readonly, INSIDE: Path(inside.__file__)},
            ports={} if self._model is None else {RELAYED_PORT: Path(self._model)},
            folder="/",
        )
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by ``stop``
        self._inbox, child_end = socket.socketpair(type=socket.SOCK_SEQPACKET)
        self._inbox.setblocking(False)
        with child_end, sandbox.command([PYTHON, "-I", "-S", INSIDE]) as (command, descriptors):
            self._process = await asyncio.create_subprocess_exec(
                *command, stdin=child_end.fileno(), stdout=subprocess.DEVNULL, stderr=self._errors,
                env={"PATH": os.defpath}, start_new_session=True, pass_fds=descriptors,
            )  # fmt: skip
        await self._move(["true"])

    async def stop(self, delete: bool) -> None:
        """Stop the sandbox and all its processes, and remove its folder if ``delete`` is set."""
        if self._inbox is not None:
            self._inbox.close()  # ``inside.py`` exits, which kills all processes in the sandbox
        if self._process is not None:
            try:
                async with asyncio.timeout(PATIENCE):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()
        if self._errors is not None:
            self._errors.close()
            self._errors = None
        if self._folder is not None and delete:
            if why := await asyncio.to_thread(remove, str(self._folder)):
                self.logger.warning("The folder %s could not be removed: %s.", self._folder, why)
            self._folder = None

    # -- commands and files ----------------------------------------------------------------------

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a bash command. ``user`` is ignored, because the sandbox only has one user.

        Raises:
            RuntimeError: The command timed out and was killed, or the sandbox is gone.
        """
        env = {**self._plan.variables, **(self._merge_env(env) or {})}
        try:
            async with asyncio.timeout(timeout_sec):
                return await self._run(["bash", "-c", command], cwd=cwd, env=env)
        except TimeoutError as error:
            raise RuntimeError(f"Command timed out after {timeout_sec} seconds") from error

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file into the environment."""
        script = 'mkdir -p "$(dirname "$1")"; [ ! -d "$1" ] || set - "$1/$2"; cat > "$1"'
        with await asyncio.to_thread(open, source_path, "rb") as file:
            await self._move(["sh", "-ec", script, "-", target_path, Path(source_path).name], file)

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy the contents of a folder into the environment."""
        script = 'mkdir -p "$1"; tar -xf - --no-same-owner -C "$1"'
        with tempfile.TemporaryFile() as packed:
            await asyncio.to_thread(pack_dir, source_dir, packed, compress=False)
            await self._move(["sh", "-ec", script, "-", target_dir], packed)

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out of the environment. Reject devices, because reading one may never end."""
        script = '[ -f "$1" ] || { echo "$1 is not a regular file" >&2; exit 1; }; cat -- "$1"'

        def keep(out: IO[bytes]) -> None:
            with open(target_path, "wb") as file:
                shutil.copyfileobj(out, file)

        await self._move(["sh", "-ec", script, "-", source_path], read_output=keep)

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a folder's contents out of the environment, skipping links that point outside it."""
        await self._move(
            ["tar", "-cf", "-", "-C", source_dir, "."],
            read_output=lambda out: extract_dir(out, target_dir),
        )

    async def _move(
        self,
        argv: list[str],
        source: IO[bytes] | None = None,
        read_output: Callable[[IO[bytes]], object] | None = None,
    ) -> None:
        """Run a program in the environment with ``source`` as stdin; raise an error if it fails."""
        async with asyncio.timeout(MOVED):
            result = await self._run(argv, source, read_output)
        if result.return_code != 0:
            problem = f"{argv[0]} exited with status {result.return_code} in the sandbox"
            raise RuntimeError(f"{problem}: {result.stderr.strip()[-1000:]}")

    async def _run(
        self,
        argv: list[str],
        source: IO[bytes] | None = None,
        read_output: Callable[[IO[bytes]], object] | None = None,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        """Run a command and wait for it. ``read_output`` receives a file with the full output."""
        variables = {**VARIABLES, **(env or {})}
        command = {"argv": argv, "cwd": cwd or str(self._plan.workdir), "env": variables}
        with ExitStack() as stack:
            request, empty, out, err = [
                stack.enter_context(tempfile.TemporaryFile()) for _ in range(4)
            ]
            request.write(json.dumps(command).encode())
            source = source or empty
            for file in (request, source):
                file.seek(0)
            status = await self._status([request, source, out, err])
            if not status:
                words = end_of(self._errors, 1000).strip() if self._errors else ""
                raise RuntimeError(f"The sandbox of {self.environment_name} is gone. {words}")
            if read_output is not None:
                out.seek(0)
                await asyncio.to_thread(read_output, out)
                return ExecResult(stderr=end_of(err), return_code=int(status))
            stdout, stderr = end_of(out, LONGEST_OUTPUT), end_of(err, LONGEST_OUTPUT)
        return ExecResult(stdout=stdout, stderr=stderr, return_code=int(status))

    async def _status(self, files: list[IO[bytes]]) -> bytes:
        """Send a command's files to ``inside.py``, and return the command's exit status.

        If the sandbox is gone, return b"".
        """
        local, remote = socket.socketpair()
        local.setblocking(False)
        with local:
            with remote, suppress(OSError):
                if self._inbox is not None:
                    numbers = [remote.fileno(), *(file.fileno() for file in files)]
                    socket.send_fds(self._inbox, [b"."], numbers)
            with suppress(ConnectionError):
                return await asyncio.get_running_loop().sock_recv(local, 64)
        return b""
