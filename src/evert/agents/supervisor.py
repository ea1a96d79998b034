"""A supervisor process, which runs a command and stops everything that the command started.

    python -I -S supervisor.py OUT ERR KEEP_LC_CTYPE COUNT FOLDER... COMMAND...

``commands.py`` starts one supervisor per command. The command runs as its child, in a new session.
On Linux, the supervisor is a "subreaper", which means that it becomes the parent of all descendants
that lose their parent. A supervisor without children therefore has no descendants.

The supervisor kills all descendants when the command has exited, when it reads a byte from stdin,
or when the trainer dies. In the last case, it also removes the ``COUNT`` folders. It notices the
trainer's death because the kernel then closes stdin and sends SIGCONT, which is needed if a fork of
the trainer keeps stdin open. The supervisor prints a single line: "ended STATUS", or "failed ERRNO"
if the program cannot be started.

The command can send signals to the supervisor. The supervisor blocks all of them except for
SIGKILL and SIGSTOP, which cannot be blocked. SIGCONT resumes a stopped supervisor. The trainer
sends it at the end, and the kernel sends it when the trainer dies.

The supervisor copies the command's outputs from pipes to the files ``OUT`` and ``ERR`` (file
descriptors). Only the end of each output is kept, so that long outputs do not fill the disk. To
keep startup fast, it does not import evert.
"""

import ctypes
import os
import select
import signal
import sys
from contextlib import suppress

KEPT_OUTPUT = 2**20
"""Bytes to keep from the end of each output. The file may contain up to twice as many bytes."""

CHUNK = 2**16
PIPE_SIZE = 2**20
"""Maximum capacity of a pipe, in bytes."""
FIRST_PAUSE, LONGEST_PAUSE = 0.0005, 0.1
"""Seconds between attempts to kill processes that do not exit immediately."""

LAST_WORD = 10.0
"""Seconds to wait for the trainer to write to the lifeline, or for the kernel to close it."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
KEYCTL, KEYCTL_JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HANDLED = (signal.SIGCHLD, signal.SIGCONT, *ENDING)
LIFELINE, REPORTS = 0, 1
"""Descriptors of the pipe from the trainer and the pipe to the trainer."""


class Tail:
    """The tail of a command's output, stored in a file of at most twice ``KEPT_OUTPUT`` bytes."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.size = 0
        self.source, self.entrance = os.pipe()
        os.set_blocking(self.source, False)

    def pump(self) -> bool:
        """Copy available output to the file. Returns False if the pipe was empty or closed."""
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return False
        with suppress(OSError):  # keep the command running even if the disk is full
            self._add(data)
        return bool(data)

    def _add(self, data: bytes) -> None:
        if self.size + len(data) > 2 * KEPT_OUTPUT:
            tail = os.pread(self.file, KEPT_OUTPUT, self.size - KEPT_OUTPUT)
            os.pwrite(self.file, tail, 0)
            os.ftruncate(self.file, len(tail))
            self.size = len(tail)
        self.size += os.pwrite(self.file, data, self.size)


def main() -> None:
    """Run the command given in the arguments, then stop all processes that it started."""
    trainer = os.getppid()
    out, err, keeps_lc_ctype, count, *arguments = sys.argv[1:]
    folders, command = arguments[: int(count)], arguments[int(count) :]
    if keeps_lc_ctype != "True":
        os.environ.pop("LC_CTYPE", None)  # Python sets it if there is no locale
    _on_linux(PR_SET_CHILD_SUBREAPER, 1)
    _on_linux(PR_SET_PDEATHSIG, signal.SIGCONT)
    _on_linux(PR_SET_DUMPABLE, 0)  # only root may trace this process or read its memory
    _leave_keys()
    alarm = _alarm()
    for file in (int(out), int(err)):
        os.set_inheritable(file, False)
    tails = [Tail(int(out)), Tail(int(err))]
    try:
        pid = _start(command, tails)
    except OSError as error:
        _report(f"failed {error.errno}")
        return
    for tail in tails:
        os.close(tail.entrance)
    try:
        _watch(pid, tails, alarm, trainer)
    finally:
        _end_all(pid)
    for tail in tails:  # drain the pipes; bounded, because other processes may keep writing
        for _ in range(PIPE_SIZE // CHUNK):
            tail.pump()
    os.close(REPORTS)
    if os.getppid() != trainer or _is_abandoned():
        for folder in folders:
            remove(folder)


def _is_abandoned() -> bool:
    """Return whether the lifeline was closed without a byte, which means the trainer died."""
    if not select.select([LIFELINE], [], [], LAST_WORD)[0]:
        return False  # kept open by a fork of the trainer
    return os.read(LIFELINE, 1) == b""


def _on_linux(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _leave_keys() -> None:
    """Join a new session keyring, as the trainer's keyring may contain keys (such as Kerberos')."""
    if sys.platform == "linux" and (number := KEYCTL.get(os.uname().machine)):
        ctypes.CDLL(None).syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None)


def _alarm() -> int:
    """Return a file descriptor that becomes readable on any of the ``HANDLED`` signals."""
    alarm, entrance = os.pipe()
    os.set_blocking(alarm, False)
    os.set_blocking(entrance, False)
    signal.set_wakeup_fd(entrance, warn_on_full_buffer=False)
    for number in HANDLED:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - {*HANDLED})
    return alarm


def _start(command: list[str], tails: list[Tail]) -> int:
    supervisor = os.getpid()
    failure, entrance = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            _become(command, tails, supervisor)
        except OSError as error:
            os.write(entrance, str(error.errno).encode())
        finally:
            os._exit(127)
    os.close(entrance)
    if number := os.read(failure, 16):  # a successful exec closes the pipe, so this is empty
        raise OSError(int(number), "")
    os.close(failure)
    return pid


def _become(command: list[str], tails: list[Tail], supervisor: int) -> None:
    os.setsid()
    _on_linux(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        return
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, tail in enumerate(tails, start=1):
        os.dup2(tail.entrance, number)
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # ignored by Python
        signal.signal(ignored, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.execvp(command[0], command)


def _watch(pid: int, tails: list[Tail], alarm: int, trainer: int) -> None:
    sources = {tail.source: tail for tail in tails}
    poll = select.poll()
    for source in (LIFELINE, alarm, *sources):
        poll.register(source, select.POLLIN)
    while True:
        for source, _ in poll.poll():
            if source == LIFELINE:
                return
            if source == alarm:
                if {*os.read(alarm, CHUNK)} & {*ENDING} or os.getppid() != trainer:
                    return
                if (status := _reap(pid)) is not None:
                    _report(f"ended {status}")
                    return
            elif not sources[source].pump():  # closed
                poll.unregister(source)


def _reap(pid: int) -> int | None:
    """Reap children that have exited. If the command is one of them, returns its status."""
    while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
        if ended[0] == pid:
            return os.waitstatus_to_exitcode(ended[1])
    return None


def _report(line: str) -> None:
    with suppress(OSError):  # the trainer has exited
        os.write(REPORTS, f"{line}\n".encode())


# -- the end ---------------------------------------------------------------------------------------


def _end_all(pid: int) -> None:
    """Kill and reap children until no children, and hence no descendants, are left.

    A process group is killed in a single call, so that processes cannot escape by forking. A
    descendant in a different group loses its parent and becomes our child, so it is killed in the
    next iteration.
    """
    with suppress(OSError):  # get ahead of processes that fork endlessly; needs root
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    if sys.platform != "linux":  # we cannot find grandchildren, but we can kill their group
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)
    pause = FIRST_PAUSE
    with suppress(ChildProcessError):
        while True:
            children = _children()
            for child in children:
                _kill(child)
            ended = sum(os.waitpid(-1, os.WNOHANG)[0] > 0 for _ in range(len(children) + 1))
            pause = FIRST_PAUSE if ended else min(2 * pause, LONGEST_PAUSE)
            if not ended:
                select.select([], [], [], pause)


def _kill(child: int) -> None:
    """Kill a child and its group. The PID cannot be reused before the child is reaped."""
    with suppress(OSError):  # it has exited, or belongs to a different user
        os.kill(child, signal.SIGKILL)
        if (group := os.getpgid(child)) != os.getpgrp():
            os.killpg(group, signal.SIGKILL)


def _children() -> list[int]:
    """Return the children listed by the system, some of which may have exited."""
    me = os.getpid()
    with suppress(OSError), open(f"/proc/self/task/{me}/children") as file:
        return [*map(int, file.read().split())]
    with suppress(OSError):  # for kernels without that file
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == me]
    return []


def _parent(process: str) -> int:
    with suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
    return 0


def remove(folder: str) -> str:
    """Remove a folder, whatever its depth and permissions. Returns "", or why this failed."""
    import subprocess

    parent, name = os.path.split(folder)
    if mounts := _mounts_in(os.path.join(os.path.realpath(parent), name)):
        return f"something is mounted in it: {', '.join(mounts)}"
    delete = ["rm", "-rf", "--", folder]  # Python's rmtree fails at a depth of 1,000
    unlock = ["find", folder, "-type", "d", "!", "-perm", "-700", "-execdir", "chmod", "700", "{}"]
    for step in (delete, [*unlock, ";"], delete):
        if os.path.lexists(folder):
            subprocess.run(step, check=False, stderr=subprocess.DEVNULL)
    return "its files cannot be removed" if os.path.lexists(folder) else ""


def _mounts_in(folder: str) -> list[str]:
    inside = os.fsencode(folder).replace(b"\\", rb"\134").replace(b" ", rb"\040") + b"/"
    with suppress(OSError), open("/proc/self/mountinfo", "rb") as file:
        points = [line.split()[4] for line in file]
        return [os.fsdecode(point) for point in points if point.startswith(inside)]
    return []


if __name__ == "__main__":
    main()
