"""The system calls that a sandbox refuses: a filter (classic BPF) for bubblewrap's ``--seccomp``.

Namespaces separate files, processes and networks, but not all of the kernel: a sandbox shares the
user's keys and the sockets to a virtual machine's host. The filter refuses calls that reach beyond
a sandbox and that agents' programs (shells, git, compilers, Python, Node, Go, Rust, debuggers) do
not need:

- the calls in ``REFUSED``, grouped by reason;
- ``clone`` and ``unshare`` with a new namespace, and ``clone3``, whose flags a filter cannot read;
  libraries then fall back to ``clone``;
- sockets, except Unix, IP, and netlink route sockets, with which programs list their addresses:
  AF_VSOCK reaches the host; AF_ALG, AF_PACKET and others reach drivers;
- ``ioctl`` calls that type into a terminal;
- 32-bit and x32 calls, and calls that are newer than this list.

``ptrace``, System V and POSIX message queues, ``seccomp`` and Landlock stay allowed, because they
reach only processes of the same sandbox.
"""

import errno
import platform
import struct
from typing import TypeAlias

MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""The kernel's number of each architecture, AUDIT_ARCH_*; in the order of the numbers below."""

REFUSED = {
    "the keys of the trainer's user and session, such as Kerberos's":
        "add_key 248 217, keyctl 250 219, request_key 249 218",
    "makes calls that no filter sees":
        "io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427",
    "runs code in the kernel, looks at it or holds it up":
        "bpf 321 280, perf_event_open 298 241, userfaultfd 323 282, modify_ldt 154 -",
    "opens another view of the files, or the namespaces of another process":
        "mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51, open_tree 428 428, "
        "move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433, "
        "mount_setattr 442 442, open_tree_attr 467 467, open_by_handle_at 304 265, setns 308 268",
    "tells what other users do":
        "fanotify_init 300 262, syslog 103 116",
    "changes the machine; needs capabilities, too":
        "acct 163 89, quotactl 179 60, quotactl_fd 443 443, swapon 167 224, swapoff 168 225, "
        "reboot 169 142, kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, "
        "finit_module 313 273, delete_module 176 106, iopl 172 -, ioperm 173 -",
}  # fmt: skip
"""Reason -> calls with their numbers on x86_64 and aarch64."""

LAST = 469
"""The last call of Linux 6.18, for which the list was made."""

CLONE, CLONE3, UNSHARE, IOCTL = (56, 220), (435, 435), (272, 97), (16, 29)
SOCKET, SOCKETPAIR = (41, 198), (53, 199)
NAMESPACES, TIME_NAMESPACE = 0x7E020000, 0x80  # ``clone`` reads the second as part of a signal
TYPING = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
UNIX, INET, INET6, NETLINK, ROUTE = 1, 2, 10, 16, 0

NUMBER, ARCHITECTURE, ARGUMENTS = 0, 4, 16
"""Offsets in the data of a call; arguments have 8 bytes, the lower half first."""
LOAD, EQUAL, GREATER, ANY_BIT, RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
ALLOW, ERROR = 0x7FFF0000, 0x00050000

Instruction: TypeAlias = tuple[int, int, int, int]
"""Code, how many instructions to skip if the test is true, and how many if it is false, value."""


def seccomp_filter(machine: str = platform.machine()) -> bytes:
    """Return the filter for a machine, a key of ``MACHINES``."""
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
        *_refuse(GREATER, LAST, errno.ENOSYS),  # x32's numbers, too
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
    """Allow the socket families named above by skipping to the end of the call's instructions."""
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
