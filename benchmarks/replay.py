"""A thousand recorded rollouts, played again: the same transitions, and how much faster.

    python benchmarks/replay.py [--quick]

Guess-number is played by the shipped base in the engine, 64 episodes at a time, and every rollout
is recorded. Then each is played again from its record, one after the other. Sampled and replayed is
timed alike: from the first Env to the last trajectory; reading the file counts for the replay. The
largest share of the sampling is the model's, and this one is tiny: any other is slower. Exits with
1 where a transition differs, or where the replay is less than 20 times faster.
"""

import argparse
import asyncio
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import tinker
from rich.console import Console
from rich.table import Table
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv, Recorder, read_records, replay
from evert.bridge.base import BASE_MODEL
from evert.envs.guess_number import TRAIN_TASKS, guess_number_agent
from evert.trainers.engine.engine import embedded_engine
from evert.trainers.evaluation.policies import SeededPolicy

ROLLOUTS, PARALLEL, MAX_TOKENS = 1000, 64, 32
LEAST_FASTER = 20.0


def facts(trajectory: Trajectory) -> list[tuple[Any, ...]]:
    """What of each transition has to be the same."""
    return [
        (turn.ob.to_ints(), turn.ac, turn.reward, turn.episode_done, turn.metrics)
        for turn in trajectory.transitions
    ]


async def sample(client: Any, count: int, recorder: Recorder) -> tuple[float, list[Trajectory]]:
    """Play and record episodes; the seconds that playing them took, and the trajectories."""
    places = asyncio.Semaphore(PARALLEL)
    envs = [
        recorder.watch(ChatAgentEnv(guess_number_agent, TRAIN_TASKS[number % len(TRAIN_TASKS)]))
        for number in range(count)
    ]

    async def one(number: int) -> Trajectory:
        async with places:
            policy = SeededPolicy(client, MAX_TOKENS, 1.0, 100 * number)
            return await do_single_rollout(policy, envs[number])

    began = time.perf_counter()
    played = await asyncio.gather(*map(one, range(count)))
    seconds = time.perf_counter() - began
    for trajectory, env in zip(played, envs, strict=True):
        recorder.add([trajectory], [env])
    return seconds, played


async def play_again(path: Path) -> tuple[float, list[Trajectory]]:
    """Play all episodes on record; the seconds, and the trajectories."""
    began = time.perf_counter()
    played = [await replay(record, guess_number_agent) for record in read_records(path)]
    return time.perf_counter() - began, played


def main() -> int:
    """Run the benchmark; the exit status says whether the bar was met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 rollouts")
    count = 100 if parser.parse_args().quick else ROLLOUTS
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rollouts.jsonl"
        with embedded_engine(Path(folder) / "store"):
            client = tinker.ServiceClient().create_sampling_client(base_model=BASE_MODEL)
            sampling, played = asyncio.run(sample(client, count, Recorder(file)))
        replaying, again = asyncio.run(play_again(file))
        size = file.stat().st_size
    same = [*map(facts, played)] == [*map(facts, again)]
    tokens = sum(len(turn.ac.tokens) for each in played for turn in each.transitions)
    turns = sum(len(each.transitions) for each in played)
    table = Table("", "seconds", "ms a rollout", title=f"{count} rollouts of guess-number")
    for name, seconds in (("sampled", sampling), ("replayed", replaying)):
        table.add_row(name, f"{seconds:.2f}", f"{1000 * seconds / count:.2f}")
    console = Console()
    console.print(table)
    console.print(f"{turns} turns, {tokens} sampled tokens, {size / count / 1000:.1f} KB a line")
    console.print(f"identical transitions: {same}; {sampling / replaying:.1f} times faster")
    console.print(f"{platform.machine()}, Python {platform.python_version()}")
    return 0 if same and sampling / replaying >= LEAST_FASTER else 1


if __name__ == "__main__":
    sys.exit(main())
