"""Code that handles a model's output runs in isolated processes and can only harm its own call.

These tests simulate a successful attack: the output is Python code, and the function is ``eval``.
"""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.faults import stalls
from tests.kit import Patch

from evert.bridge.isolation import (
    LONGEST_RESULT,
    Isolate,
    IsolateError,
    IsolateLimitError,
    end_server,
    isolate,
)

EVAL: Any = (eval, "lambda code: eval(code)")
"""The factory that creates the function in the isolated process, and the factory's argument."""

OS = "__import__('os')"
CHANNEL = f"int({OS}.listdir('/proc/self/fd')[3])"
"""The isolated process's only open file descriptor apart from stdin, stdout and stderr."""


def server() -> psutil.Process:
    """Return the child process that forks the isolated processes."""
    children = psutil.Process().children()
    [process] = [child for child in children if "isolation_server.py" in " ".join(child.cmdline())]
    return process


async def test_an_isolate_keeps_its_state_between_calls_but_does_not_share_it() -> None:
    count = "__import__('builtins').__dict__.setdefault('calls', []).append(1) or len(calls)"
    for _ in range(2):
        async with isolate(*EVAL) as call:
            assert [await call(count), await call(count)] == [1, 2]
            assert await call("{'a': (1, None)}") == {"a": [1, None]}


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("exit()", "SystemExit"),
        ("object()", "not JSON serializable"),
        ("(lambda f: f(f))(lambda f: f(f))", "RecursionError"),
        ("__import__('socket').socket()", "PermissionError"),
        (f"{OS}.fork()", "PermissionError"),
        (f"{OS}.posix_spawn('/bin/true', ['true'], {{}})", "PermissionError"),
        (f"{OS}.execv('/bin/true', ['true'])", "PermissionError"),
        (f"{OS}.kill({OS}.getppid(), 9)", "PermissionError"),
        (f"{OS}.kill(TRAINER, 9)", "PermissionError"),
        (f"{OS}.remove({__file__!r})", "PermissionError"),
        (f"open({__file__!r}, 'a')", "PermissionError"),
        ("open('/proc/self/mem', 'wb')", "PermissionError"),
        ("__import__('resource').setrlimit(9, (2**40, 2**40))", "ValueError|PermissionError"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="relies on Linux kernel features")
async def test_a_forbidden_action_raises_in_its_call(code: str, message: str) -> None:
    async with isolate(*EVAL) as call:
        with pytest.raises(IsolateError, match=message):
            await call(code.replace("TRAINER", str(os.getpid())))
        assert await call("1 + 1") == 2


@pytest.mark.parametrize(
    "code",
    [
        "9**9**9**9",
        "__import__('time').sleep(1000)",
        "bytearray(2**40)",
        f"{OS}._exit(0)",
        "__import__('ctypes').string_at(0)",
        f"'x' * {LONGEST_RESULT}",
        f"{OS}.write({CHANNEL}, b'\\x80\\x04K\\x01.\\n')",
        f"{OS}.write({CHANNEL}, b'[' * 10**5 + b'\\n')",
    ],
)
async def test_a_call_that_exceeds_the_limits_only_kills_its_isolate(code: str) -> None:
    async with isolate(*EVAL) as call, isolate(*EVAL) as second_call, stalls.watched() as stall:
        before = server()
        with pytest.raises(IsolateLimitError, match=r"took longer than \d s, used too much memory"):
            await call(code)
        with pytest.raises(IsolateLimitError):
            await call("1 + 1")
        assert await second_call("1 + 1") == 2
        assert server() == before
    assert stall.longest < stalls.LONGEST


async def test_an_isolate_has_no_environment_variable_that_could_be_a_secret(
    monkeypatch: Patch,
) -> None:
    end_server()
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-trainer")
    async with isolate(*EVAL) as call:
        assert "sk-of-the-trainer" not in await call(f"str({OS}.environ)")


async def test_a_failing_factory_is_an_error_and_a_dead_server_is_replaced() -> None:
    with pytest.raises(IsolateError, match="eval raised in an isolate: NameError: name 'x'"):
        async with isolate(eval, "x"):
            pass
    server().kill()
    async with isolate(*EVAL) as call:
        assert await call("1 + 1") == 2


async def test_a_cancelled_call_leaves_no_process_behind() -> None:
    async with isolate(*EVAL) as call:
        first = await call(f"{OS}.getpid()")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await call("9**9**9**9")
    if psutil.pid_exists(first):
        psutil.Process(first).wait(30)
    assert psutil.pid_exists(server().pid)


def test_blocking_agents_can_call_isolates_from_their_threads() -> None:
    results: list[int] = []

    def agent(number: int) -> None:
        process = Isolate(*EVAL)
        results.append(process.call(f"{number} ** 2"))
        process.close()

    threads = [threading.Thread(target=agent, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [number**2 for number in range(8)]


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, None])
def test_neither_isolates_nor_the_server_outlive_the_process(end: signal.Signals | None) -> None:
    code = (
        "import os, sys, threading; from evert.bridge.isolation import Isolate; "
        "process = Isolate(eval, 'lambda code: eval(code)'); "
        "threading.Thread(target=process.call, args=('9**9**9**9',), daemon=True).start(); "
        "print(process.call.__name__, flush=True); sys.stdin.read()"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with trainer:
        assert trainer.stdout is not None
        trainer.stdout.readline()
        children = psutil.Process(trainer.pid).children(recursive=True)
        assert len(children) == 2
        if end is None:
            trainer.communicate()
        else:
            trainer.send_signal(end)
    _, survivors = psutil.wait_procs(children, timeout=60)
    assert not survivors


def test_a_fork_of_the_trainer_has_its_own_server(tmp_path: Path) -> None:
    with_isolate = Isolate(*EVAL)
    before = server()
    pid = os.fork()
    if pid == 0:
        mine = Isolate(*EVAL)
        (tmp_path / "result").write_text(str(mine.call("1 + 1")))
        end_server()
        os._exit(0)
    os.waitpid(pid, 0)
    assert (tmp_path / "result").read_text() == "2"
    assert server() == before
    assert with_isolate.call("1 + 1") == 2
    with_isolate.close()


@pytest.mark.parametrize(
    "code", ["socket.socket()", "os.fork()", "os.system('true')", "os.kill(1, 0)"]
)
def test_without_a_kernel_filter_an_audit_hook_blocks_forbidden_actions(code: str) -> None:
    program = (
        "import os, socket, sys; from evert.bridge.isolation_server import _refuse; "
        f"sys.addaudithook(_refuse); {code}"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert "PermissionError" in process.stderr
