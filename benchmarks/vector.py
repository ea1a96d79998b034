"""Compare vector environments whose agents wait for a slow tool.

    python benchmarks/vector.py [--quick]

The agent waits 50 ms between model calls, either with ``asyncio.sleep`` or blocking with
``time.sleep``. 64 environments (16 with ``--quick``) are stepped in three ways:

- sync: Gymnasium's ``SyncVectorEnv``, sequentially
- async: Gymnasium's ``AsyncVectorEnv``, one process per environment
- ours: ``AgentVectorEnv``, one event loop in one process

Times are medians over the steps after the first two. With 64 environments, the benchmark fails if
ours is not at least 40 times as fast as sync; with 16, if ours is not at least 10 times as fast.
Both limits correspond to 80 ms per step.
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
"""Duration of a tool call in seconds."""
STEP = 0.08
"""Maximum duration of a step of all environments, in seconds."""
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
    """Blocking version of ``waiting_agent``, which runs in a thread."""
    messages = [{"role": "user", "content": "Which tool?"}]
    while True:
        said = client.chat.completions.create(messages=messages)
        time.sleep(TOOL)
        messages.append({"role": "assistant", "content": said.choices[0].message.content})
        messages.append({"role": "user", "content": "And now?"})


def seconds(id: str, mode: str, count: int, steps: int) -> float:
    """Return the median duration of a step of all environments, in seconds."""
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
    """Run the benchmark; return 1 if the speedup misses its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--quick", action="store_true", help="16 environments, few steps")
    quick = parser.parse_args().quick
    count, steps = (16, 5) if quick else (64, 15)
    bar = count * TOOL / STEP
    evert.register_agent("benchmark/Waiting-v0", waiting_agent)
    evert.register_agent("benchmark/Blocking-v0", blocking_agent)
    print(f"one step of {count} environments with a {TOOL * 1e3:.0f} ms tool")
    missed = False
    for kind in ("Waiting", "Blocking"):
        id = f"benchmark/{kind}-v0"
        sync, processes = (seconds(id, mode, count, 1 + steps // 5) for mode in ("sync", "async"))
        ours = seconds(id, "ours", count, steps)
        missed |= sync / ours < bar
        print(
            f"  {kind.lower():8}  sync {sync * 1e3:5.0f} ms, async {processes * 1e3:4.0f} ms, "
            f"ours {ours * 1e3:3.0f} ms: {sync / ours:.1f} times sync's speed (target {bar:.0f}), "
            f"{processes / ours:.1f} times as fast as async"
        )
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
