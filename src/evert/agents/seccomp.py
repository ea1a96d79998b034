"""The system calls blocked in a sandbox, as a classic BPF filter for bubblewrap's ``--seccomp``.

Namespaces isolate files, processes and networks, but not the whole kernel. For example, they do not
block access to the user's keys, or to sockets that reach a virtual machine's host. The filter
blocks calls that reach beyond the sandbox and that are not needed by typical programs (shells, git,
compilers, Python, Node, Go, Rust, debuggers):

- the calls in ``REFUSED``, grouped by reason;
- ``clone`` and ``unshare`` with a new namespace, and ``clone3``, because a filter cannot read its
  flags (libraries fall back to ``clone``);
- sockets, except for Unix, IP and netlink route sockets (used to list addresses). For example,
  AF_VSOCK reaches the host, and AF_ALG and AF_PACKET reach drivers;
- ``ioctl`` calls that simulate terminal input;
- 32-bit and x32 calls, and system calls that are newer than this list.

``ptrace``, System V and POSIX message queues, ``seccomp`` and Landlock are still allowed, because
they only affect processes in the same sandbox.
"""

import errno
import platform
import struct
from typing import TypeAlias

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's AUDIT_ARCH_* constants, in the same order as the call numbers below."""

REFUSED = {
    "the keys of the trainer's user and session, such as Kerberos's":
        "add_key 248 217, keyctl 250 219, request_key 249 218",
    "makes calls that filters cannot see":
        "io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427",
    "runs code in the kernel, inspects it or stalls it":
        "bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, modify_ldt 154 -",
    "opens a different view of the file system, or the namespaces of another process":
        "mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428, "
        "move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, "
        "mount_setattr 442 442, open_tree_attr 467 467, open_by_handle_at 304 265, setns 308 268",
    "reveals what other users do":
        "fanotify_init 300 262, syslog 103 116",
    "changes the machine (also needs capabilities)":
        "acct 163 89, quotactl 179 60, quotactl_fd 443 443, swapon 167 224, swapoff 168 225, "
        "reboot 169 142, kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, "
        "finit_module 313 273, delete_module 176 106, iopl 172 -, ioperm 173 -",
}  # fmt: skip
"""Reason -> system calls with their numbers on x86_64 and aarch64."""

LAST = 469
"""The last system call in Linux 6.18, on which the list is based."""

CLONE, CLONE3, UNSHARE, IOCTL = (56, 220), (435, 435), (272, 97), (16, 29)
SOCKET, SOCKETPAIR = (41, 198), (53, 199)
NAMESPACES, TIME_NAMESPACE = 0x7E020000, 0x80  # in ``clone``, 0x80 is part of the signal number
TYPING = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
UNIX, INET, INET6, NETLINK, ROUTE = 1, 2, 10, 16, 0

NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in the call data. Arguments are 8 bytes long, lower half first."""
LOAD, EQUAL, GREATER, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000

Instruction: TypeAlias = tuple[int, int, int, int]
"""Opcode, number of instructions to skip if the test is true and if it is false, value."""


def seccomp_filter(machine: str = platform.machine()) -> bytes:
    """Return the filter for a machine type, which must be a key of ``MACHINES``."""
    column = [*MACHINES].index(machine)
    calls = [call.split() for group in REFUSED.values() for call in group.split(", ")]
    refused = [int(numbers[column]) for _, *numbers in calls if numbers[column] != "-"]
    typing = [line for value in TYPING.values() for line in _refuse(EQUAL, value)]
    clone = [_argument(0), *_refuse(ANY_BIT, NAMESPACES)]
    unshare = [_argument(0), *_refuse(ANY_BIT, NAMESPACES | TIME_NAMESPACE)]
    program = [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, MACHINES[machine]),
        _error(errno.ENOSYS),
        (LOAD, 0, 0, NUMBER),
        *_refuse(GREATER, LAST, errno.ENOSYS),  # also rejects x32 calls
        *_refuse(EQUAL, CLONE3[column], errno.ENOSYS),
        *(line for number in refused for line in _refuse(EQUAL, number)),
        *_if_call(CLONE[column], clone),
        *_if_call(UNSHARE[column], unshare),
        *_if_call(IOCTL[column], [_argument(1), *typing]),
        *_if_call(SOCKET[column], _family()),
        *_if_call(SOCKETPAIR[column], _family()),
        (RETURN, 0, 0, ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


def _if_call(number: int, body: list[Instruction]) -> list[Instruction]:
    return [(EQUAL, 0, len(body) + 1, number), *body, (RETURN, 0, 0, ALLOW)]


def _refuse(test: int, value: int, error: int = errno.EPERM) -> list[Instruction]:
    return [(test, 0, 1, value), _error(error)]


def _error(number: int) -> Instruction:
    return (RETURN, 0, 0, ERROR | number)


def _argument(index: int) -> Instruction:
    return (LOAD, 0, 0, ARGUMENTS + 8 * index)


def _family() -> list[Instruction]:
    """Allow the socket families described above by skipping to the end of the instructions."""
    return [
        _argument(0),
        (EQUAL, 7, 0, UNIX),
        (EQUAL, 6, 0, INET),
        (EQUAL, 5, 0, INET6),
        (EQUAL, 1, 0, NETLINK),
        _error(errno.EAFNOSUPPORT),
        _argument(2),
        (EQUAL, 1, 0, ROUTE),
        _error(errno.EPROTONOSUPPORT),
    ]
