"""Measure the cost of suspended agents and the speedup from concurrent calls.

    python benchmarks/concurrency.py [--quick] [--agents 1000 10000] [--repeats 7]

In the first table, many episodes are suspended at their first model call. For each number of
agents, it shows the time to start, step and close the agents, the memory per suspended agent (minus
the memory of an agent that is suspended without evert), and what is left after the agents are
closed: tasks, threads, open files and Python memory. The benchmark fails if anything is left.
Memory is measured with tracemalloc in a separate pass, because tracing slows everything down.

In the second table, agents make several calls at the same time with ``asyncio.gather``, and the
policy takes 50 ms per call. The table shows how long a whole group takes with the Cookbook's
``FailFast`` and with ``ParallelRollouts`` (median and best over the repeats), and how many calls
were sampled concurrently. The benchmark fails unless all calls were sampled concurrently. In the
last row, an agent makes ten sequential calls to a policy that replies immediately. This row shows
CPU microseconds per turn for both strategies, and the difference.
"""

import argparse
import asyncio
import gc
import itertools
import statistics
import sys
import threading
import time
import tracemalloc
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table
from tinker_cookbook.completers import TokenCompleter, TokensWithLogprobs
from tinker_cookbook.rl.rollout_strategy import FailFast, RolloutStrategy
from tinker_cookbook.rl.rollouts import do_group_rollout

from evert import AgentClient, ChatAgentEnv, ChatAgentGroupBuilder, ParallelRollouts
from evert.bridge.tokens.renderer import prompt_renderer

QUESTION = "What is the largest prime below this number?"
KILOBYTE = 1024
LEFTOVER_BYTES_PER_AGENT = 64
"""Bytes of Python memory per agent that caches may still hold after the agents are closed."""


async def agent(client: AgentClient, turns: int = 2) -> float:
    """Have a conversation of several turns."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    for _ in range(turns):
        completion = await client.chat.completions.create(messages=messages)
        text = completion.choices[0].message.content
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": QUESTION}]
    return 1.0


async def bare_agent() -> None:
    """Suspend like the agent, but without evert, to measure baseline memory."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": QUESTION}]
    await asyncio.get_running_loop().create_future()
    messages.clear()


def present() -> tuple[int, int, int]:
    """Return the number of tasks, threads and open files."""
    return len(asyncio.all_tasks()), threading.active_count(), psutil.Process().num_fds()


async def start(count: int) -> list[ChatAgentEnv]:
    """Return Envs that are suspended at their first call."""
    envs = [ChatAgentEnv(agent) for _ in range(count)]
    await asyncio.gather(*(env.initial_observation() for env in envs))
    return envs


async def time_phases(count: int) -> tuple[list[float], list[int]]:
    """Return the times to start, step once and close, and what is left (see ``present``)."""
    action = prompt_renderer(None).encode("997<|im_end|>")
    before = present()
    times = [time.perf_counter()]
    envs = await start(count)
    times.append(time.perf_counter())
    await asyncio.gather(*(env.step(action) for env in envs))
    times.append(time.perf_counter())
    await asyncio.gather(*(env.close() for env in envs))
    times.append(time.perf_counter())
    del envs
    await asyncio.sleep(0)
    left = [now - then for then, now in zip(before, present(), strict=True)]
    return [after - before for before, after in itertools.pairwise(times)], left


async def count_memory(count: int) -> tuple[float, float]:
    """Return bytes per agent: held while suspended (minus a bare agent's), and left when closed."""
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


# -- concurrent calls ------------------------------------------------------------------------------


class Slow(TokenCompleter):
    """A policy that returns the same reply after a delay.

    Attributes:
        most: Peak number of concurrent calls so far.
    """

    def __init__(self, seconds: float) -> None:
        tokens = prompt_renderer(None).encode("997<|im_end|>")
        self._answer = TokensWithLogprobs(tokens=tokens, maybe_logprobs=[-1.0] * len(tokens))
        self._seconds = seconds
        self._present = self.most = 0

    async def __call__(self, *_: Any, **__: Any) -> TokensWithLogprobs:
        """Return the reply."""
        self._present += 1
        self.most = max(self.most, self._present)
        if self._seconds:
            await asyncio.sleep(self._seconds)
        self._present -= 1
        return self._answer


async def gathers(client: AgentClient, count: int) -> float:
    """Make ``count`` concurrent calls."""
    prompts = [[{"role": "user", "content": f"{QUESTION} {number}"}] for number in range(count)]
    await asyncio.gather(*(client.chat.completions.create(messages=prompt) for prompt in prompts))
    return 1.0


async def play(strategy: RolloutStrategy, calls: int, episodes: int) -> tuple[float, int]:
    """Return a group's run time with a 50 ms policy, and the peak number of concurrent calls."""
    policy = Slow(0.05)
    builder = ChatAgentGroupBuilder(gathers, calls, episodes)
    start = time.perf_counter()
    await do_group_rollout(builder, policy, strategy)
    return time.perf_counter() - start, policy.most


async def at_the_same_time(repeats: int) -> tuple[Table, bool]:
    """Return the second table, and whether all calls were sampled concurrently."""
    table = Table(title="Concurrent calls with a 50 ms policy")
    for column in ("calls", "FailFast", "ParallelRollouts", "best", "target", "concurrent"):
        table.add_column(column, justify="right")
    complete = True
    for name, episodes, calls, bar in (("16 gathered", 1, 16, 75), ("16 episodes of 4", 16, 4, 80)):
        before, _ = await play(FailFast(), calls, episodes)
        taken = [await play(ParallelRollouts(), calls, episodes) for _ in range(repeats)]
        seconds = [each for each, _ in taken]
        most = min(at_once for _, at_once in taken)
        complete = complete and most == episodes * calls
        cells = (before, statistics.median(seconds), min(seconds))
        shown = [f"{each * 1e3:,.0f} ms" for each in cells]
        table.add_row(name, *shown, f"{bar} ms", f"{most} of {episodes * calls}")
    plain, parallel = await one_after_the_other(repeats)
    ratio = statistics.median(b / a for a, b in zip(plain, parallel, strict=True))
    shown = [f"{statistics.median(each):,.0f} µs" for each in (plain, parallel)]
    table.add_row("one by one, per turn", *shown, f"{ratio - 1:+.1%}", "+5%", "1")
    return table, complete


async def one_after_the_other(repeats: int) -> tuple[list[float], list[float]]:
    """Return CPU microseconds per turn of sequential calls, for each rollout strategy."""
    policy, times = Slow(0), ([0.0] * 0, [0.0] * 0)
    for _ in range(4 * repeats):
        for strategy, taken in zip((FailFast(), ParallelRollouts()), times, strict=True):
            builder = ChatAgentGroupBuilder(agent, 10, 16)
            start = time.process_time()
            await do_group_rollout(builder, policy, strategy)
            taken.append((time.process_time() - start) / 160 * 1e6)
    return times


# -- the command -----------------------------------------------------------------------------------


def main() -> None:
    """Print the tables; exit with 1 if anything is left or calls were not concurrent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--agents", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="only 1000 agents")
    options = parser.parse_args()
    table = Table(title="Suspended agents")
    for column in ("agents", "start", "step", "close", "held", "left", "tasks/threads/files left"):
        table.add_column(column, justify="right")
    failed = False
    for count in [1_000] if options.quick else options.agents:
        seconds, things = asyncio.run(time_phases(count))
        held, left = asyncio.run(count_memory(count))
        failed = failed or any(things) or left > LEFTOVER_BYTES_PER_AGENT
        table.add_row(
            f"{count:,}",
            *(f"{each / count * 1e6:,.0f} µs" for each in seconds),
            f"{held / KILOBYTE:,.1f} KB",
            f"{left:,.0f} B",
            "/".join(map(str, things)),
        )
    Console().print(table)
    calls, complete = asyncio.run(at_the_same_time(options.repeats))
    Console().print(calls)
    if failed:
        sys.exit("Something was left behind; see the last columns of the first table.")
    if not complete:
        sys.exit("Some concurrent calls were not sampled concurrently.")


if __name__ == "__main__":
    main()
