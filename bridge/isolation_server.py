"""The process that forks isolates, which run code on a model's output.

    python -P isolation_server.py CONTROL TRAINER

``isolation.py`` starts it, and for each isolate sends a byte with two sockets: a channel, and one
that ends the isolate when it is closed. The first message on the channel says how to make the
function. The server makes the function once, and each isolate inherits it through a fork, which
takes milliseconds. Then the isolate reads calls and writes results. Only the trainer writes calls,
which are pickles. Results are lines of JSON, so an answer that takes control of its isolate still
cannot run code in the trainer.

In this file: the server, an isolate, its confinement. Only ``_confine`` differs by operating
system. On Linux the kernel ends an isolate with its server, limits its memory, and refuses new
sockets, processes, signals to others (seccomp) and file changes (Landlock). Elsewhere an audit hook
refuses them if they go through Python's modules. To start fast, the server does not import evert.
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
"""Maximum memory of an isolate, in addition to the server's."""

IDLE = 300
"""Seconds after which a server without isolates ends; the next isolate starts another server."""

LONGEST_CALL = 10
"""Seconds after which the kernel ends an isolate's call, in case the server has been killed."""

HEADER = struct.Struct("!Q")
"""The length of a message to an isolate, which is sent before the message."""


def main() -> None:
    """Fork isolates until the trainer ends."""
    control, trainer = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    functions: dict[bytes, Callable[..., Any]] = {}
    isolates: dict[int, int] = {}  # socket -> the process that ends with it
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
    """Fork an isolate; return its process id, or 0 if its function cannot be made."""
    with channel.makefile("rb") as requests:
        name = _message(requests)
        try:
            if name not in functions:
                make, arguments = pickle.loads(name)
                functions[name] = make(*arguments)
                gc.freeze()  # so that forks copy less memory
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
    with suppress(ConnectionError):  # the trainer has closed it
        channel.sendall(line + b"\n")


def _error(error: BaseException) -> bytes:
    return json.dumps({"error": f"{type(error).__name__}: {error}"[:1000]}).encode()


# -- its confinement -----------------------------------------------------------------------------

PR_SET_PDEATHSIG, PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 1, 22, 38, 2
LANDLOCK_CREATE_RULESET, LANDLOCK_RESTRICT_SELF = 444, 446
FILES, TRUNCATE = 0x1FF2, 1 << 14
"""Landlock's rights to write, make and remove files; ``TRUNCATE`` needs Landlock version 3."""

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
CLONE, CLONE3, CLONE_THREAD = {"x86_64": 56, "aarch64": 220}, 435, 0x10000
REFUSED = {
    "x86_64": (41, 57, 58, 59, 62, 101, 129, 160, 200, 234, 297, 302, 310, 311, 322),
    "aarch64": (198, 221, 129, 117, 138, 164, 130, 131, 240, 261, 270, 271, 281),
}
"""socket, fork, vfork (both x86_64 only), execve, kill, ptrace, rt_sigqueueinfo, setrlimit, tkill,
tgkill, rt_tgsigqueueinfo, prlimit64, process_vm_readv, process_vm_writev, execveat."""

REFUSED_EVERYWHERE = (424, 425, 438)
"""pidfd_send_signal, io_uring_setup, pidfd_getfd, which have these numbers on all architectures."""

REFUSED_EVENTS = ("socket.", "subprocess.", "os.exec", "os.fork", "os.kill", "os.system")
"""The audit events that the Python hook refuses if the kernel does not filter system calls."""


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
    """Make the kernel refuse system calls; return whether that worked."""
    if machine not in REFUSED or sys.maxsize < 2**32:
        return False
    load, equal, above, any_of, leave = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, refuse, unknown = 0x7FFF0000, 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS
    numbers = REFUSED[machine] + REFUSED_EVERYWHERE
    # An instruction: its code, how many instructions to skip if true and if false, its operand.
    program = [
        (load, 0, 0, 4),  # the architecture
        (equal, 1, 0, ARCHITECTURES[machine]),
        (leave, 0, 0, refuse),
        (load, 0, 0, 0),  # the call's number
        (above, 0, 1, 0x40000000),  # x32 calls have different numbers
        (leave, 0, 0, refuse),
        (equal, 0, 1, CLONE3),  # a filter cannot read its flags; libraries fall back to clone
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
        raise PermissionError(f"{event} is refused to code that runs on a model's output")


if __name__ == "__main__":
    main()
