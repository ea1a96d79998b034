"""Isolates: sandboxed processes for code that handles a model's output, such as a scorer.

    async with isolate(make, *arguments) as call:
        value = await call(*more)

An answer of 13 characters can keep sympy busy for minutes, and a scorer that calls ``eval`` runs
whatever code an answer contains. So ``make(*arguments)`` runs once in a server process
(``isolation_server.py``), and each isolate is a fork of that process, with no network access and
with limits on time and memory. A malicious answer can only damage its own isolate, and it does not
block the event loop. Each process starts one server, when it opens its first isolate.

Agents, tasksets and trainers all use isolates, so this file sits at the bottom of the bridge, next
to ``off_loop``. It contains the errors, the isolates, and the client side of the server.
"""

import asyncio
import atexit
import json
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import cache, partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from evert.bridge.errors import NEEDS_UNIX, EvertError
from evert.bridge.off_loop import acquire, off_loop

SECONDS = 3.0
"""Maximum duration of a call, in seconds."""

LONGEST_RESULT = 2**22
"""Maximum size of a result, in bytes."""

AT_ONCE = min(os.cpu_count() or 1, 8)
"""Maximum number of calls that run in parallel; additional calls wait."""

STOPPED = "scorer_stopped"
"""Metric of agents with an isolated scorer: 1 if the scorer hit a limit, 0 otherwise."""

_VARIABLES = ("PATH", "HOME", "TMPDIR", "LANG", "LC_ALL", "LD_LIBRARY_PATH")
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # a fork has only one thread

Make = Callable[..., Callable[..., Any]]
"""A module-level function that returns the function to call.

It runs in the server process, once per set of arguments, so it must not handle a model's output.
"""


class IsolateError(EvertError, RuntimeError):
    """The function in an isolated process raised an exception, or could not be created."""


class IsolateLimitError(IsolateError, TimeoutError):
    """A call in an isolated process used too much time or memory, or the process exited."""


# -- isolates ------------------------------------------------------------------------------------


@asynccontextmanager
async def isolate(make: Make, *arguments: Any) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
    """Open an ``Isolate`` for an ``async with`` block. Yields an async version of its ``call``."""
    run = partial(asyncio.get_running_loop().run_in_executor, _threads())
    making = run(partial(Isolate, make, *arguments))
    process = await acquire(making, lambda process: off_loop(process.close))
    try:
        yield lambda *args: run(partial(process.call, *args))
    finally:
        process.close()


def import_function(path: str, *example: Any) -> Callable[..., Any]:
    """Import a function for ``make``, and call it once to trigger its lazy imports."""
    function: Callable[..., Any] = resolve_name(path)
    with suppress(Exception):
        function(*example)
    return function


async def isolated_score(client: Any, scorer: tuple[Make, *tuple[Any, ...]], *answer: Any) -> Any:
    """Call a scorer once. Return its result, or None if the scorer raises or exceeds a limit.

    Args:
        client: The agent's client. The metric ``scorer_stopped`` is set to 1 if the scorer
            exceeded a limit (the reason is logged as well), and to 0 otherwise.
        scorer: Arguments for ``isolate``.
        *answer: Arguments for the scorer.
    """
    value, stopped = None, 0.0
    async with isolate(*scorer) as call:
        try:
            value = await call(*answer)
        except IsolateLimitError as error:
            client.log(scorer=str(error))
            stopped = 1.0
        except IsolateError:
            pass  # the scorer cannot parse the answer
    client.metric(STOPPED, stopped)
    return value


class Isolate:
    """A process that calls one function.

    All methods block. Use ``isolate`` in async code.

    Args:
        make: Creates the function.
        *arguments: Arguments for ``make``; they must be picklable.

    Raises:
        IsolateError: ``make`` raised, or no process could be started.
    """

    def __init__(self, make: Make, *arguments: Any) -> None:
        start = _message((make, arguments))
        self._calling = threading.Lock()
        for _ in range(2):  # retry once: the server may have just exited
            server = self._begin(start)
            if (answer := self._answer(None)) is not None:
                break
            self.close()
            server.end()
        else:
            raise IsolateError(
                f"The process that forks isolates exited while calling {make.__qualname__}. Check "
                "that there is enough memory."
            )
        if "error" in answer:
            self.close()
            raise IsolateError(f"{make.__qualname__} raised in an isolate: {answer['error']}")

    def _begin(self, start: bytes) -> "_ForkServer":
        """Ask the server to fork a process, and return the server."""
        server = _server()
        self._socket, remote = socket.socketpair()
        self._life, end = socket.socketpair()
        with remote, end, suppress(OSError):
            server.fork(remote, end)
            self._socket.sendall(start)
        return server

    def call(self, *args: Any) -> Any:
        """Call the function with picklable arguments; return its result after a JSON round trip.

        Raises:
            IsolateError: The function raised.
            IsolateLimitError: The call took longer than ``SECONDS``, used too much memory, or made
                the process exit. Later calls raise this error immediately.
        """
        message, deadline = _message(args), time.monotonic() + SECONDS
        with self._calling:
            try:
                self._socket.settimeout(SECONDS)
                self._socket.sendall(message)
                answer = self._answer(deadline)
            except OSError:
                answer = None
            if answer is None:
                self._end()
                raise IsolateLimitError(
                    f"A call took longer than {SECONDS:g} s, used too much memory, or made its "
                    "process exit."
                )
        if "error" in answer:
            raise IsolateError(str(answer["error"]))
        return answer.get("value")

    def _answer(self, deadline: float | None) -> dict[str, Any] | None:
        """Return the next answer from the process, or None if it is late or too long."""
        line = bytearray()
        try:
            while not line.endswith(b"\n"):
                if deadline is not None:
                    self._socket.settimeout(max(deadline - time.monotonic(), 1e-3))
                part = self._socket.recv(2**16)
                line += part
                if not part or len(line) > LONGEST_RESULT:
                    return None
            answer = json.loads(line)
        except (OSError, ValueError, RecursionError):
            return None
        return answer if isinstance(answer, dict) else None

    def _end(self) -> None:
        for end in (self._life, self._socket):  # shutdown also affects forks and other threads
            with suppress(OSError):  # already closed
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Stop the process."""
        self._end()
        with self._calling:
            self._life.close()
            self._socket.close()


def _message(content: Any) -> bytes:
    pickled = pickle.dumps(content)
    return len(pickled).to_bytes(8, "big") + pickled  # the length prefix matches ``HEADER``


# -- the server ----------------------------------------------------------------------------------


class _ForkServer:
    """The server process, from which the current process's isolates are forked."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._control, remote = socket.socketpair()
        script = Path(__file__).with_name("isolation_server.py")
        environment = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
        with remote:
            self._process = subprocess.Popen(
                # Without -P, files next to the script would shadow installed packages.
                [sys.executable, "-P", script, str(remote.fileno()), str(self._owner)],
                env=environment | _ONE_THREAD | {"PYTHONPATH": os.pathsep.join(sys.path)},
                pass_fds=[remote.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C should only reach the trainer
            )

    def is_running(self) -> bool:
        """Whether the server is running and was started by this process rather than a parent."""
        return self._owner == os.getpid() and self._process.poll() is None

    def fork(self, channel: socket.socket, life: socket.socket) -> None:
        if sys.platform != "win32":  # see ``_server``
            socket.send_fds(self._control, [b"f"], [channel.fileno(), life.fileno()])

    def end(self) -> None:
        self._control.close()
        if self._owner == os.getpid():
            self._process.kill()
            self._process.wait()


_lock = threading.Lock()
_running: _ForkServer | None = None


def _server() -> _ForkServer:
    global _running
    if sys.platform == "win32":
        raise IsolateError(f"Scoring answers in a separate process {NEEDS_UNIX}")
    with _lock:
        if _running is not None and not _running.is_running():
            _running.end()
            _running = None
        _running = _running or _ForkServer()
        return _running


@atexit.register
def end_server() -> None:
    """Stop the server. The next isolate starts a new one."""
    global _running
    with _lock:
        if _running is not None:
            _running.end()
        _running = None


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="evert off loop, isolates")


def _after_fork() -> None:
    global _lock
    _lock = threading.Lock()  # the old lock may have been held by another thread
    _threads.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
