"""The process that forks isolates, which run code that handles a model's output.

    python -P isolation_server.py CONTROL TRAINER

``isolation.py`` starts this script and, to open an isolate, sends one byte along with two sockets:
a channel, and a socket that stops the isolate when it is closed. The first message on the channel
describes how to create the function. The server creates it once, and every isolate inherits it
through a fork, which takes milliseconds. The isolate then reads calls and writes results. Calls are
pickles, which is safe because only the trainer writes them. Results are lines of JSON, so even if
an answer compromises its isolate, it cannot run code in the trainer.

The file contains the server, the isolate and its sandbox. Only ``_confine`` depends on the
operating system. On Linux, the kernel kills an isolate when its server exits, limits its memory,
and blocks new sockets, new processes, signals to other processes (seccomp) and file changes
(Landlock). On other systems, an audit hook blocks these as long as they go through Python's
modules. The server does not import evert, so it starts quickly.
"""

import ctypes
import errno
import gc
import json
import os
import pickle
import resource
import select
import signal
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, BinaryIO

BYTES = 2**30
"""Maximum memory of an isolate in bytes, not counting memory inherited from the server."""

IDLE = 300
"""Seconds that a server stays alive without isolates; the next isolate starts a new server."""

LONGEST_CALL = 10
"""Seconds after which the kernel kills an isolate that is in a call, in case the server can't."""

HEADER = struct.Struct("!Q")
"""The length prefix of every message to an isolate."""


def main() -> None:
    """Fork isolates until the trainer exits."""
    control, trainer = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    functions: dict[bytes, Callable[..., Any]] = {}
    isolates: dict[int, int] = {}  # socket -> the process to kill when the socket is closed
    poll = select.poll()
    poll.register(control, select.POLLIN)
    idle = 0
    while os.getppid() == trainer and idle < IDLE:
        ready = poll.poll(1000)  # milliseconds
        idle = 0 if ready or isolates else idle + 1
        for descriptor, _ in ready:
            if descriptor != control.fileno():
                poll.unregister(descriptor)
                _end(isolates.pop(descriptor))
                os.close(descriptor)
                continue
            message, descriptors, _, _ = socket.recv_fds(control, 1, 2)
            if not message:
                return
            life = descriptors[1]
            with socket.socket(fileno=descriptors[0]) as channel:
                isolates[life] = _fork(channel, functions, [control.fileno(), *isolates, life])
            poll.register(life, select.POLLIN)


def _end(isolate: int) -> None:
    if isolate:
        os.kill(isolate, signal.SIGKILL)
        os.waitpid(isolate, 0)


def _fork(
    channel: socket.socket, functions: dict[bytes, Callable[..., Any]], inherited: list[int]
) -> int:
    """Fork an isolate and return its process id, or 0 if its function cannot be created."""
    with channel.makefile("rb") as requests:
        name = _message(requests)
        try:
            if name not in functions:
                make, arguments = pickle.loads(name)
                functions[name] = make(*arguments)
                gc.freeze()  # forks then copy less memory
        except Exception as error:
            _answer(channel, _error(error))
            return 0
        server = os.getpid()
        if isolate := os.fork():
            return isolate
        try:
            for descriptor in inherited:
                os.close(descriptor)
            _confine(server)
            _serve(functions[name], channel, requests)
        except Exception as error:
            _answer(channel, _error(error))
        finally:
            os._exit(0)


# -- an isolate ----------------------------------------------------------------------------------


def _serve(function: Callable[..., Any], channel: socket.socket, requests: BinaryIO) -> None:
    _answer(channel, b'{"value": null}')
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while request := _message(requests):
        signal.setitimer(signal.ITIMER_REAL, LONGEST_CALL)
        try:
            answer = json.dumps({"value": function(*pickle.loads(request))}).encode()
        except MemoryError:
            return
        except BaseException as error:
            answer = _error(error)
        signal.setitimer(signal.ITIMER_REAL, 0)
        _answer(channel, answer)


def _message(requests: BinaryIO) -> bytes:
    header = requests.read(HEADER.size)
    return requests.read(*HEADER.unpack(header)) if len(header) == HEADER.size else b""


def _answer(channel: socket.socket, line: bytes) -> None:
    with suppress(ConnectionError):  # the trainer has closed the channel
        channel.sendall(line + b"\n")


def _error(error: BaseException) -> bytes:
    return json.dumps({"error": f"{type(error).__name__}: {error}"[:1000]}).encode()


# -- the sandbox ---------------------------------------------------------------------------------

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 1, 22, 38, 2
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
FILES, TRUNCATE = 0x1FF2, 1 << 14
"""Landlock rights to write, create and remove files; ``TRUNCATE`` requires Landlock version 3."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE, CLONE3, CLONE_THREAD = {"x86_64": 56, "aarch64": 220}, 435, 0x10000
REFUSED = {
    "x86_64": (41, 57, 58, 59, 62, 101, 129, 160, 200, 234, 297, 302, 310, 311, 322),
    "aarch64": (198, 221, 129, 117, 138, 164, 130, 131, 240, 261, 270, 271, 281),
}
"""socket, fork, vfork (both x86_64 only), execve, kill, ptrace, rt_sigqueueinfo, setrlimit, tkill,
tgkill, rt_tgsigqueueinfo, prlimit64, process_vm_readv, process_vm_writev, execveat."""

REFUSED_EVERYWHERE = (424, 425, 438)
"""pidfd_send_signal, io_uring_setup, pidfd_getfd, with the same numbers on all architectures."""

REFUSED_EVENTS = ("socket.", "subprocess.", "os.exec", "os.fork", "os.kill", "os.system")
"""The audit events that the Python hook blocks if the kernel does not filter system calls."""


def _confine(server: int) -> None:
    is_filtered = False
    if sys.platform == "linux":
        kernel = ctypes.CDLL(None, use_errno=True)
        kernel.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != server:
            os._exit(0)
        with open("/proc/self/statm") as sizes:
            size = int(sizes.read().split()[0]) * resource.getpagesize() + BYTES
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        kernel.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        _protect_files(kernel)
        is_filtered = _filter_calls(kernel, os.uname().machine)
    if not is_filtered:
        sys.addaudithook(_refuse)


def _protect_files(kernel: ctypes.CDLL) -> None:
    version = kernel.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1)
    rights = ctypes.c_uint64(FILES | (TRUNCATE if version >= 3 else 0))
    rules = kernel.syscall(LANDLOCK_CREATE_RULESET, ctypes.byref(rights), 8, 0)
    if rules >= 0:
        kernel.syscall(LANDLOCK_RESTRICT_SELF, rules, 0)
        os.close(rules)


def _filter_calls(kernel: ctypes.CDLL, machine: str) -> bool:
    """Make the kernel refuse unsafe system calls (``REFUSED``). Return whether that worked."""
    if machine not in REFUSED or sys.maxsize < 2**32:
        return False
    load, equal, above, any_of, leave = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, unknown = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
    numbers = REFUSED[machine] + REFUSED_EVERYWHERE
    # Instruction format: opcode, instructions to skip if true, instructions to skip if false,
    # operand.
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, ARCHITECTURES[machine]),
        (leave, 0, 0, refuse),
        (load, 0, 0, 0),  # the system call number
        (above, 0, 1, 0x40000000),  # x32 calls use different numbers
        (leave, 0, 0, refuse),
        (equal, 0, 1, CLONE3),  # filters can't read clone3's flags; libraries fall back to clone
        (leave, 0, 0, unknown),
        *(line for n in numbers for line in ((equal, 0, 1, n), (leave, 0, 0, refuse))),
        (equal, 0, 3, CLONE[machine]),
        (load, 0, 0, 16),  # its flags
        (any_of, 1, 0, CLONE_THREAD),
        (leave, 0, 0, refuse),
        (leave, 0, 0, allow),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    sock_fprog = struct.pack("HP", len(program), ctypes.addressof(code))
    return bool(kernel.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, sock_fprog, 0, 0) == 0)


def _refuse(event: str, _: object) -> None:
    if event.startswith(REFUSED_EVENTS):
        raise PermissionError(f"{event} is not allowed in code that handles a model's output")


if __name__ == "__main__":
    main()
