"""Run many concurrent Harbor trials with a scripted model; check rewards, memory and leaks.

    .frameworks/harbor/bin/python benchmarks/harbor_trials.py [--quick] [--trials 64]

terminus-2 types the solutions of the ``examples/harbor`` tasks in sandboxes. Each trial has two
sandboxes, because the verifier runs in its own. The benchmark fails if a reward is not 1, or if any
process, folder or socket is left at the end. Peak memory covers this process and all its
descendants, with shared memory counted once (PSS).
"""

import argparse
import asyncio
import glob
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event, Thread

import psutil
from rich.console import Console
from tinker_cookbook.rl.rollouts import do_single_rollout

os.environ |= {"HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}

from evert import ChatAgentEnv, ScriptedPolicy
from evert.harbor import HarborAgent

TASKS = sorted((Path(__file__).parent.parent / "examples" / "harbor").iterdir())
AGENT = HarborAgent("terminus-2", "bubblewrap", timeout_multiplier=10)
PAUSE = 0.25
"""Seconds between memory measurements."""


def typing(task: Path) -> ScriptedPolicy:
    """Return a policy that types the task's solution, declares the task done and confirms it."""
    lines = (task / "solution/solve.sh").read_text().splitlines()[1:]
    typed = [{"keystrokes": f"{line}\n", "duration": 0.3} for line in lines]
    said = [
        {"commands": typed, "task_complete": False},
        *2 * [{"commands": [], "task_complete": 1}],
    ]
    return ScriptedPolicy([json.dumps({"analysis": "", "plan": "", **one}) for one in said])


async def earned(number: int) -> float:
    """Run one trial; return its reward."""
    task = TASKS[number % len(TASKS)]
    played = await do_single_rollout(typing(task), ChatAgentEnv(AGENT, str(task)))
    return sum(step.reward for step in played.transitions)


def left() -> dict[str, int]:
    """Count this process's children, folders and sockets."""
    process = psutil.Process()
    return {
        "processes": len(process.children(recursive=True)),
        "folders": len(glob.glob(f"{tempfile.gettempdir()}/evert-*")),
        "sockets": len(process.net_connections("all")),
    }


def held() -> int:
    """Return the memory of this process and its descendants (PSS, in bytes)."""
    total = 0
    for one in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with suppress(psutil.Error, OSError):  # already exited
            total += getattr(one.memory_full_info(), "pss", 0)  # PSS is Linux only
    return total


@contextmanager
def watched() -> Iterator[list[int]]:
    """Yield the peak memory and peak number of processes."""
    peaks, over = [0, 0], Event()

    def look() -> None:
        while not over.wait(PAUSE):
            peaks[:] = max(peaks[0], held()), max(peaks[1], left()["processes"])

    watcher = Thread(target=look)
    watcher.start()
    try:
        yield peaks
    finally:
        over.set()
        watcher.join()


async def count(trials: int) -> bool:
    """Run the trials concurrently and print the results; return whether none failed or leaked."""
    await earned(0)  # warm up
    await asyncio.sleep(1)
    before, start = left(), time.perf_counter()
    with watched() as peaks:
        rewards = await asyncio.gather(*map(earned, range(trials)))
        seconds = time.perf_counter() - start
    await asyncio.sleep(1)
    rest = {name: number - before[name] for name, number in left().items()}
    Console().print(
        f"{trials} concurrent trials: {seconds:.0f} s, {peaks[0] / 1e9:.2f} GB and {peaks[1]} "
        f"processes at the peak, {sum(reward == 1 for reward in rewards)} with reward 1; left: "
        + ", ".join(f"{number} {name}" for name, number in rest.items())
    )
    return all(reward == 1 for reward in rewards) and not any(more > 0 for more in rest.values())


def main() -> None:
    """Run the benchmark; exit with 1 if anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8 trials")
    parser.add_argument("--trials", type=int, default=64)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        tempfile.tempdir = own  # so that only this process's folders are counted
        if not asyncio.run(count(8 if options.quick else options.trials)):
            sys.exit("a trial failed or something was left")


if __name__ == "__main__":
    main()
