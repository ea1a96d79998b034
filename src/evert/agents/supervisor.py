"""A command's supervisor: a process of its own, which ends when nothing is left of the command.

    python -I -S supervisor.py OUT ERR KEEP_LC_CTYPE COUNT FOLDER... COMMAND...

``commands.py`` starts one for each command. The command runs in a session of its own below it, and
whatever that starts stays below it, too: on Linux the supervisor is the "subreaper", to whom every
descendant falls that loses its parent. So, when it has no child left, it has no descendant left.

It ends all of them when the command has ended, when it is told to (a word comes in by its standard
input), or when the trainer is gone, however that went: the kernel closes the other end, and signals
the supervisor, since a fork of the trainer's may still hold that end open. Then it removes the
``COUNT`` folders. It prints one line: "ended STATUS", or "failed ERRNO" where there is no such
program.

The command may signal it, too: what nobody can block is SIGKILL, and SIGSTOP, after which it goes
on at the SIGCONT that the trainer sends at the end, and the kernel when the trainer dies.

The command's outputs come through pipes into the files ``OUT`` and ``ERR`` (descriptors), of which
only the end is kept, so that a flood fills no disk. It imports nothing of ours, to start soon.
"""

import ctypes
import os
import select
import signal
import sys
from contextlib import suppress

KEPT_OUTPUT = 2**20
"""Bytes of the end of each output that are kept for certain; twice as many may be."""

CHUNK = 2**16
MOST_LEFT = 2**20
"""Bytes that a pipe holds at most."""
FIRST_PAUSE, LONGEST_PAUSE = 0.0005, 0.1
"""Seconds between two attempts to end what does not end at once."""

LAST_WORD = 10.0
"""Seconds that a trainer has to say that it is still there, or to be gone."""

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 1, 4, 36
KEYCTL, KEYCTL_JOIN_SESSION_KEYRING = {"x86_64": 250, "aarch64": 219}, 1
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
HEARD = (signal.SIGCHLD, signal.SIGCONT, *ENDING)
LIFELINE, REPORTS = 0, 1
"""Descriptors that lead to the trainer."""


class Tail:
    """The end of an output, in a file that does not grow over twice ``KEPT_OUTPUT``."""

    def __init__(self, file: int) -> None:
        self.file = file
        self.size = 0
        self.source, self.entrance = os.pipe()
        os.set_blocking(self.source, False)

    def pump(self) -> bool:
        """Write down what there is to read now; whether there was anything."""
        try:
            data = os.read(self.source, CHUNK)
        except BlockingIOError:
            return False
        with suppress(OSError):  # the disk is full: the command goes on all the same
            self._add(data)
        return bool(data)

    def _add(self, data: bytes) -> None:
        if self.size + len(data) > 2 * KEPT_OUTPUT:
            kept = os.pread(self.file, KEPT_OUTPUT, self.size - KEPT_OUTPUT)
            os.pwrite(self.file, kept, 0)
            os.ftruncate(self.file, len(kept))
            self.size = len(kept)
        self.size += os.pwrite(self.file, data, self.size)


def main() -> None:
    """Run the command that the arguments name, and end with all that it started."""
    trainer = os.getppid()
    out, err, keeps_lc_ctype, count, *rest = sys.argv[1:]
    folders, command = rest[: int(count)], rest[int(count) :]
    if keeps_lc_ctype != "True":
        os.environ.pop("LC_CTYPE", None)  # Python sets it for itself, where no locale is set
    _on_linux(PR_SET_CHILD_SUBREAPER, 1)
    _on_linux(PR_SET_PDEATHSIG, signal.SIGCONT)
    _on_linux(PR_SET_DUMPABLE, 0)  # nobody but root looks into it, or traces it
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
    finally:  # whatever goes wrong here
        _end_all(pid)
    for tail in tails:  # what is left in the pipe, though somebody else may hold it, and write on
        for _ in range(MOST_LEFT // CHUNK):
            tail.pump()
    os.close(REPORTS)
    if os.getppid() != trainer or _is_abandoned():
        for folder in folders:
            remove(folder)


def _is_abandoned() -> bool:
    """Whether the lifeline is closed without a word, as the kernel does for the dead."""
    if not select.select([LIFELINE], [], [], LAST_WORD)[0]:
        return False  # a fork of the trainer's holds it
    return os.read(LIFELINE, 1) == b""


def _on_linux(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _leave_keys() -> None:
    """Have a keyring of its own: Kerberos and others keep keys in that of the session."""
    if sys.platform == "linux" and (number := KEYCTL.get(os.uname().machine)):
        ctypes.CDLL(None).syscall(number, KEYCTL_JOIN_SESSION_KEYRING, None)


def _alarm() -> int:
    """A descriptor that is readable once a child has ended, or a signal says to end."""
    alarm, entrance = os.pipe()
    os.set_blocking(alarm, False)
    os.set_blocking(entrance, False)
    signal.set_wakeup_fd(entrance, warn_on_full_buffer=False)
    for number in HEARD:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals() - {*HEARD})
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
    if found := os.read(failure, 16):  # an exec that succeeds closes it
        raise OSError(int(found), "")
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
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):  # by Python
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
                if (status := _collected(pid)) is not None:
                    _report(f"ended {status}")
                    return
            elif not sources[source].pump():  # closed
                poll.unregister(source)


def _collected(pid: int) -> int | None:
    """Reap children that have ended; the command's exit status if it is one of them."""
    while (ended := os.waitpid(-1, os.WNOHANG)) != (0, 0):
        if ended[0] == pid:
            return os.waitstatus_to_exitcode(ended[1])
    return None


def _report(line: str) -> None:
    with suppress(OSError):  # the trainer is gone
        os.write(REPORTS, f"{line}\n".encode())


# -- the end ---------------------------------------------------------------------------------------


def _end_all(pid: int) -> None:
    """Kill and reap until no child is left, and so no descendant.

    A group is killed as one, so that no fork of a member escapes. A process of another group loses
    its parent, and so becomes a child here that the next round kills.
    """
    with suppress(OSError):  # only root may go before the flood
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    if sys.platform != "linux":  # children of its children are not to be found: its group is
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
    """Kill a child and its group. Its number is not used again before it is reaped."""
    with suppress(OSError):  # gone, or a program of another user
        os.kill(child, signal.SIGKILL)
        if (group := os.getpgid(child)) != os.getpgrp():
            os.killpg(group, signal.SIGKILL)


def _children() -> list[int]:
    """The children, as far as the system says; those that have ended may be among them."""
    me = os.getpid()
    with suppress(OSError), open(f"/proc/self/task/{me}/children") as file:
        return [*map(int, file.read().split())]
    with suppress(OSError):  # a kernel without that file
        return [int(name) for name in os.listdir("/proc") if name.isdigit() and _parent(name) == me]
    return []


def _parent(process: str) -> int:
    with suppress(OSError), open(f"/proc/{process}/stat", "rb") as file:
        return int(file.read().rpartition(b")")[2].split()[1])
    return 0


def remove(folder: str) -> str:
    """Remove a folder, of any depth and permissions, and follow no link; why it is still there."""
    import subprocess

    parent, name = os.path.split(folder)
    if mounted := _mounts_in(os.path.join(os.path.realpath(parent), name)):
        return f"something is mounted in it: {', '.join(mounted)}"
    gone = ["rm", "-rf", "--", folder]  # of any depth, where Python's own ends at 1,000
    opened = ["find", folder, "-type", "d", "!", "-perm", "-700", "-execdir", "chmod", "700", "{}"]
    for step in (gone, [*opened, ";"], gone):
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
