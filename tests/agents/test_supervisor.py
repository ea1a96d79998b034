"""All of a command's processes end with its episode, whatever they do and whoever gets killed."""

import asyncio
import logging
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from benchmarks.processes import (
    HOSTILE,
    closed,
    ended_by_itself,
    killed,
    marked,
    new_mark,
    wait_for,
)
from tests.agents.test_process import last_of, python
from tests.kit import Logs, Patch
from tests.leftovers import children
from tests.nightly import each

from evert.agents.commands import MARK, ProcessResult, Workplace
from evert.agents.supervisor import CHUNK, KEPT_OUTPUT, Tail, remove

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux finds every descendant")


@linux
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_finished_or_closed_command_leaves_nothing_behind(name: str) -> None:
    assert await ended_by_itself(name)
    assert await closed(name)


@linux
async def test_a_command_that_is_cancelled_twice_leaves_no_zombie(tmp_path: Path) -> None:
    place = Workplace([], tmp_path, {}, None, {}, env={**os.environ, MARK: new_mark()})
    command, before = [sys.executable, "-c", "import time; time.sleep(600)"], children()
    running = asyncio.create_task(place.run(command, "command"))
    await asyncio.sleep(0)  # now it is waiting for the supervisor's first report
    new = children() - before
    running.cancel()
    await asyncio.sleep(0)  # now it is waiting for the supervisor to exit
    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert new
    for process in new:
        await asyncio.to_thread(process.wait, 60)
    assert not children() - before


# -- the trainer's death -------------------------------------------------------------------------


@linux
@pytest.mark.parametrize(
    "number", each([signal.SIGTERM, signal.SIGKILL, signal.SIGHUP], [signal.SIGKILL])
)
def test_killing_the_trainer_leaves_no_process_or_folder(number: signal.Signals) -> None:
    assert all(killed([*HOSTILE], number).values())


FORKED = """
import asyncio, os, sys, time
from evert import ChatAgentEnv, ProcessAgent

async def play():
    command = [sys.executable, "-c", "import time; time.sleep(600)", sys.argv[1] + "-command"]
    env = ChatAgentEnv(ProcessAgent(command))
    playing = asyncio.create_task(env.initial_observation())
    await asyncio.sleep(1)
    if os.fork() == 0:  # like a DataLoader worker, this inherits all open file descriptors
        time.sleep(600)
    await playing

asyncio.run(play())
"""


@linux
def test_a_fork_of_the_trainer_does_not_keep_commands_alive() -> None:
    mark = new_mark()
    trainer = start(FORKED, f"{mark}-trainer")
    assert wait_for(lambda: len(marked(f"{mark}-trainer")) > 3)  # includes the fork
    trainer.kill()
    trainer.wait()
    gone = wait_for(lambda: not marked(f"{mark}-trainer-command"))
    forks = marked(f"{mark}-trainer")
    for fork in forks:
        fork.kill()

    assert gone
    assert len(forks) == 1


def start(code: str, mark: str, **variables: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "ignore", "-c", code, mark]
    return subprocess.Popen(command, env={**os.environ, **variables})


STOPPED = """
import asyncio, sys
from evert import ChatAgentEnv, ProcessAgent

STOP = "import os, signal, time; os.kill(os.getppid(), signal.SIGSTOP); time.sleep(600)"
agent = ProcessAgent([sys.executable, "-c", STOP, sys.argv[1] + "-command"])
asyncio.run(ChatAgentEnv(agent).initial_observation())
"""


@pytest.mark.nightly
@linux
def test_a_supervisor_stopped_by_its_command_is_cleaned_up_with_the_trainer(tmp_path: Path) -> None:
    mark = new_mark()
    trainer = start(STOPPED, mark, TMPDIR=str(tmp_path))
    stopped = wait_for(
        lambda: [*map(status_of, marked(f"{mark}-command"))].count(psutil.STATUS_STOPPED) == 1
    )
    trainer.kill()
    trainer.wait()

    assert stopped
    assert wait_for(lambda: not marked(f"{mark}-command"))
    assert wait_for(lambda: not os.listdir(tmp_path))


def status_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return str(process.status())
    return "gone"


# -- outputs -------------------------------------------------------------------------------------


async def test_only_the_end_of_a_flood_of_output_is_kept() -> None:
    def score(result: ProcessResult, task: Any) -> float:
        assert len(result.stdout) == len(result.stderr) == KEPT_OUTPUT
        return float(result.stdout.endswith("y\nend\n") and result.stderr.endswith("eend"))

    code = """
import sys
ask('x')
sys.stdout.write('y\\n' * 10_000_000 + 'end\\n')
sys.stderr.write('e' * 3_000_000 + 'end')
"""
    last = await last_of(python(code, reward=score))

    assert last.reward == 1.0
    assert len(str(last.logs["stderr"])) == 4000


def test_the_output_file_has_a_limited_size(tmp_path: Path) -> None:
    with (tmp_path / "output").open("w+b") as file:
        tail = Tail(file.fileno())
        for number in range(200):
            os.write(tail.entrance, b"%4d" % number * (CHUNK // 4))
            tail.pump()
            assert os.fstat(file.fileno()).st_size <= 2 * KEPT_OUTPUT
        ends = [file.seek(-KEPT_OUTPUT, os.SEEK_END), file.read(4), file.read()[-4:]]
        os.close(tail.entrance)
        os.close(tail.source)

    assert ends[1:] == [b" 184", b" 199"]


async def test_a_command_can_close_its_outputs_and_keep_running() -> None:
    code = "print('before', flush=True); os.close(1); os.close(2); os.close(0); ask('x')"
    last = await last_of(python(code))

    assert last.reward == 1.0
    assert last.logs["stdout"] == "before\n"


AT_A_TERMINAL = """
import asyncio, sys
from evert import ChatAgentEnv, ProcessAgent

code = "open('/dev/tty', 'w').write('UNWANTED')"
agent = ProcessAgent([sys.executable, "-c", code], reward=lambda result, task: 1.0)
try:
    asyncio.run(ChatAgentEnv(agent).initial_observation())
except Exception as error:
    print(error.__cause__)
print("DONE", open("/dev/tty").isatty())
"""


def test_a_command_cannot_reach_the_trainers_terminal() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-W", "ignore", "-c", AT_A_TERMINAL])
    output = b""
    with suppress(OSError):  # raised on Linux once no process has the terminal open
        while data := os.read(terminal, 1024):
            output += data
    os.waitpid(pid, 0)
    os.close(terminal)

    assert b"exited with status 1 before it called the model" in output
    assert b"DONE True" in output
    assert b"UNWANTED" not in output


# -- folders -------------------------------------------------------------------------------------


@contextmanager
def mounted(*arguments: str | Path) -> Iterator[None]:
    process = subprocess.run(["mount", *map(str, arguments)], check=False, capture_output=True)
    if process.returncode != 0:
        pytest.skip("only root may mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(arguments[-1])], check=True)


@linux
async def test_a_full_disk_fails_only_the_command(tmp_path: Path, monkeypatch: Patch) -> None:
    code = """
import sys
ask("x")
sys.stderr.write("full of words\\n" * 100_000)
try:
    open("big", "w").write("x" * 10_000_000)
except OSError as error:
    print(error.errno)
"""
    with mounted("-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path):
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        last = await last_of(python(code))
        files = os.listdir(tmp_path)

    assert last.reward == 1.0
    assert "full of words" in str(last.logs["stderr"])
    assert not files


@linux
async def test_a_mount_inside_the_folder_is_left_alone_and_logged(
    tmp_path: Path, caplog: Logs
) -> None:
    (tmp_path / "precious").write_text("mine")
    code = f"""
import pathlib
pathlib.Path("in side").mkdir()
ask("x")
raise SystemExit(os.system("mount --bind {tmp_path} 'in side'"))
"""
    folders: list[Path] = []

    def score(result: ProcessResult, task: Any) -> float:
        folders.append(result.folder)
        return float(result.status == 0)

    with caplog.at_level(logging.WARNING):
        last = await last_of(python(code, reward=score))
    if last.reward == 0.0:
        pytest.skip("only root may mount")
    inside = folders[0] / "in side"
    assert os.system(f"umount '{inside}'") == 0  # noqa: ASYNC221

    assert (tmp_path / "precious").read_text() == "mine"
    assert f"something is mounted in it: {inside}" in caplog.text.replace(r"\040", " ")
    assert remove(str(folders[0].parent)) == ""
