"""A sandbox without a daemon, made by bubblewrap (Linux): a program sees only what it is given.

    sandbox = Sandbox(writable={"/work": folder}, ports={8000: socket}, folder="/work")
    with sandbox.command(["python3", "main.py"]) as (command, descriptors):
        subprocess.run(command, env={"PATH": os.defpath}, pass_fds=descriptors)

Only the system's folders, read-only, and the paths that a ``Sandbox`` names are visible inside.
Everything else is missing: home folders, ``/run`` and ``/var`` with their sockets, the folders of
training runs. The program has its own ``/tmp``, ``/dev`` (harmless devices), process ids and shared
memory; it has no capabilities, and cannot make further namespaces. A filter refuses system calls
that reach beyond the sandbox, such as those for keys (``seccomp.py``). All processes inside are
killed when the program ends, or when the process that ran the command ends.

Its only network is its own loopback. There ``relay.py`` listens on the ``ports``, and forwards each
connection to a Unix socket outside.

``sandbox_problem`` says why no sandbox can be made on this machine.
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
"""Where Linux systems keep programs, their libraries and settings."""

TEMPORARY = 2**30
"""Most bytes that ``/tmp`` and ``/var/tmp`` may each hold, in memory."""

ISOLATION = [
    *("--unshare-all", "--unshare-user", "--disable-userns", "--cap-drop", "ALL"),
    *("--die-with-parent", "--new-session"),
]

SETTINGS = "sys sysrq-trigger fs driver acpi scsi mtrr"
"""Files of ``/proc`` that change kernel settings; root may write them even without capabilities."""

MACHINE_FILES = "kcore keys key-users kmsg latency_stats sched_debug timer_list"
"""Files of ``/proc`` that describe the whole machine, such as its users' keys."""

OWN = {
    "/proc": ["--proc", "/proc"],
    **{f"/proc/{name}": ["--ro-bind-try", *2 * [f"/proc/{name}"]] for name in SETTINGS.split()},
    "/dev": ["--dev", "/dev"],
    **{path: ["--size", str(TEMPORARY), "--tmpfs", path] for path in ("/tmp", "/var/tmp")},
}

RELAYS = "/run/evert"
"""The folder inside a sandbox that holds the relay and its sockets."""

PYTHON = os.path.realpath(getattr(sys, "_base_executable", sys.executable))  # not a venv's

INSTALL = "`apt install bubblewrap`, or your system's package of that name, 0.8 or newer"


@lru_cache(1)
def system_folders() -> Mapping[str, Path]:
    """Return this machine's system folders and this Python's folder, by their path inside."""
    paths = [*SYSTEM.split(), sys.base_prefix]
    return {path: Path(path) for path in paths if os.path.isdir(path) and path != "/"}


@lru_cache(1)
def private_paths() -> Collection[str]:
    """Return the paths in ``/etc`` that not every user may read, such as passwords and keys."""
    private: list[str] = []
    for folder, names, files in os.walk("/etc"):
        paths = [os.path.join(folder, name) for name in [*names, *files]]
        private += filter(_is_private, paths)
        names[:] = [name for name in names if os.path.join(folder, name) not in private]
    return private


def _is_private(path: str) -> bool:
    try:
        mode = os.lstat(path).st_mode
    except OSError:  # the file is gone
        return False
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return not stat.S_ISLNK(mode) and mode & needed != needed


@dataclass(frozen=True, kw_only=True)
class Sandbox:
    """What a program sees and may do. Paths inside are absolute; paths outside must exist.

    If one path inside contains another, each keeps its own access: a read-only folder in a writable
    one stays read-only, and cannot be moved together with its parent. Paths outside may be links,
    which are followed, so pass no link that a program in an earlier sandbox could have made.

    Attributes:
        writable: Files and folders to read and write: path inside -> path outside.
        readonly: Files and folders to read, besides ``system_folders()``.
        hidden: Files and folders that cannot be read; their paths inside and outside are the same.
        ports: Ports of 127.0.0.1 inside -> the Unix socket outside that each is forwarded to.
        folder: The working directory inside; None: the caller's, or ``/``.
    """

    writable: Mapping[str, Path] = field(default_factory=dict)
    readonly: Mapping[str, Path] = field(default_factory=dict)
    hidden: Collection[str] = field(default_factory=private_paths)
    ports: Mapping[int, Path] = field(default_factory=dict)
    folder: str | None = None

    @contextmanager
    def command(self, argv: Sequence[str]) -> Iterator[tuple[list[str], list[int]]]:
        """Yield the command that runs ``argv`` in a new sandbox, and descriptors it must inherit.

        It can be run once, before the block ends. ``argv`` inherits its environment, input and
        outputs, and further inheritable descriptors. The exit status is that of ``argv``; 128 + N
        if signal N killed it; 127 if there is no such program inside.

        Raises:
            ValueError: A path inside is not absolute, or has ".." in it.
        """
        if sys.platform != "linux":
            raise NotImplementedError(sandbox_problem())
        mounts = {**OWN, **self._parent_mounts(), **self._path_mounts(), **self._relay_mounts()}
        for path in mounts:
            if not path.startswith("/") or ".." in PurePosixPath(path).parts:
                raise ValueError(
                    f"{path!r} cannot be a path in a sandbox; expected an absolute path without "
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
        """Return mounts for the parents of read-only paths: an unmounted parent can be moved."""
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
    """Return why no sandbox can be made here, and what to do; None if one can. Takes 10 ms."""
    if sys.platform != "linux":
        return f"sandboxes are made by bubblewrap, which is for Linux, and this is {sys.platform}"
    if shutil.which("bwrap") is None:
        return f"bubblewrap, which makes it, is not installed: {INSTALL}"
    if platform.machine() not in MACHINES:
        return f"its filter is for {' and '.join(MACHINES)}, and this is {platform.machine()}"
    with Sandbox().command(["/bin/sh", "-c", ":"]) as (command, descriptors):
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, pass_fds=descriptors
        )
    if result.returncode == 0:
        return None
    words = result.stderr.strip().rpartition("\n")[2] or f"status {result.returncode}"
    return (
        f"bubblewrap cannot make one here ({words}). It needs to be 0.8 or newer, and user "
        "namespaces: `sysctl kernel.unprivileged_userns_clone=1` or, on Ubuntu, "
        "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`; containers must allow them"
    )
