"""A pytest plugin: what a test leaves behind is named and ended, and cannot affect other tests.

A test that leaves a child process or a thread running fails, and its children are killed, whether
it passed, failed or timed out. What existed before it, and what its fixtures made, does not count.

Signals that our parent ignores (``nohup``, a shell's background job) have no effect here, but
children get them as usual: a handler, unlike ``SIG_IGN``, is not inherited by a new program.
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
    """Return this process's direct children, without their descendants."""
    return set(psutil.Process().children())


def pytest_configure() -> None:
    """Replace ignored signals by handlers (see above). Ctrl-C always reaches tests."""
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Record children and threads when a test's fixtures are ready."""
    item.stash[BEFORE] = children(), set(threading.enumerate())
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """After the teardown of a test's fixtures, end what the test left, and fail it."""
    result = yield
    if BEFORE in item.stash:
        processes, threads = item.stash[BEFORE]
        names = [*_end(children() - processes), *_join(set(threading.enumerate()) - threads)]
        if names:
            pytest.fail(f"The test left behind: {', '.join(names)}", pytrace=False)
    return result


def _end(strays: set[psutil.Process]) -> list[str]:
    """Kill processes that do not end, and their children; return their command lines."""
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
        pass  # it has ended, or belongs to another user


def _join(threads: set[threading.Thread]) -> list[str]:
    """Return the names of threads that keep running and would keep the process alive."""
    strays = [one for one in threads if not one.daemon and not one.name.startswith(POOLS)]
    for thread in strays:
        thread.join(PATIENCE)
    return [f"thread {thread.name}" for thread in strays if thread.is_alive()]
