"""Run command agents, which call the model over HTTP, and check for leaks.

    python benchmarks/commands.py [--quick] [--episodes 500] [--at-once 2]

The server stops whenever no rollout is running. With only two commands in parallel this happens
often, so a new server regularly starts just as the next command is about to call. Each command
makes one call, using only the standard library. The benchmark fails if a command gets no reply, or
if any socket, thread, task or folder is left at the end.
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
    """Scripted policy: reply to each command with the name of its task."""
    return f"echo of task-{prompt.partition('task-')[2].partition('<')[0]}"


async def play(numbers: range, failures: list[str]) -> None:
    """Run one command for each number, one after the other. Add errors to ``failures``."""
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
    """Count the resources that this process holds."""
    process = psutil.Process()
    return {
        "sockets": len(process.net_connections()),
        "descriptors": process.num_fds(),
        "threads": sum("asyncio" not in one.name for one in threading.enumerate()),
        "children": len(process.children(recursive=True)),
        "folders": len(glob.glob(f"{tempfile.gettempdir()}/evert-*")),
    }


async def count(episodes: int, at_once: int) -> int:
    """Run all commands and print what is left; return 1 if a command failed or leaked something."""
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
        f"{episodes} commands, {at_once} in parallel: {len(failures)} failed, "
        f"{1000 * seconds / episodes:.0f} ms each; left: "
        + ", ".join(f"{number} {name}" for name, number in rest.items())
    )
    for failure in failures[:3]:
        console.print(failure[-500:])
    return int(bool(failures) or any(number > 0 for number in rest.values()))


def main() -> int:
    """Run the benchmark in its own temporary folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="20 commands")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--at-once", type=int, default=2)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as own:
        tempfile.tempdir = own  # so that only this process's folders are counted
        return asyncio.run(count(20 if options.quick else options.episodes, options.at_once))


if __name__ == "__main__":
    sys.exit(main())
