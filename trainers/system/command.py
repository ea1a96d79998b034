"""Common behavior of all commands: help, one-line errors, and Ctrl-C.

On Ctrl-C or SIGTERM, a command stops and saves what it can. A second signal exits immediately. An
exception's notes, which usually explain how to resume, are printed below its message.
"""

import _thread
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
"""Exit status after Ctrl-C, as in shells."""
HELP = frozenset({"--help", "-h", "help"})
NO_HOME = "Could not determine home directory."
"""The error message of ``Path.expanduser`` if the user does not exist."""

T = TypeVar("T")


def run_command(
    body: Callable[[list[str]], int | None],
    argv: Sequence[str] | None,
    usage: Callable[[list[str]], str],
) -> int:
    """Run a command. Return ``body``'s exit status (or 0), 1 for an error, or 130 for Ctrl-C."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    # The current folder lets us import the user's agent. It goes last, so that a local file such as
    # ``http.py`` does not shadow another module.
    sys.path[:] = [*(path for path in sys.path if path not in ("", os.getcwd())), os.getcwd()]
    before = signal.getsignal(signal.SIGTERM)
    _handle(signal.SIGTERM, signal.default_int_handler)
    try:
        if HELP & set(arguments):
            print(usage([argument for argument in arguments if argument not in HELP]).rstrip())
            return 0
        with _dropped_interrupts_raised():
            return body(arguments) or 0
    except KeyboardInterrupt as stopped:
        _handle(signal.SIGINT, _leave)
        _handle(signal.SIGTERM, _leave)
        print(redacted("\n" + "\n".join(_notes(stopped) or ["Interrupted."])))
        # If the signal arrives while C code is calling Python, for example during an import, Python
        # exits with the signal instead of our status. ``exec`` prevents that.
        exec("")
        return INTERRUPTED
    except EvertError as error:
        return _print_error(error, _notes(error))
    except RuntimeError as error:
        if str(error) != NO_HOME:
            raise
        message = "A path starts with ~NAME, but there is no such user on this machine."
        return _print_error(EvertError(message), _notes(error))
    except BrokenPipeError:  # the reader has exited, as with ``| head``
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        from evert.trainers.system.files import BARRED, FULL, cannot_use

        if error.errno not in FULL and (error.errno not in BARRED or not error.filename):
            raise
        return _print_error(cannot_use(error, Path("The folder")), _notes(error))
    finally:
        _handle(signal.SIGTERM, before)


def _print_error(error: EvertError, notes: Sequence[str]) -> int:
    if isinstance(error, AgentError) and error.__cause__ is not None:
        agent_traceback = "".join(traceback.format_exception(error.__cause__))
        print(redacted(agent_traceback), end="", file=sys.stderr)
    print(redacted("\n".join([f"error: {str(error).rstrip()}", *notes])), file=sys.stderr)
    return 1


def _notes(error: BaseException) -> list[str]:
    return list(getattr(error, "__notes__", ()))


def run_async(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop and return its result.

    Ctrl-C and SIGTERM cancel the coroutine, and KeyboardInterrupt is raised after its cleanup. A
    second signal exits immediately. If a loop is already running, for example in a notebook,
    ``main`` runs in another thread.
    """
    started: list[asyncio.Task[Any]] = []

    async def guarded() -> T:
        started.extend(task for task in (asyncio.current_task(),) if task is not None)
        with _second_signal_leaves():
            return await main

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(guarded())
    with ThreadPoolExecutor(1, "evert") as thread:
        try:
            return thread.submit(asyncio.run, guarded()).result()
        except KeyboardInterrupt:
            with suppress(RuntimeError):  # the coroutine has finished and its loop is closed
                for task in started:
                    task.get_loop().call_soon_threadsafe(task.cancel)
            raise


@contextmanager
def _second_signal_leaves() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C inside the block, and exit on the second signal."""
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.getsignal(number) for number in numbers}
    stop = before.get(signal.SIGINT)  # asyncio's handler, which cancels the task

    def first(number: int, frame: types.FrameType | None) -> None:
        for signum in numbers:
            signal.signal(signum, _leave)
        (stop if callable(stop) else signal.default_int_handler)(signal.SIGINT, frame)

    for number in numbers:
        _handle(number, first)
    try:
        yield
    finally:
        for number, handler in before.items():
            _handle(number, handler)


@contextmanager
def _dropped_interrupts_raised() -> Iterator[None]:
    """Re-raise a Ctrl-C that Python drops inside the block, for example in a finalizer."""
    before, over = sys.unraisablehook, threading.Event()

    def raise_later() -> None:
        if not over.wait(0.05):
            _thread.interrupt_main(signal.SIGTERM)  # not SIGINT, which may be ignored

    def hook(dropped: "sys.UnraisableHookArgs") -> None:
        if issubclass(dropped.exc_type, KeyboardInterrupt):
            threading.Thread(target=raise_later, daemon=True).start()
        else:
            before(dropped)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        over.set()
        sys.unraisablehook = before


def _handle(number: signal.Signals, handler: Any) -> None:
    """Set a signal handler if in the main thread. If it is None (a C handler), do nothing."""
    if threading.current_thread() is threading.main_thread() and handler is not None:
        signal.signal(number, handler)


def _leave(number: int, frame: types.FrameType | None) -> None:
    if sys.stdout.isatty():
        os.write(1, b"\x1b[?25h\n")  # show the cursor, which progress bars hide
    os._exit(INTERRUPTED)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed ``random``, NumPy and PyTorch inside the block, and restore their states afterwards."""
    import numpy as np
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()
    cuda: Any = torch.cuda
    gpus = range(cuda.device_count()) if cuda.is_initialized() else ()
    try:
        apples = range(torch.mps.device_count())
        with torch.random.fork_rng(gpus), torch.random.fork_rng(apples, device_type="mps"):
            random.seed(seed)
            np.random.seed(seed % 2**32)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
