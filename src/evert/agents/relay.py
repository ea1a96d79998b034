"""A relay in a sandbox, which forwards connections to loopback ports to Unix sockets outside it.

    python -I -S relay.py PORT=SOCKET... -- COMMAND...

``sandbox.py`` starts commands through this script. The script starts listening before it runs the
command, so that even an immediate call works, and exits with the status of the command.

To keep startup fast, it does not import evert. It imports ``_signal`` and ``_socket``, because
``signal`` and ``socket`` take longer to load than everything else. Threads import ``socket`` later,
when the command is already running.
"""

import _signal  # type: ignore[import-not-found]
import _socket
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket as Socket

CHUNK = 2**16
BACKLOG = 1024


def main() -> None:
    """Listen on the ports, run the command given in the arguments, and exit with its status."""
    split = sys.argv.index("--")
    pairs = [pair.partition("=") for pair in sys.argv[1:split]]
    listeners = [(_listener(int(port)), path) for port, _, path in pairs]
    command = os.fork()
    if command == 0:
        for listener, _ in listeners:
            os.close(listener)
        _become(sys.argv[split + 1 :])
    _relay(listeners)
    status = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
    os._exit(status if status >= 0 else 128 - status)


def _listener(port: int) -> int:
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.bind(("127.0.0.1", port))
    listener.listen(BACKLOG)
    return listener.detach()


def _become(command: list[str]) -> None:
    with open("/proc/self/environ", "rb") as file:
        if b"\0LC_CTYPE=" not in b"\0" + file.read():
            os.environ.pop("LC_CTYPE", None)  # Python sets it if there is no locale
    for ignored in (_signal.SIGPIPE, _signal.SIGXFSZ):  # Python ignores these
        _signal.signal(ignored, _signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except (OSError, ValueError) as error:
        print(f"Could not start {command[0]!r} in the sandbox: {error}", file=sys.stderr)
        os._exit(127)


def _relay(listeners: list[tuple[int, str]]) -> None:
    """Start relaying, and leave stdin, stdout and stderr to the command."""
    from threading import Thread

    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    for listener in listeners:
        Thread(target=_accept, args=listener, daemon=True).start()


def _accept(listener: int, path: str) -> None:
    from socket import socket
    from threading import Thread

    with socket(fileno=listener) as clients:
        while True:
            Thread(target=_connect, args=(clients.accept()[0], path), daemon=True).start()


def _connect(client: "Socket", path: str) -> None:
    from socket import AF_UNIX, IPPROTO_TCP, TCP_NODELAY, socket
    from threading import Thread

    with client, socket(AF_UNIX) as outside:
        try:
            outside.connect(path)
        except OSError:  # the model is no longer served, so close the client's connection
            return
        client.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
        upload = Thread(target=_pump, args=(client, outside), daemon=True)
        upload.start()
        _pump(outside, client)
        upload.join()


def _pump(source: "Socket", sink: "Socket") -> None:
    how, sockets = _socket.SHUT_WR, [sink]
    try:
        while data := source.recv(CHUNK):
            sink.sendall(data)
    except OSError:  # one side has closed the connection, so close the other one as well
        how, sockets = _socket.SHUT_RDWR, [source, sink]
    for end in sockets:
        try:
            end.shutdown(how)
        except OSError:  # already closed
            continue


if __name__ == "__main__":
    main()
