"""Runs commands in a sandbox for ``bubblewrap.py``, which runs outside.

    python -I -S inside.py

This is the sandbox's first process, so processes that a command leaves running (a terminal, a
server) continue until the sandbox ends. Its standard input is a socket. Each message has five
descriptors: a socket for one command, a JSON file with the command ("argv", "cwd", "env"), and the
command's input, output and errors. It sends the exit status over the command's socket; if that is
closed earlier, it kills the command and its process group. It does not import evert.
"""

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading

NO_PROGRAM = 127

LONGEST_FILE = 2**30
"""Maximum bytes of a file written in the sandbox, and of a command's output."""


def main() -> None:
    """Run the requested commands until the socket is closed."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (LONGEST_FILE, LONGEST_FILE))
    inbox = socket.socket(fileno=0)
    while True:
        word, descriptors, _, _ = socket.recv_fds(inbox, 1, 5)
        if not word:
            return
        threading.Thread(target=_answer, args=descriptors, daemon=True).start()


def _answer(reply: int, request: int, *files: int) -> None:
    with open(request, "rb") as file:
        command = json.load(file)
    try:
        stdin, stdout, stderr = files
        process = subprocess.Popen(
            command["argv"], cwd=command["cwd"], env=command["env"], start_new_session=True,
            stdin=stdin, stdout=stdout, stderr=stderr,
        )  # fmt: skip
        status = _status(process, reply)
    except (OSError, ValueError) as error:  # ValueError: a null character in an argument
        os.write(files[2], f"{error}\n".encode())
        status = NO_PROGRAM
    for descriptor in files:
        os.close(descriptor)
    with socket.socket(fileno=reply) as caller:
        caller.send(str(status).encode(), socket.MSG_NOSIGNAL)


def _status(process: "subprocess.Popen[bytes]", reply: int) -> int:
    """Wait for the command, or kill it when its caller gives up; return its exit status."""
    if sys.platform != "linux":  # so that mypy checks the rest for Linux only
        raise NotImplementedError("Sandboxes need Linux.")
    ended, poll = os.pidfd_open(process.pid), select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(reply, select.POLLIN)
    if (ended, select.POLLIN) not in poll.poll():
        os.killpg(process.pid, signal.SIGKILL)
    os.close(ended)
    status = process.wait()
    return status if status >= 0 else 128 - status  # as in a shell


if __name__ == "__main__":
    main()
