"""Agents that are commands call the model over HTTP, two at a time, and leave nothing behind.

    python benchmarks/commands.py [--quick] [--episodes 500] [--at-once 2]

With two at a time there is often a moment without a rollout, when the server stops; a new server
starts while another command is about to call. Each command calls once, with only the standard
library. A command without a reply fails the benchmark, and so does anything left at the end:
sockets, threads, tasks, folders.
"""

import argparse
import asyncio
import glob
import sys
import tempfile
import threading
import time

import psutil
from rich.console import Console
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, ProcessAgent, ScriptedPolicy

COMMAND = """
import json, os, random, sys, time, urllib.request
time.sleep(random.random() / 10)
request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"messages": [{"role": "user", "content": sys.argv[1]}]}).encode(),
    {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
)
answer = json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
assert answer == "echo of " + sys.argv[1], answer
"""


def echo(prompt: str) -> str:
    """Act as the policy: reply to each command with its own task."""
    return f"echo of task-{prompt.partition('task-')[2].partition('<')[0]}"


async def play(numbers: range, failures: list[str]) -> None:
    """Play commands one after the other."""
    agent = ProcessAgent([sys.executable, "-S", "-c", COMMAND, "{task}"])
    for number in numbers:
        env = ChatAgentEnv(agent, f"task-{number}")
        try:
            trajectory = await do_single_rollout(ScriptedPolicy(echo), env)
        except Exception as error:
            failures.append(repr(error))
            continue
        last = trajectory.transitions[-1]
        if last.reward != 1.0:
            failures.append(str(last.logs.get("stderr")))


def left() -> dict[str, int]:
    """Count what this process has open."""
    process = psutil.Process()
    return {
        "sockets": len(process.net_connections()),
        "descriptors": process.num_fds(),
        "threads": sum("asyncio" not in one.name for one in threading.enumerate()),
        "children": len(process.children(recursive=True)),
        "folders": len(glob.glob(f"{tempfile.gettempdir()}/evert-*")),
    }


async def count(episodes: int, at_once: int) -> int:
    """Play, print what is left, and return 1 if anything is left or a command failed."""
    failures: list[str] = []
    before, start = left(), time.perf_counter()
    shares = [range(first, episodes, at_once) for first in range(at_once)]
    await asyncio.gather(*(play(share, failures) for share in shares))
    seconds = time.perf_counter() - start
    await asyncio.sleep(0.1)
    rest = {name: number - before[name] for name, number in left().items()}
    rest["tasks"] = len(asyncio.all_tasks()) - 1
    console = Console()
    console.print(
        f"{episodes} commands, {at_once} at a time: {len(failures)} failed, "
        f"{1000 * seconds / episodes:.0f} ms each; left: "
        + ", ".join(f"{number} {name}" for name, number in rest.items())
    )
    for failure in failures[:3]:
        console.print(failure[-500:])
    return int(bool(failures) or any(number > 0 for number in rest.values()))


def main() -> int:
    """Play and count in a separate folder for temporary files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 commands")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        tempfile.tempdir = own  # other processes make folders in the usual one
        return asyncio.run(count(20 if options.quick else options.episodes, options.at_once))


if __name__ == "__main__":
    sys.exit(main())
