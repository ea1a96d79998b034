"""A failing test fails alone: what it leaves behind is named, ended, and nobody else's.

A pytest plugin. A test that leaves a child process or a thread running fails for that alone, and
its children are killed, whether it passed, failed or timed out. What was there before it, and what
its fixtures made, is not counted.

Signals that our starter ignores (``nohup``, a shell's background job) stay without effect on us,
but children get them as usual: a handler, unlike ``SIG_IGN``, is not inherited by a new program.
"""

import signal
import threading
from collections.abc import Iterator

import psutil
import pytest

PATIENCE = 10.0
"""Seconds for what is just ending to end."""

LASTING = (
    *("multiprocessing.resource_tracker", "multiprocessing.forkserver"),
    *("isolation_server", "evert.trainers.workers.process"),
)
"""Parts of the command lines of children that serve the whole process, or a module's fixture."""

POOLS = ("asyncio_", "evert off loop", "evert-loader", "ThreadPoolExecutor")
"""Names of threads that serve the whole process, or that their pool's collection ends."""

BEFORE = pytest.StashKey[tuple[set[psutil.Process], set[threading.Thread]]]()


def children() -> set[psutil.Process]:
    """This process's own children; those of a child that was left behind are its affair."""
    return set(psutil.Process().children())


def pytest_configure() -> None:
    """Replace ignored signals by handlers: see above. Ctrl-C reaches tests in any case."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Note what is there when a test's fixtures are ready."""
    item.stash[BEFORE] = children(), set(threading.enumerate())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Once a test's fixtures are gone, end what it left, and fail it for that."""
    result = yield
    if BEFORE in item.stash:
        processes, threads = item.stash[BEFORE]
        names = [*_end(children() - processes), *_join(set(threading.enumerate()) - threads)]
        if names:
            pytest.fail(f"The test left behind: {', '.join(names)}", pytrace=False)
    return result


def _end(strays: set[psutil.Process]) -> list[str]:
    """Kill processes that do not end by themselves, and theirs; return their command lines."""
    commands = {process: _command(process) for process in strays}
    strays = {p for p, command in commands.items() if not any(part in command for part in LASTING)}
    _, alive = psutil.wait_procs(strays, PATIENCE)
    for process in alive:
        for each in [process, *_descendants(process)]:
            _kill(each)
    return [f"process {commands[process][:200]}" for process in alive]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return f"{process.pid}"


def _descendants(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.Error:
        return []


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
        process.wait(PATIENCE)
    except psutil.Error:
        pass  # it has ended, or is another's


def _join(threads: set[threading.Thread]) -> list[str]:
    """The names of threads that keep running and would keep the process alive."""
    strays = [one for one in threads if not one.daemon and not one.name.startswith(POOLS)]
    for thread in strays:
        thread.join(PATIENCE)
    return [f"thread {thread.name}" for thread in strays if thread.is_alive()]
