"""A sandbox without a daemon, based on bubblewrap (Linux). Programs only see what they are given.

    sandbox = Sandbox(writable={"/work": folder}, ports={8000: socket}, folder="/work")
    with sandbox.command(["python3", "main.py"]) as (command, descriptors):
        subprocess.run(command, env={"PATH": os.defpath}, pass_fds=descriptors)

Inside the sandbox, only system folders (read-only) and the paths in the ``Sandbox`` are visible.
Everything else is missing, including home folders, ``/run`` and ``/var`` with their sockets, and
the folders of training runs. The program has its own ``/tmp``, ``/dev`` (only harmless devices),
process ids and shared memory. It has no capabilities and cannot create namespaces. A filter blocks
system calls that reach beyond the sandbox, for example to access keys (``seccomp.py``). All
processes in the sandbox are killed when the program, or the process that ran the command, exits.

The only network is a private loopback interface, on which ``relay.py`` listens on the ``ports`` and
forwards each connection to a Unix socket outside the sandbox.

``sandbox_problem`` returns the reason if no sandbox can be created on this machine.
"""

import os
import platform
import shutil
import stat
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path, PurePosixPath

from evert.agents import relay
from evert.agents.seccomp import MACHINES, seccomp_filter

SYSTEM = "/usr /bin /sbin /lib /lib32 /lib64 /libx32 /etc /opt /nix /gnu"
"""Where Linux systems store programs, libraries and settings."""

TEMPORARY = 2**30
"""Maximum size of ``/tmp`` and ``/var/tmp`` (each, in memory), in bytes."""

ISOLATION = [
    *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
    *("--die-with-parent", "--new-session"),
]

SETTINGS = "sys sysrq-trigger fs driver acpi scsi mtrr"
"""Files in ``/proc`` that change kernel settings. Root can write them even without capabilities."""

MACHINE_FILES = "kcore keys key-users kmsg latency_stats sched_debug timer_list"
"""Files in ``/proc`` with information about the whole machine, such as its users' keys."""

OWN = {
    "/proc": ["--proc", "/proc"],
    **{f"/proc/{name}": ["--ro-bind-try", *2 * [f"/proc/{name}"]] for name in SETTINGS.split()},
    "/dev": ["--dev", "/dev"],
    **{path: ["--size", str(TEMPORARY), "--tmpfs", path] for path in ("/tmp", "/var/tmp")},
}

RELAYS = "/run/evert"
"""The folder inside a sandbox that contains the relay and its sockets."""

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # outside of any venv

INSTALL = "run `apt install bubblewrap`, or install your system's package (0.8 or newer)"


@lru_cache(1)
def system_folders() -> Mapping[str, Path]:
    """Return system folders and this Python's folders, by their path in the sandbox."""
    paths = [*SYSTEM.split(), sys.base_prefix]
    return {path: Path(path) for path in paths if os.path.isdir(path) and path != "/"}


@lru_cache(1)
def private_paths() -> Collection[str]:
    """Return the paths in ``/etc`` that not every user can read, such as passwords and keys."""
    private: list[str] = []
    for folder, names, files in os.walk("/etc"):
        paths = [os.path.join(folder, name) for name in [*names, *files]]
        private += filter(_is_private, paths)
        names[:] = [name for name in names if os.path.join(folder, name) not in private]
    return private


def _is_private(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # the file no longer exists
        return False
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return not stat.S_ISLNK(mode) and mode & needed != needed


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """What a program can see and do.

    Sandbox paths must be absolute, and host paths must exist. If one sandbox path is inside
    another, each path keeps its own access mode: a read-only folder in a writable folder stays
    read-only, and cannot be moved together with its parent. Links on the host are followed, so
    never pass a link that a program in an earlier sandbox could have created.

    Attributes:
        writable: Files and folders that can be read and written: sandbox path -> host path.
        readonly: Files and folders that can only be read, in addition to ``system_folders()``.
        hidden: Files and folders that cannot be read. Sandbox and host paths are the same.
        ports: Loopback ports in the sandbox -> the Unix sockets on the host to forward them to.
        folder: The working directory in the sandbox (default: the caller's, or ``/``).
    """

    writable: Mapping[str, Path] = field(default_factory=dict)
    readonly: Mapping[str, Path] = field(default_factory=dict)
    hidden: Collection[str] = field(default_factory=private_paths)
    ports: Mapping[int, Path] = field(default_factory=dict)
    folder: str | None = None

    @contextmanager
    def command(self, argv: Sequence[str]) -> Iterator[tuple[list[str], list[int]]]:
        """Yield the command that runs ``argv`` in a new sandbox, and descriptors it must inherit.

        The command can be run once, before the block ends. ``argv`` inherits the environment,
        stdin, stdout, stderr and other inheritable descriptors. The exit status is the exit status
        of ``argv``, 128 + N if ``argv`` was killed by signal N, or 127 if the sandbox lacks the
        program.

        Raises:
            ValueError: A sandbox path is not absolute, or contains "..".
        """
        if sys.platform != "linux":
            raise NotImplementedError(sandbox_problem())
        mounts = {**OWN, **self._parent_mounts(), **self._path_mounts(), **self._relay_mounts()}
        for path in mounts:
            if not path.startswith("/") or ".." in PurePosixPath(path).parts:
                raise ValueError(
                    f"{path!r} is not a valid path in a sandbox; expected an absolute path without "
                    "'..'."
                )
        ordered = sorted(mounts, key=lambda path: PurePosixPath(path).parts)
        with open(os.memfd_create("seccomp"), "w+b") as rules:
            rules.write(seccomp_filter())
            rules.seek(0)
            yield (
                [
                    shutil.which("bwrap") or "bwrap",
                    *(*ISOLATION, "--seccomp", str(rules.fileno())),
                    *(argument for path in ordered for argument in mounts[path]),
                    *([] if "/" in mounts else ["--remount-ro", "/"]),
                    *(["--chdir", self.folder] if self.folder is not None else []),
                    "--",
                    *self._through_relay(argv),
                ],
                [rules.fileno()],
            )

    def _path_mounts(self) -> dict[str, list[str]]:
        readonly = {**system_folders(), **self.readonly}
        hidden = [*(f"/proc/{name}" for name in MACHINE_FILES.split()), *self.hidden]
        return {
            **{path: ["--ro-bind", str(outside), path] for path, outside in readonly.items()},
            **{path: _empty_mount(path) for path in hidden if os.path.lexists(path)},
            **{path: ["--bind", str(outside), path] for path, outside in self.writable.items()},
        }

    def _parent_mounts(self) -> dict[str, list[str]]:
        """Return mounts for the parents of read-only paths, so that the parents cannot be moved."""
        mounts = {}
        for writable, outside in self.writable.items():
            for path in [*system_folders(), *self.readonly, *self.hidden]:
                for parent in PurePosixPath(path).parents:
                    if writable != "/" and parent.is_relative_to(writable):
                        source = Path(outside, parent.relative_to(writable))
                        mounts[str(parent)] = ["--bind-try", str(source), str(parent)]
        return mounts

    def _relay_mounts(self) -> dict[str, list[str]]:
        if not self.ports:
            return {}
        files = {"relay.py": Path(relay.__file__), **{str(p): s for p, s in self.ports.items()}}
        return {
            f"{RELAYS}/{name}": ["--ro-bind", str(outside), f"{RELAYS}/{name}"]
            for name, outside in files.items()
        }

    def _through_relay(self, argv: Sequence[str]) -> list[str]:
        if not self.ports:
            return [*argv]
        pairs = [f"{port}={RELAYS}/{port}" for port in self.ports]
        return [PYTHON, "-I", "-S", f"{RELAYS}/relay.py", *pairs, "--", *argv]


def _empty_mount(path: str) -> list[str]:
    if os.path.isdir(path):
        return ["--tmpfs", path, "--remount-ro", path]
    return ["--ro-bind", os.devnull, path]


@lru_cache(1)
def sandbox_problem() -> str | None:
    """If no sandbox can be created, return why and how to fix it, else None. Takes 10 ms."""
    if sys.platform != "linux":
        return f"sandboxes need bubblewrap, which only runs on Linux, and this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return f"bubblewrap is not installed: {INSTALL}"
    if platform.machine() not in MACHINES:
        return f"sandboxes only work on {' and '.join(MACHINES)}, and this is {platform.machine()}"
    with Sandbox().command(["/bin/sh", "-c", ":"]) as (command, descriptors):
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, pass_fds=descriptors
        )
    if result.returncode == 0:
        return None
    words = result.stderr.strip().rpartition("\n")[2] or f"status {result.returncode}"
    return (
        f"bubblewrap cannot create one here ({words}). It must be version 0.8 or newer, and it "
        "needs user namespaces: `sysctl kernel.unprivileged_userns_clone=1` or, on Ubuntu, "
        "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`; containers must allow them"
    )
