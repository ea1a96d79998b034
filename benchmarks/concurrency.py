"""What a suspended agent costs: many episodes that wait at their first model call, at once.

    python benchmarks/concurrency.py [--quick] [--agents 1000 10000]

For each number of agents: the time to start, to resume once and to close them, the memory that one
holds while it waits (beyond the same number of agents suspended without evert), and what is left
after the close: tasks, threads, open files, Python memory. Anything left fails the benchmark.
Memory is counted by tracemalloc, in a pass of its own, since counting slows everything down.
"""

import argparse
import asyncio
import gc
import itertools
import sys
import threading
import time
import tracemalloc
from dataclasses import dataclass
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from evert import AgentClient, ChatAgentEnv
from evert.bridge.rendering import prompt_renderer

QUESTION = "What is the largest prime below this number?"
KILOBYTE = 1024
LEFTOVER_BYTES_PER_AGENT = 64
"""Python memory that may remain an agent after the close: caches that were filled on the way."""


async def agent(client: AgentClient) -> float:
    """Two turns of one conversation."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        completion = await client.chat.completions.create(messages=messages)
        text = completion.choices[0].message.content
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": QUESTION}]
    return 1.0


async def bare_agent() -> None:
    """The same agent suspended without evert, to know what it holds itself."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    await asyncio.get_running_loop().create_future()
    messages.clear()


@dataclass
class Leftovers:
    """Numbers of tasks, threads and open files."""

    tasks: int
    threads: int
    files: int

    @classmethod
    def now(cls) -> "Leftovers":
        """What there is at present."""
        return cls(len(asyncio.all_tasks()), threading.active_count(), psutil.Process().num_fds())


async def start(count: int) -> list[ChatAgentEnv]:
    """Envs that wait at their first call."""
    envs = [ChatAgentEnv(agent) for _ in range(count)]
    await asyncio.gather(*(env.initial_observation() for env in envs))
    return envs


async def time_phases(count: int) -> tuple[float, float, float, Leftovers, Leftovers]:
    """Seconds to start, to step once and to close; leftovers before and after."""
    action = prompt_renderer(None).encode("997<|im_end|>")
    before = Leftovers.now()
    times = [time.perf_counter()]
    envs = await start(count)
    times.append(time.perf_counter())
    await asyncio.gather(*(env.step(action) for env in envs))
    times.append(time.perf_counter())
    await asyncio.gather(*(env.close() for env in envs))
    times.append(time.perf_counter())
    started, stepped, closed = (b - a for a, b in itertools.pairwise(times))
    del envs
    await asyncio.sleep(0)
    return started, stepped, closed, before, Leftovers.now()


async def count_memory(count: int) -> tuple[float, float]:
    """Bytes an agent: while suspended (beyond a bare one), and left after the close."""
    await asyncio.gather(*(env.close() for env in await start(10)))  # fill caches first
    gc.collect()
    tracemalloc.start()
    tasks = [asyncio.create_task(bare_agent()) for _ in range(count)]
    await asyncio.sleep(0)
    bare = tracemalloc.get_traced_memory()[0]
    while tasks:
        tasks.pop().cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    gc.collect()
    empty = tracemalloc.get_traced_memory()[0]
    envs = await start(count)
    gc.collect()
    held = tracemalloc.get_traced_memory()[0] - empty
    await asyncio.gather(*(env.close() for env in envs))
    envs.clear()
    await asyncio.sleep(0)
    gc.collect()
    left = tracemalloc.get_traced_memory()[0] - empty
    tracemalloc.stop()
    return (held - bare) / count, left / count


def main() -> None:
    """Measure and print the table; exit with 1 if anything is left behind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--agents", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--quick", action="store_true", help="1000 agents only")
    options = parser.parse_args()
    table = Table(title="Suspended agents")
    for column in ("agents", "start", "step", "close", "held", "left", "tasks/threads/files left"):
        table.add_column(column, justify="right")
    failed = False
    for count in [1_000] if options.quick else options.agents:
        started, stepped, closed, before, after = asyncio.run(time_phases(count))
        held, left = asyncio.run(count_memory(count))
        failed = failed or before != after or left > LEFTOVER_BYTES_PER_AGENT
        table.add_row(
            f"{count:,}",
            f"{started / count * 1e6:,.0f} µs",
            f"{stepped / count * 1e6:,.0f} µs",
            f"{closed / count * 1e6:,.0f} µs",
            f"{held / KILOBYTE:,.1f} KB",
            f"{left:,.0f} B",
            f"{after.tasks - before.tasks}/{after.threads - before.threads}"
            f"/{after.files - before.files}",
        )
    Console().print(table)
    if failed:
        sys.exit("Something was left behind (see the last columns).")


if __name__ == "__main__":
    main()
