"""Run commands inside a sandbox on behalf of ``bubblewrap.py``, which runs outside it.

    python -I -S inside.py

This is the sandbox's init process, so a command's background processes (a terminal, a server) keep
running until the sandbox stops. Its stdin is a socket. Each message contains five file descriptors:
a socket for one command, a JSON file with the command ("argv", "cwd", "env"), and the command's
stdin, stdout and stderr. We send the exit status over the command's socket. If that socket is
closed first, we kill the command and its process group. This file does not import evert.
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
"""Maximum size in bytes of each file that is written in the sandbox, and of a command's output."""


def main() -> None:
    """Run commands until the socket is closed."""
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
    except (OSError, ValueError) as error:  # ValueError: null character in an argument
        os.write(files[2], f"{error}\n".encode())
        status = NO_PROGRAM
    for descriptor in files:
        os.close(descriptor)
    with socket.socket(fileno=reply) as caller:
        caller.send(str(status).encode(), socket.MSG_NOSIGNAL)


def _status(process: "subprocess.Popen[bytes]", reply: int) -> int:
    """Return the command's exit status. If the caller closes the socket, kill the command."""
    if sys.platform != "linux":  # tells mypy that the rest runs on Linux
        raise NotImplementedError("Sandboxes require Linux.")
    ended, poll = os.pidfd_open(process.pid), select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(reply, select.POLLIN)
    if (ended, select.POLLIN) not in poll.poll():
        os.killpg(process.pid, signal.SIGKILL)
    os.close(ended)
    status = process.wait()
    return status if status >= 0 else 128 - status  # like a shell


if __name__ == "__main__":
    main()
