"""Running a command: its help, its errors in a line, Ctrl-C; what all commands share.

Ctrl-C and SIGTERM stop a command, which then saves what it can; a second one ends the process at
once. Notes of an exception (how to go on, most often) are printed below its message.
"""

import asyncio
import os
import random
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from evert.bridge.errors import AgentError, EvertError
from evert.bridge.redaction import redacted

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
HELP = frozenset({"--help", "-h", "help"})
NO_HOME = "Could not determine home directory."
"""What ``Path.expanduser`` says of a user that does not exist."""

T = TypeVar("T")


def run_command(
    body: Callable[[list[str]], int | None],
    argv: Sequence[str] | None,
    usage: Callable[[list[str]], str],
) -> int:
    """Run a command; its exit status: the body's or 0, 1 for an error, 130 if interrupted."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's own agent, as with ``python -m``
    before = signal.getsignal(signal.SIGTERM)
    _handle(signal.SIGTERM, signal.default_int_handler)
    try:
        if HELP & set(arguments):
            print(usage([each for each in arguments if each not in HELP]).rstrip())
            return 0
        return body(arguments) or 0
    except KeyboardInterrupt as stopped:
        _handle(signal.SIGINT, _leave)
        _handle(signal.SIGTERM, _leave)
        print(redacted("\n" + "\n".join(_notes(stopped) or ["Interrupted."])))
        # If it came while C code ran Python, as packages do that are being imported, Python would
        # end by the signal and not by our status; running any text makes it forget.
        exec("")
        return INTERRUPTED
    except EvertError as error:
        return _failed(error, _notes(error))
    except RuntimeError as error:
        if str(error) != NO_HOME:
            raise
        said = "A path begins with ~NAME, and this machine has no such user."
        return _failed(EvertError(said), _notes(error))
    except BrokenPipeError:  # ``| head`` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        from evert.trainers.system.files import BARRED, FULL, cannot_use

        if error.errno not in FULL and (error.errno not in BARRED or not error.filename):
            raise
        return _failed(cannot_use(error, Path("The folder")), _notes(error))
    finally:
        _handle(signal.SIGTERM, before)


def _failed(error: EvertError, notes: Sequence[str]) -> int:
    if isinstance(error, AgentError) and error.__cause__ is not None:
        own = "".join(traceback.format_exception(error.__cause__))  # of the agent's own code
        print(redacted(own), end="", file=sys.stderr)
    print(redacted("\n".join([f"error: {str(error).rstrip()}", *notes])), file=sys.stderr)
    return 1


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in an event loop of its own.

    Ctrl-C and SIGTERM cancel it and are raised when it has cleaned up; a second one ends the
    process at once. Where a loop is running already, as in a notebook, it runs in a thread.
    """
    started: list[asyncio.Task[Any]] = []

    async def whole() -> T:
        started.extend(task for task in (asyncio.current_task(),) if task is not None)
        with _second_signal_leaves():
            return await main

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(whole())
    with ThreadPoolExecutor(1, "evert") as thread:
        try:
            return thread.submit(asyncio.run, whole()).result()
        except KeyboardInterrupt:
            with suppress(RuntimeError):  # over meanwhile, and its loop closed
                for task in started:
                    task.get_loop().call_soon_threadsafe(task.cancel)
            raise


@contextmanager
def _second_signal_leaves() -> Iterator[None]:
    """Inside, SIGTERM does what Ctrl-C does, and whichever comes second ends the process."""
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.getsignal(number) for number in numbers}
    stop = before.get(signal.SIGINT)  # asyncio's own: it cancels what it runs

    def first(number: int, frame: types.FrameType | None) -> None:
        for each in numbers:
            signal.signal(each, _leave)
        (stop if callable(stop) else signal.default_int_handler)(signal.SIGINT, frame)

    for number in numbers:
        _handle(number, first)
    try:
        yield
    finally:
        for number, handler in before.items():
            _handle(number, handler)


def _handle(number: signal.Signals, handler: Any) -> None:
    """Set a signal's handler; only the main thread can, and there may be none of Python's."""
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(number, handler)


def _leave(number: int, frame: types.FrameType | None) -> None:
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h\n")  # a progress bar hides the cursor
    os._exit(INTERRUPTED)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed ``random``, NumPy and PyTorch for agents; afterwards the caller's numbers go on."""
    import numpy as np
    import torch

    drawn, numpys = random.getstate(), np.random.get_state()
    cuda: Any = torch.cuda
    gpus = range(cuda.device_count()) if cuda.is_initialized() else ()
    try:
        with torch.random.fork_rng(gpus):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(drawn)
        np.random.set_state(numpys)
