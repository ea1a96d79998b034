"""A pytest plugin that reports and cleans up what a test leaves behind.

A test that leaves a child process or thread running fails, and the child processes are killed, even
if the test itself failed or timed out. Processes and threads that existed before the test or were
started by its fixtures do not count.

If our parent process ignores signals (``nohup``, a shell's background job), we ignore them as well,
but with a handler. Unlike ``SIG_IGN``, a handler is not inherited by child processes, which get
signals as usual.
"""

import signal
import threading
from collections.abc import Iterator

import psutil
import pytest

PATIENCE = 10.0
"""Seconds to wait for processes and threads that are about to exit."""

LASTING = (
    *("multiprocessing.resource_tracker", "multiprocessing.forkserver"),
    *("isolation_server", "evert.trainers.workers.process"),
)
"""Command-line fragments of children that serve the whole process or a module's fixture."""

POOLS = ("asyncio_", "CrewAI", "evert off loop", "evert-loader", "ThreadPoolExecutor")
"""Name prefixes of threads that serve the whole process or stop when their pool is collected."""

BEFORE = pytest.StashKey[tuple[set[psutil.Process], set[threading.Thread]]]()


def children() -> set[psutil.Process]:
    """Return this process's direct children, without their descendants."""
    return set(psutil.Process().children())


def pytest_configure() -> None:
    """Give ignored signals a handler instead (see above). Ctrl-C always interrupts tests."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Record children and threads once a test's fixtures are set up."""
    item.stash[BEFORE] = children(), set(threading.enumerate())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """After fixture teardown, kill leftover processes, and fail the test if it left anything."""
    result = yield
    if BEFORE in item.stash:
        processes, threads = item.stash[BEFORE]
        names = [*_end(children() - processes), *_join(set(threading.enumerate()) - threads)]
        if names:
            pytest.fail(f"The test left behind: {', '.join(names)}", pytrace=False)
    return result


def _end(strays: set[psutil.Process]) -> list[str]:
    """Kill processes that do not exit, including their descendants. Returns their command lines."""
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
        pass  # it has exited or belongs to another user


def _join(threads: set[threading.Thread]) -> list[str]:
    """Return the names of threads that keep running and would keep the process alive."""
    strays = [one for one in threads if not one.daemon and not one.name.startswith(POOLS)]
    for thread in strays:
        thread.join(PATIENCE)
    return [f"thread {thread.name}" for thread in strays if thread.is_alive()]
