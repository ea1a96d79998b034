"""Many environments whose agents wait for a slow tool: the time of one step, in three ways.

    python benchmarks/vector.py [--quick]

64 environments (16 with ``--quick``) of an agent that waits 50 ms between two model calls, either
async, in ``asyncio.sleep``, or blocking, in ``time.sleep``:

- sync: Gymnasium's ``SyncVectorEnv``, one after the other;
- async: Gymnasium's ``AsyncVectorEnv``, one process per environment;
- ours: ``AgentVectorEnv``, on one event loop in one process.

The time is the median of the steps after the first two. The benchmark fails if ours is not 40 times
as fast as sync with 64 environments (10 times with 16): a step of 80 ms with a tool of 50 ms.
"""

import argparse
import asyncio
import statistics
import sys
import time
from typing import Any

import gymnasium

import evert

TOOL = 0.05
"""Seconds that the tool takes."""
STEP = 0.08
"""Seconds that a step of all environments may take."""
MODES: dict[str, dict[str, Any]] = {
    "sync": {"vectorization_mode": "sync"},
    "async": {"vectorization_mode": "async", "vector_kwargs": {"shared_memory": False}},
    "ours": {"vectorization_mode": "vector_entry_point"},
}


async def waiting_agent(client: Any) -> float:
    """Wait for a tool after each reply."""
    messages = [{"role": "user", "content": "Which tool?"}]
    while True:
        said = await client.chat.completions.create(messages=messages)
        await asyncio.sleep(TOOL)
        messages.append({"role": "assistant", "content": said.choices[0].message.content})
        messages.append({"role": "user", "content": "And now?"})


def blocking_agent(client: Any) -> float:
    """Do the same as a blocking agent, which runs in a thread."""
    messages = [{"role": "user", "content": "Which tool?"}]
    while True:
        said = client.chat.completions.create(messages=messages)
        time.sleep(TOOL)
        messages.append({"role": "assistant", "content": said.choices[0].message.content})
        messages.append({"role": "user", "content": "And now?"})


def seconds(id: str, mode: str, count: int, steps: int) -> float:
    """Return the median seconds of a step of all environments."""
    envs = gymnasium.make_vec(id, num_envs=count, **MODES[mode])
    envs.reset(seed=0)
    times = []
    for _ in range(2 + steps):
        start = time.perf_counter()
        envs.step(("the first one",) * count)
        times.append(time.perf_counter() - start)
    envs.close()
    return statistics.median(times[2:])


def main() -> int:
    """Measure both agents; return 1 if the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="16 environments, few steps")
    quick = parser.parse_args().quick
    count, steps = (16, 5) if quick else (64, 15)
    bar = count * TOOL / STEP
    evert.register_agent("benchmark/Waiting-v0", waiting_agent)
    evert.register_agent("benchmark/Blocking-v0", blocking_agent)
    print(f"one step of {count} environments, a tool of {TOOL * 1e3:.0f} ms")
    missed = False
    for kind in ("Waiting", "Blocking"):
        id = f"benchmark/{kind}-v0"
        sync, processes = (seconds(id, mode, count, 1 + steps // 5) for mode in ("sync", "async"))
        ours = seconds(id, "ours", count, steps)
        missed |= sync / ours < bar
        print(
            f"  {kind.lower():8}  sync {sync * 1e3:5.0f} ms, async {processes * 1e3:4.0f} ms, "
            f"ours {ours * 1e3:3.0f} ms: {sync / ours:.1f} times as fast as sync (bar {bar:.0f}), "
            f"{processes / ours:.1f} times as async"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
