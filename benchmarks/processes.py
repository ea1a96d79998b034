"""Check that no process outlives its episode, even if the trainer is killed.

Each row is a command that tries to leave processes behind. It is stopped in four ways:

    by itself     the command exits while processes that it started are still running
    closed        the Env is closed
    SIGTERM       the trainer receives SIGTERM while all commands are running
    SIGKILL       the same with SIGKILL, which the trainer cannot handle

A process that still exists one second later counts as a failure, and so does an episode folder that
still exists after five seconds. The commands run without a sandbox, because a sandbox would stop
these processes anyway. The last lines show the cost of a command that does nothing, without and
with a sandbox. ``commands.py`` checks what many harmless commands leave behind.

    python benchmarks/processes.py [--quick] [--times 20]
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from evert import ChatAgentEnv, ProcessAgent
from evert.agents.sandbox import sandbox_problem

STAY = "import sys, time\nif sys.argv[2] == 'stay': time.sleep(120)\n"
"""Appended to each command. It either waits to be killed or exits before its child processes do."""

HOSTILE = {
    "new session": """
import os, time
if os.fork() == 0:
    os.setsid()
    time.sleep(120)
""",
    "daemon without environment": """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        sleep = [sys.executable, "-c", "import time; time.sleep(120)"]
        os.execve(sys.executable, [*sleep, *sys.argv[1:]], {})
    os._exit(0)
""",
    "ignores every signal": """
import os, signal, time
for number in range(1, 32):
    try: signal.signal(number, signal.SIG_IGN)
    except OSError: pass
if os.fork() == 0:
    time.sleep(120)
""",
    "parent and child revive each other": """
import os, time
end = time.monotonic() + 120
def revive(depth):
    while time.monotonic() < end:
        child = os.fork()
        if child == 0:
            os.setsid()
            revive(depth + 1) if depth < 10 else time.sleep(120)
        os.waitpid(child, 0)
if os.fork() == 0: revive(0)
""",
    "flood in one group": """
import os, time
read, write = os.pipe()
os.write(write, b"x" * 200)
if os.fork() == 0:
    while os.read(read, 1): os.fork()
""",
    "flood of sessions": """
import os, time
read, write = os.pipe()
os.write(write, b"x" * 200)
if os.fork() == 0:
    while os.read(read, 1):
        if os.fork() == 0: os.setsid()
""",
    "hops to a new session for ever": """
import os, time
end = time.monotonic() + 120
for _ in range(10):
    if os.fork() == 0:
        while time.monotonic() < end:
            if os.fork(): os._exit(0)
            os.setsid()
        os._exit(0)
""",
}
"""Commands that try to outlive their episode. The first argument marks their processes.

They give up after two minutes, so that the machine does not stay busy if they are not killed.
"""

TRAINER = """
import asyncio, sys
from benchmarks.processes import hostile
from evert import ChatAgentEnv

async def play():
    mark, sandbox, *names = sys.argv[1:]
    envs = [ChatAgentEnv(hostile(name, mark, "stay", sandbox == "True")) for name in names]
    await asyncio.gather(*(env.initial_observation() for env in envs))

asyncio.run(play())
"""


def hostile(name: str, mark: str, then: str, sandbox: bool = False) -> ProcessAgent:
    """Return an agent that tries to outlive its episode. If ``then`` is "end", its command ends."""
    code = HOSTILE[name] + STAY
    return ProcessAgent([sys.executable, "-S", "-c", code, f"{mark}-{name}", then], sandbox=sandbox)


def marked(mark: str) -> list[psutil.Process]:
    """Return the live processes that have an argument starting with ``mark``."""
    found = []
    for process in psutil.process_iter():
        try:
            line = process.cmdline()
            if process.status() != psutil.STATUS_ZOMBIE and "benchmarks" not in "".join(line):
                found += [process] * any(part.startswith(mark) for part in line)
        except psutil.Error:
            continue
    return found


def wait_for(check: Callable[[], bool], seconds: float = 300.0) -> bool:
    """Wait until the check is true or the time is up; return its last value."""
    deadline = time.monotonic() + seconds
    while not (held := check()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return held


def clean(mark: str) -> bool:
    """Return whether no marked process is left, and kill those that are."""
    gone = wait_for(lambda: not marked(mark), 1.0)
    for process in marked(mark):
        process.kill()
    return gone


def new_mark() -> str:
    """Return a unique mark."""
    return f"mark{time.time_ns()}"


async def ended_by_itself(name: str) -> bool:
    """Return whether nothing is left after a command has exited."""
    mark = new_mark()
    await ChatAgentEnv(hostile(name, mark, "end")).initial_observation()
    return clean(mark)


async def closed(name: str) -> bool:
    """Return whether nothing is left after an Env is closed while the command is running."""
    mark = new_mark()
    env = ChatAgentEnv(hostile(name, mark, "stay"))
    playing = asyncio.create_task(env.initial_observation())
    assert await asyncio.to_thread(wait_for, lambda: len(marked(mark)) > 1)
    await asyncio.sleep(0.5)
    await env.close()
    await asyncio.gather(playing, return_exceptions=True)
    return clean(mark)


def killed(names: list[str], number: signal.Signals, sandbox: bool = False) -> dict[str, bool]:
    """Kill a trainer; return for each command, and for the folders, whether nothing is left."""
    mark = new_mark()
    with tempfile.TemporaryDirectory() as folder:
        trainer = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", TRAINER, mark, str(sandbox), *names],
            env={**os.environ, "TMPDIR": folder, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=Path(__file__).parent.parent,
        )
        running = wait_for(lambda: all(len(marked(f"{mark}-{name}")) > 1 for name in names))
        time.sleep(0.5)
        trainer.send_signal(number)
        trainer.wait()
        assert running, "not all commands were running"
        found = {name: clean(f"{mark}-{name}") for name in names}
        found["their folders"] = wait_for(lambda: not [*Path(folder).glob("evert-*")], 5.0)
    return found


# -- the cost of a command -----------------------------------------------------------------------


async def supervised(count: int, sandbox: bool | None = None) -> float:
    """Return how long a no-op command takes (median seconds; default: in a sandbox if possible)."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        await ChatAgentEnv(ProcessAgent(["true"], sandbox=sandbox)).initial_observation()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def plainly(count: int) -> float:
    """Return how long the same command takes without evert (median seconds)."""
    times = []
    for _ in range(count):
        start = time.perf_counter()
        subprocess.run(["true"], check=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def main() -> None:
    """Run the benchmark; exit with 1 if anything is left."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--times", type=int, default=20)
    args = parser.parse_args()
    times = 2 if args.quick else args.times
    console, names = Console(), [*HOSTILE]
    rows = {name: [0, 0, 0, 0] for name in [*names, "their folders"]}
    for _ in range(times):
        for name in names:
            rows[name][0] += asyncio.run(ended_by_itself(name))
            rows[name][1] += asyncio.run(closed(name))
        for column, number in enumerate((signal.SIGTERM, signal.SIGKILL), start=2):
            for name, gone in killed(names, number).items():
                rows[name][column] += gone
    rows["their folders"][:2] = [times, times]
    table = Table("runs that left nothing", "by itself", "closed", "SIGTERM", "SIGKILL")
    for name, row in rows.items():
        table.add_row(name, *(f"{gone} of {times}" for gone in row))
    console.print(table)
    took, plain = 1000 * asyncio.run(supervised(50, False)), 1000 * plainly(50)
    console.print(f"a command: {took:.1f} ms; without evert: {plain:.1f} ms")
    console.print(
        f"in a sandbox: {sandbox_problem() or f'{1000 * asyncio.run(supervised(50)):.1f} ms'}"
    )
    if any(gone < times for row in rows.values() for gone in row):
        sys.exit("something was left")


if __name__ == "__main__":
    main()
