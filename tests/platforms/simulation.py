"""Make Linux look like macOS or Windows to evert and its tests.

To enable the simulation, set ``PYTHONPATH`` to the folder ``darwin`` or ``win32`` next to this
file. Each contains a ``sitecustomize.py``, which Python imports at startup. The simulation hides
what the platform does not support: functions, signals and modules, ``/proc``, long or abstract
socket names, and the memory of other processes. Processes are spawned, not forked. Python's
standard library and other packages still see Linux, because they were installed for Linux.

The simulation does not cover paths with backslashes, files that cannot be renamed while they are
open, case-insensitive file systems, or the platform's kernel.
"""

import asyncio
import builtins
import copyreg
import ctypes
import importlib
import io
import multiprocessing
import os
import platform as machine
import resource
import select
import signal
import socket
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import psutil

LINUX_ONLY = {
    os: """sched_getaffinity sched_setaffinity pidfd_open memfd_create eventfd posix_fadvise
        posix_fallocate fdatasync getrandom O_PATH O_TMPFILE O_DIRECT O_NOATIME getxattr setxattr
        listxattr splice copy_file_range getresuid setresuid pipe2 setns unshare""",
    resource: "prlimit RLIMIT_SIGPENDING RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_RTPRIO",
    select: "epoll",
    signal: """sigtimedwait sigwaitinfo SIGSTKFLT SIGRTMIN SIGRTMAX SIGPWR SIGPOLL
        pidfd_send_signal""",
    socket: """SOCK_CLOEXEC SOCK_NONBLOCK AF_NETLINK AF_VSOCK AF_PACKET MSG_NOSIGNAL SO_PEERCRED
        SO_PASSCRED TCP_QUICKACK TCP_USER_TIMEOUT""",
}
UNIX_ONLY = {
    os: """fork forkpty register_at_fork setsid getsid killpg getpgid getpgrp setpgid getuid
        geteuid setuid seteuid getgid chown fchown fchmod lchown mkfifo mknod openpty pread pwrite
        set_blocking setpriority getpriority PRIO_PROCESS wait wait3 wait4 WNOHANG WIFEXITED
        O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_CLOEXEC O_SYNC uname nice getloadavg statvfs""",
    select: "poll",
    signal: """SIGHUP SIGKILL SIGCHLD SIGCONT SIGPIPE SIGALRM SIGUSR1 SIGUSR2 SIGXFSZ SIGSTOP
        SIGTSTP SIGQUIT alarm setitimer getitimer pthread_sigmask pthread_kill SIG_SETMASK""",
    socket: "AF_UNIX send_fds recv_fds",
}
UNIX_MODULES = {"fcntl", "grp", "pty", "pwd", "resource", "termios", "tty"}
LONGEST_SOCKET_PATH = 103
"""In bytes. On macOS, ``sun_path`` has 104 bytes, including the terminating zero."""
ROOT = str(Path(__file__).resolve().parents[2])
LIBRARY = sysconfig.get_path("stdlib")


def simulate(platform: str) -> None:
    """Hide from evert and its tests everything that the platform does not support."""
    is_windows = platform == "win32"
    missing: dict[ModuleType, set[str]] = {}
    for names in [LINUX_ONLY, *([UNIX_ONLY] if is_windows else [])]:
        for module, text in names.items():
            missing.setdefault(module, set()).update(text.split())
    for module, hidden in missing.items():
        values = {"name": "nt"} if module is os and is_windows else {}
        _replace(module, dict.fromkeys(hidden) | values)
    _replace(sys, {"platform": platform})
    for call in ("listdir", "scandir", "stat", "lstat", "open", "readlink", "access"):
        setattr(os, call, _without_proc(getattr(os, call)))
    builtins.open = io.open = _without_proc(io.open)
    _limit_libraries()
    _limit_memory()
    _limit_sockets()
    if is_windows:
        _become_windows()
    multiprocessing.set_start_method("spawn", force=True)
    system = machine.system
    name = "Windows" if is_windows else "Darwin"
    machine.system = lambda: name if _is_asked_by_us() else system()


def _is_ours(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return file.startswith(ROOT) and "site-packages" not in file


def _is_asked_by_us() -> bool:
    """Return whether the nearest caller outside the standard library is evert or a test."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((LIBRARY, "<frozen")) or "site-packages" in file:
            return _is_ours(frame)
        frame = frame.f_back
    return False


def _replace(module: ModuleType, values: Mapping[str, object]) -> None:
    """Make evert see different values for a module's attributes. None hides an attribute."""

    class Replaced(ModuleType):
        def __getattribute__(self, name: str) -> Any:
            if name not in values or not _is_ours(sys._getframe(1)):
                return super().__getattribute__(name)
            if values[name] is None:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return values[name]

    module.__class__ = Replaced
    reduce: Any = lambda module: (importlib.import_module, (module.__name__,))  # noqa: E731
    copyreg.pickle(Replaced, reduce)


def _without_proc(call: Callable[..., Any]) -> Callable[..., Any]:
    def reached(path: Any = ".", *args: Any, **options: Any) -> Any:
        if not isinstance(path, int):
            text = os.fsdecode(path)
            if text.startswith(("/proc", "/sys/")) and _is_asked_by_us():
                raise FileNotFoundError(2, "No such file or directory", text)
        return call(path, *args, **options)

    return reached


def _limit_libraries() -> None:
    attribute = ctypes.CDLL.__getattr__

    def limited(library: ctypes.CDLL, name: str) -> Any:
        if name in ("prctl", "syscall", "malloc_trim", "mallopt") and _is_asked_by_us():
            raise AttributeError(f"{name}: symbol not found")
        return attribute(library, name)

    ctypes.CDLL.__getattr__ = limited  # type: ignore[method-assign]


def _limit_memory() -> None:
    kind: Any = psutil.Process
    whole = kind.memory_full_info

    def memory_full_info(process: Any) -> Any:
        if process.pid != os.getpid():
            raise psutil.AccessDenied(process.pid)
        return whole(process)

    kind.memory_full_info = memory_full_info
    for name in ("cpu_affinity", "rlimit", "memory_maps", "ionice"):
        delattr(kind, name)


def _limit_sockets() -> None:
    unix = vars(socket)["AF_UNIX"]

    def limited(call: Callable[..., Any]) -> Callable[..., Any]:
        def reached(channel: socket.socket, address: Any) -> Any:
            if channel.family == unix and _is_asked_by_us():
                name = os.fsencode(address)
                if name[:1] == b"\0" or len(name) > LONGEST_SOCKET_PATH:
                    raise OSError("AF_UNIX path too long")
            return call(channel, address)

        return reached

    for name in ("bind", "connect"):
        setattr(socket.socket, name, limited(getattr(socket.socket, name)))


def _become_windows() -> None:
    """Hide Unix modules, event loop signal handlers, and file descriptors of folders."""
    load, open_file = builtins.__import__, os.open
    loop: Any = asyncio.SelectorEventLoop
    handle = loop.add_signal_handler

    def load_module(name: str, *args: Any, **options: Any) -> Any:
        if name in UNIX_MODULES and _is_ours(sys._getframe(1)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return load(name, *args, **options)

    def open_no_folder(path: Any, *args: Any, **options: Any) -> int:
        if not isinstance(path, int) and os.path.isdir(path) and _is_asked_by_us():
            raise PermissionError(13, "Permission denied", path)
        return open_file(path, *args, **options)

    def add_signal_handler(*args: Any) -> None:
        if _is_asked_by_us():
            raise NotImplementedError
        handle(*args)

    builtins.__import__, os.open = load_module, open_no_folder
    loop.add_signal_handler = add_signal_handler
    contexts: Any = multiprocessing.context
    for name in ("fork", "forkserver"):
        contexts._concrete_contexts.pop(name)
