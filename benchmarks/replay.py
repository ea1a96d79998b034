"""Replay a thousand recorded rollouts; check the transitions and measure the speedup.

    python benchmarks/replay.py [--quick]

``evert-tiny`` plays two agents in the engine, with 64 concurrent episodes as in training, and
every rollout is recorded. The rollouts are then replayed one by one; the time includes reading the
file. In both cases the agent runs, prompts are rendered and replies are parsed. A replay therefore
saves only the time for sampling, which is shorter for ``evert-tiny`` than for larger models.

    chat            four replies of up to 64 tokens, about one or two sentences each
    guess-number    ten replies of six tokens, so there is little to save

Exits with status 1 if a transition differs, or if replaying the chat is not at least 20 times as
fast as sampling it.
"""

import argparse
import asyncio
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tinker
from rich.console import Console
from rich.table import Table
from tinker_cookbook.rl.rollouts import do_single_rollout
from tinker_cookbook.rl.types import Trajectory

from evert import ChatAgentEnv, Recorder, read_records, replay
from evert.bridge.episode.agent import Agent
from evert.bridge.tokens.bases import BASE_MODEL
from evert.envs.guess_number import TRAIN_TASKS, guess_number_agent
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.episodes.policies import SeededPolicy

ROLLOUTS, PARALLEL = 1000, 64
TURNS, TOKENS = 4, 64
LEAST_FASTER = 20.0


async def chat(client: Any, task: int) -> float:
    """Have a conversation of ``TURNS`` turns."""
    messages: list[Any] = []
    for turn in range(TURNS):
        messages.append({"role": "user", "content": f"Tell me about {task}, part {turn}."})
        completion = await client.chat.completions.create(messages=messages)
        messages.append(completion.choices[0].message)
    return float(len(messages))


@dataclass(frozen=True)
class Case:
    """An agent to play.

    Attributes:
        temperature: At 10, a tiny model samples random text up to the token limit.
        faster: Minimum speedup of the replay, or None for no minimum.
    """

    name: str
    agent: Agent
    tasks: Sequence[Any]
    temperature: float
    faster: float | None = None


CASES = (
    Case("chat", chat, range(1000), 10.0, LEAST_FASTER),
    Case("guess-number", guess_number_agent, TRAIN_TASKS, 1.0),
)


def facts(trajectory: Trajectory) -> list[tuple[Any, ...]]:
    """Return everything in the transitions that must be the same."""
    return [
        (turn.ob.to_ints(), turn.ac, turn.reward, turn.episode_done, turn.metrics)
        for turn in trajectory.transitions
    ]


async def sample(
    case: Case, client: Any, count: int, recorder: Recorder
) -> tuple[float, list[Trajectory]]:
    """Play and record episodes; return the seconds spent playing and the trajectories."""
    places = asyncio.Semaphore(PARALLEL)
    tasks = [case.tasks[number % len(case.tasks)] for number in range(count)]
    envs = [recorder.watch(ChatAgentEnv(case.agent, task)) for task in tasks]

    async def one(number: int) -> Trajectory:
        async with places:
            policy = SeededPolicy(client, TOKENS, case.temperature, 100 * number)
            return await do_single_rollout(policy, envs[number])

    began = time.perf_counter()
    played = await asyncio.gather(*map(one, range(count)))
    seconds = time.perf_counter() - began
    for trajectory, env in zip(played, envs, strict=True):
        recorder.add([trajectory], [env])
    return seconds, played


async def play_again(case: Case, path: Path) -> tuple[float, list[Trajectory]]:
    """Replay all recorded episodes; return the seconds and the trajectories."""
    await replay(next(read_records(path)), case.agent)  # warm up
    began = time.perf_counter()
    played = [await replay(record, case.agent) for record in read_records(path)]
    return time.perf_counter() - began, played


def measure(case: Case, client: Any, count: int, folder: Path, table: Table) -> bool:
    """Sample and replay a case; return whether it matches and is fast enough."""
    file = folder / f"{case.name}.jsonl"
    sampling, played = asyncio.run(sample(case, client, count, Recorder(file)))
    replaying, again = asyncio.run(play_again(case, file))
    same = [*map(facts, played)] == [*map(facts, again)]
    turns = sum(len(each.transitions) for each in played)
    tokens = sum(len(turn.ac.tokens) for each in played for turn in each.transitions)
    table.add_row(
        case.name,
        f"{turns / count:.1f}",
        f"{tokens / turns:.1f}",
        f"{file.stat().st_size / count / 1000:.1f}",
        f"{1000 * sampling / count:.2f}",
        f"{1000 * replaying / count:.2f}",
        f"{sampling / replaying:.1f}",
        "identical" if same else "DIFFERENT",
    )
    return same and (case.faster is None or sampling / replaying >= case.faster)


def main() -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="100 rollouts per agent")
    count = 100 if parser.parse_args().quick else ROLLOUTS
    columns = "turns", "tokens", "KB", "sampled", "replayed", "faster"
    table = Table("", *columns, "transitions", title=f"{count} rollouts per agent")
    with tempfile.TemporaryDirectory() as name, embedded_engine(Path(name) / "store"):
        client = tinker.ServiceClient().create_sampling_client(base_model=BASE_MODEL)
        fine = [measure(case, client, count, Path(name), table) for case in CASES]
    console = Console()
    console.print(table)
    console.print("tokens per turn; KB per line; sampled, replayed: ms per rollout")
    console.print(f"{platform.machine()}, Python {platform.python_version()}")
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
