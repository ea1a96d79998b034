"""Measure rollouts in worker processes: speedup, overhead, and recovery from killed workers.

    python benchmarks/workers.py [--quick]                     # a pool of processes
    .frameworks/trainers/bin/python benchmarks/workers.py --ray

Each part runs the unmodified ``rl.train.main`` with the embedded engine on one thread:

- heavy: an agent that computes for 50 ms per episode, on one worker and on two
- plain: identity, in this process and on two workers
- killed: ten steps, with one worker killed in each step; every group must still complete

Times are the seconds that a step spends on rollouts (``time/sampling``), as the median over all
steps but the first two, in which the workers start. The benchmark fails if a result misses its
target.
"""

import argparse
import asyncio
import json
import logging
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

from tinker_cookbook.rl import train as cookbook

import evert
from evert.trainers.config.train import TrainSettings
from evert.trainers.training.cookbook import cookbook_config

GROUPS, SIZE = 16, 8
BURN = 0.05
"""CPU seconds per episode."""
BAR = 1.8
"""Minimum speedup from one to two workers."""


def identity(burn: float = 0.0, dying: Path | None = None) -> Callable[..., Any]:
    """Return an agent that burns CPU. If ``dying`` has a file for the task, it kills its worker."""

    def work(task: int) -> None:
        end = time.thread_time() + burn
        while time.thread_time() < end:
            sum(number * number for number in range(500))
        if dying is not None and (dying / str(task)).exists():
            (dying / str(task)).unlink()
            os.kill(os.getpid(), signal.SIGKILL)

    async def agent(client: Any, task: int) -> float:
        said = await client.chat.completions.create(
            messages=[{"role": "user", "content": f"Let's play a game. Say you are {task}."}]
        )
        work(task)
        return float(len(said.choices[0].message.content) % 7)

    return agent


def executor_of(kind: str, workers: int) -> Any:
    """Return an executor with the given workers, or a null context for 0 workers."""
    if not workers:
        return nullcontext()
    if kind == "ray":
        from evert.ray import RayRollouts

        return RayRollouts(workers, GROUPS)
    return evert.PoolRollouts(workers, GROUPS)


def run(agent: Any, kind: str, workers: int, steps: int) -> tuple[list[dict[str, Any]], int]:
    """Train; return the metrics of each step and the number of lost groups."""
    folder = Path(tempfile.mkdtemp(prefix="evert-workers-"))
    settings = TrainSettings(
        agent=agent, train_tasks=range(GROUPS * steps), steps=steps, batch_size=GROUPS,
        group_size=SIZE, max_tokens=16, eval_every=0, save_every=0,
        cookbook={"dataset_builder.shuffle": False},
    )  # fmt: skip
    config = cookbook_config(settings, folder / "log", embedded=False)
    with (
        evert.embedded_engine(folder / "store", device="cpu", threads=1),
        executor_of(kind, workers) as executor,
        redirect_stdout(sys.stderr),
    ):
        asyncio.run(cookbook.main(config, rollout_executor=executor))
    rows = [json.loads(line) for line in (folder / "log/metrics.jsonl").read_text().splitlines()]
    return rows, getattr(executor, "lost_groups", 0)


def seconds(rows: list[dict[str, Any]]) -> float:
    """Return the median rollout time per step in seconds, excluding the first two steps."""
    return float(statistics.median(row["time/sampling"] for row in rows[2:]))


def heavy(kind: str, steps: int, pairs: int) -> float:
    """Return the speedup from one to two workers, as the median over pairs of runs."""
    found = [
        [seconds(run(identity(BURN), kind, n, steps)[0]) for n in (1, 2)] for _ in range(pairs)
    ]
    gains = [one / two for one, two in found]
    here = seconds(run(identity(BURN), kind, 0, steps)[0])
    print(f"{BURN * 1e3:.0f} ms of CPU per episode, {GROUPS * SIZE} episodes: local {here:.2f} s")
    for one, two in found:
        print(f"  one worker {one:.2f} s, two {two:.2f} s: {one / two:.2f} times")
    return statistics.median(gains)


def plain(kind: str, steps: int) -> None:
    """Measure identity in process and on two workers."""
    here, there = [seconds(run(identity(), kind, n, steps)[0]) for n in (0, 2)]
    print(f"identity, {GROUPS * SIZE} episodes: local {here:.2f} s, two workers {there:.2f} s")


def killed(kind: str, steps: int) -> int:
    """Return how many steps complete although a worker is killed in each step."""
    dying = Path(tempfile.mkdtemp(prefix="evert-dying-"))
    for step in range(steps):
        (dying / str(step * GROUPS)).touch()
    rows, lost = run(identity(dying=dying), kind, 2, steps)
    whole = [row for row in rows if row["env/all/total_episodes"] == GROUPS * SIZE]
    left = len([*dying.iterdir()])
    print(f"a worker killed in each of {steps} steps: {len(whole)} complete, {lost} groups lost")
    return 0 if left else len(whole)


def main() -> int:
    """Run the parts; return 1 if a result misses its target."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--ray", action="store_true", help="use Ray actors instead of a pool")
    parser.add_argument("--quick", action="store_true", help="few steps, one pair of runs")
    given = parser.parse_args()
    logging.disable(logging.INFO)
    kind = "ray" if given.ray else "pool"
    steps, deaths = (4, 3) if given.quick else (6, 10)
    gain = heavy(kind, steps, 1 if given.quick else 3)
    plain(kind, steps)
    came_back = killed(kind, deaths)
    print(f"{kind}: {gain:.2f} times (target {BAR}); {came_back} of {deaths} steps")
    return int(gain < BAR or came_back < deaths)


if __name__ == "__main__":
    sys.exit(main())
