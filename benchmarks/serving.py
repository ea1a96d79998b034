"""Compare sampling from worker processes through the policy service with in-process sampling.

    python benchmarks/serving.py [--quick] [--episodes 256] [--workers 2] [--rounds 7]

This process plays concurrent episodes with its own sampling client. The worker processes play the
same number of episodes in total, with a client of the policy service for the same weights. Each
round plays both, in alternating order. The table shows the sampled tokens per second (median over
rounds), and the median and range of the per-round ratio. The model, seeds and prompts are the same,
so both sample about the same number of tokens. Exits with status 1 if a run fails or a median ratio
is below the target.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import tinker
import torch
from rich.console import Console
from rich.table import Table
from tinker_cookbook.completers import TinkerTokenCompleter
from tinker_cookbook.rl.rollouts import do_single_rollout

from evert import ChatAgentEnv, embedded_engine
from evert.envs.guess_number import guess_number_agent
from evert.envs.identity import identity_agent
from evert.trainers.serving.service import PolicyService

BAR = 0.85
GAMES = {"identity": (identity_agent, 16), "guess-number": (guess_number_agent, 16)}
"""Name -> agent and maximum tokens per reply."""

GIVE_UP = 600.0
"""Idle time in seconds before a worker exits."""


async def play(game: str, client: Any, tasks: Sequence[int]) -> int:
    """Play one episode per task concurrently; return the number of sampled tokens."""
    agent, cap = GAMES[game]
    policy = TinkerTokenCompleter(client, max_tokens=cap)
    found = await asyncio.gather(
        *[do_single_rollout(policy, ChatAgentEnv(agent, task)) for task in tasks]
    )
    return sum(len(turn.ac.tokens) for trajectory in found for turn in trajectory.transitions)


def work(pipe: Connection) -> None:
    """Run in a worker process: play the tasks received from the pipe, until None arrives."""
    torch.set_num_threads(1)
    with asyncio.Runner() as runner:  # a single loop, as in evert's workers
        while pipe.poll(GIVE_UP) and (order := pipe.recv()) is not None:
            pipe.send(runner.run(play(*order)))


class Workers:
    """Worker processes that stay alive between rounds."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        for _ in range(count):
            ours, theirs = context.Pipe()
            context.Process(target=work, args=(theirs,), daemon=True).start()
            self._pipes.append(ours)

    def play(self, game: str, client: Any, tasks: Sequence[int]) -> int:
        """Distribute ``play`` over the workers; return the number of sampled tokens."""
        count = len(self._pipes)
        for index, pipe in enumerate(self._pipes):
            pipe.send((game, client, tasks[index::count]))
        return sum(pipe.recv() for pipe in self._pipes)

    def end(self) -> None:
        """Stop the workers."""
        for pipe in self._pipes:
            pipe.send(None)


def timed(play: Any, *args: Any) -> float:
    """Call a function that returns a token count; return tokens per second."""
    start = time.perf_counter()
    tokens = play(*args)
    return float(tokens / (time.perf_counter() - start))


def measure(game: str, args: argparse.Namespace, workers: Workers) -> list[tuple[float, float]]:
    """Return tokens per second in process and through the service for each round."""
    with (
        tempfile.TemporaryDirectory() as root,
        embedded_engine(root, device="cpu", threads=1),
        PolicyService() as service,
        asyncio.Runner() as runner,
    ):
        service_client = tinker.ServiceClient()
        client = runner.run(service_client.create_sampling_client_async(base_model="evert-tiny"))
        served = service.offer(client)

        def here(tasks: Sequence[int]) -> int:
            return runner.run(play(game, client, tasks))

        def there(tasks: Sequence[int]) -> int:
            return workers.play(game, served, tasks)

        ways, found = [here, there], []
        for number in range(-1, args.rounds):
            tasks = [number * args.episodes + index for index in range(1, args.episodes + 1)]
            tasks = [1 + abs(task) % 1000 for task in tasks]
            speeds = {way: timed(way, tasks) for way in ways}
            print(game, number, *(f"{speeds[way]:,.0f}" for way in (here, there)), file=sys.stderr)
            if number >= 0:  # the first round is a warm-up
                found.append((speeds[here], speeds[there]))
            ways.reverse()
        return found


def main() -> None:
    """Run the benchmark; exit with 1 if a ratio is below the target."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--quick", action="store_true", help="one round, few episodes, no target")
    parser.add_argument("--episodes", type=int, default=256)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    if args.quick:
        args.episodes, args.rounds = 32, 1
    workers = Workers(args.workers)
    table = Table("game", "in process", "served", "ratio", "range")
    worst = float("inf")
    for game in GAMES:
        found = measure(game, args, workers)
        ratios = sorted(there / here for here, there in found)
        worst = min(worst, statistics.median(ratios))
        here, there = (statistics.median(column) for column in zip(*found, strict=True))
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        table.add_row(
            game, f"{here:,.0f}", f"{there:,.0f}", f"{statistics.median(ratios):.2f}", spread
        )
    workers.end()
    title = f"{args.episodes} concurrent episodes, {args.workers} workers; sampled tokens/s"
    Console(width=100).print(title, table, sep="\n")
    if worst < BAR and not args.quick:
        sys.exit(f"below the target of {BAR}")


if __name__ == "__main__":
    main()
