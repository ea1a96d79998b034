"""Compare per-turn and per-episode credit on an agent with ten turns and one scored turn.

    python benchmarks/credit.py [--seeds 0 1 2] [--plot docs/credit.png] [--quick]

In the third turn, the agent asks evert-tiny who it is, as in the identity game, and scores the
answer immediately with ``client.reward``. In each of the other nine turns, the agent asks for a
color and does not score the answer. Both arms use the loop from ``docs/own-loop.md`` with the same
loss and learning rate. They differ in one argument: ``batch.data()`` gives all ten turns the
episode's advantage, while ``batch.data(gamma=0.0)`` computes each turn's advantage from that turn's
reward alone.

A run counts as solved when its mean reward over five steps reaches 0.9. Runs already in the results
folder are not repeated. Exits with status 1 if a run is not solved, or if per-turn credit takes
more than half as many steps as per-episode credit, summed over seeds.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import tinker
from rich.console import Console

import evert
from evert.envs.identity import TRAIN_TASKS, score
from evert.trainers.reporting.figures.curves import draw_panel
from evert.trainers.reporting.figures.metrics import Curve
from evert.trainers.reporting.figures.style import save as save_figure
from evert.trainers.system.provenance import origin

TURNS, DECIDES = 10, 2
ARMS = {"by episode": None, "by turn": 0.0}
"""Arm -> the ``gamma`` passed to ``batch.data``."""
TASKS, GROUP_SIZE, LEARNING_RATE, MAX_TOKENS = 4, 4, 1e-3, 16
MOST_STEPS, LAST, SOLVED = 100, 5, 0.9


async def ten_turns(client: evert.AgentClient, task: Sequence[int]) -> float:
    """Ask ten questions, only one of which is scored."""
    for turn, number in enumerate(task):
        asked = f"{turn + 1} of {TURNS}. Say a color, {number}."
        if turn == DECIDES:
            asked = f"Let's play a game. Say you are {number}."
        completion = await client.chat.completions.create(
            messages=[{"role": "user", "content": asked}]
        )
        if turn == DECIDES:
            client.reward(score(completion.choices[0].message.content or "", number))
    return 0.0


async def learn(gamma: float | None, seed: int, most: int) -> list[float]:
    """Train until solved, for at most ``most`` steps; return the mean reward of each step."""
    service = tinker.ServiceClient()
    trainer = await service.create_lora_training_client_async("evert-tiny", rank=32)
    adam = tinker.AdamParams(learning_rate=LEARNING_RATE, beta1=0.9, beta2=0.95, eps=1e-8)
    draw = random.Random(seed)
    rewards: list[float] = []
    while len(rewards) < most and not is_solved(rewards):
        policy = await trainer.save_weights_and_get_sampling_client_async()
        tasks = [draw.choices(TRAIN_TASKS, k=TURNS) for _ in range(TASKS)]
        batch = await evert.rollout(
            ten_turns,
            tasks,
            policy,
            group_size=GROUP_SIZE,
            max_tokens=MAX_TOKENS,
            seed=1000 * seed + len(rewards),
        )
        data = batch.data(gamma=gamma)
        backward = await trainer.forward_backward_async(data, "importance_sampling")
        update = await trainer.optim_step_async(adam)
        await backward
        await update
        rewards.append(float(batch.rewards.mean()))
    return rewards


def is_solved(rewards: Sequence[float]) -> bool:
    """Return whether the mean reward over the most recent steps is high enough."""
    return len(rewards) >= LAST and fmean(rewards[-LAST:]) >= SOLVED


def run(arm: str, seed: int, out: Path, most: int) -> dict[str, Any]:
    """Return the record of a run. If the run has no file yet, train it first."""
    path = out / f"{arm.replace(' ', '-')}-{seed}.json"
    if not path.exists():
        began = time.monotonic()
        with evert.embedded_engine(out / "store" / path.stem, threads=1, seed=seed):
            rewards = asyncio.run(learn(ARMS[arm], seed, most))
        found = {"arm": arm, "seed": seed, "rewards": rewards, "solved": is_solved(rewards)}
        record = {**found, "seconds": time.monotonic() - began, **origin()}
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return read


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if it fails."""
    options = parse(argv)
    console = Console(highlight=False)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    found: dict[str, list[dict[str, Any]]] = {arm: [] for arm in ARMS}
    for seed in options.seeds:
        for arm, runs in found.items():
            runs.append(run(arm, seed, out, 2 if options.quick else MOST_STEPS))
            taken, solved = len(runs[-1]["rewards"]), runs[-1]["solved"]
            console.print(f"seed {seed}, credit {arm}: {'solved' if solved else 'not'} in {taken}")
    if options.quick:
        return 0
    if options.plot:
        plot(found, Path(options.plot))
    steps = {arm: sum(len(each["rewards"]) for each in runs) for arm, runs in found.items()}
    share = steps["by turn"] / steps["by episode"]
    console.print(f"steps over {len(options.seeds)} seeds: {steps}; ratio {share:.2f}")
    all_solved = all(each["solved"] for runs in found.values() for each in runs)
    return 0 if all_solved and share <= 0.5 else 1


def plot(found: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Plot the running mean reward of each run."""
    lines = [
        (f"{arm}, seed {each['seed']}", curve(each["rewards"]))
        for arm, runs in found.items()
        for each in runs
    ]
    title = "Only the third of ten turns is scored"
    save_figure(draw_panel(title, f"mean reward over {LAST} steps", lines), path)


def curve(rewards: Sequence[float]) -> Curve:
    """Return the running mean of the rewards as a curve."""
    steps = range(1, len(rewards) + 1)
    means = [fmean(rewards[max(0, step - LAST) : step]) for step in steps]
    return Curve(steps=[*steps], seconds=[0.0] * len(means), scores=means)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="two steps per run, no target")
    parser.add_argument("--plot", default="", help="where to save the plot")
    parser.add_argument("--out", default="runs/benchmark-credit", help="results folder")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
