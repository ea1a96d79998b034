"""Measure how many groups give a learning signal with and without ``evert:Curriculum``.

    python benchmarks/curriculum.py [--quick] [--seeds 1] [--steps 16]

The game is guess-number with three types of tasks: a quarter are the original tasks, a quarter are
hopeless (no guess is right), and half are solved (every guess is right). Hopeless and solved tasks
give no learning signal. The same run (``evert train`` with the embedded engine, starting from
``evert-tiny``) is made with tasks in order, and again with ``sampler=evert:Curriculum``. The script
prints the fraction of groups whose episodes have different rewards (the Cookbook's
``env/all/by_group/frac_mixed``), over all steps. The benchmark fails if the sampler does not at
least double this fraction.
"""

import argparse
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from evert.envs.guess_number import (
    MAX_TURNS,
    SYSTEM_PROMPT,
    TRAIN_TASKS,
    UPPER_BOUND,
    judge,
)
from evert.trainers.commands.train import train
from evert.trainers.training.progress import quiet_progress_bars

BAR = 2.0
TEACHES = "env/all/by_group/frac_mixed"
SAMPLERS = {"in turn": "", "Curriculum": "evert:Curriculum"}
KINDS = ("own", "hopeless", "solved", "solved")
TASKS = [(KINDS[place % 4], number) for place, number in enumerate(TRAIN_TASKS)]


async def mixed_agent(client: Any, task: tuple[str, int]) -> float:
    """Play guess-number. Every guess is right in a solved task, and none in a hopeless task."""
    kind, number = task
    messages: list[Any] = [{"role": "system", "content": SYSTEM_PROMPT}]
    for _ in range(MAX_TURNS):
        completion = await client.chat.completions.create(messages=messages)
        answer = completion.choices[0].message.content or ""
        feedback, reward = judge(answer, number if kind != "hopeless" else 10 * UPPER_BOUND)
        if reward == 1.0 or (kind == "solved" and reward == 0.0):
            return 1.0
        client.reward(reward)
        messages += [completion.choices[0].message, {"role": "user", "content": feedback}]
    return 0.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if the result misses its target."""
    options = parse(argv)
    quiet_progress_bars()
    console = Console(highlight=False)
    shares: dict[str, list[list[float]]] = {name: [] for name in SAMPLERS}
    for seed in range(options.seeds):
        for name, sampler in SAMPLERS.items():
            console.rule(f"{name}, seed {seed}")
            folder = Path(options.out) / f"{name.replace(' ', '-')}-seed{seed}"
            shares[name].append(run(sampler, seed, options, folder, console))
    console.print(table(shares))
    [before, after] = [fmean(map(fmean, runs)) for runs in shares.values()]
    ratio = after / before
    console.print(f"{ratio:.2f} times as many groups with a signal (target: {BAR:g})")
    if ratio < BAR and not options.quick:
        print(f"FAILED {ratio:.2f} times the groups with a signal; target {BAR:g}", file=sys.stderr)
        return 1
    return 0


def run(
    sampler: str, seed: int, options: argparse.Namespace, folder: Path, console: Console
) -> list[float]:
    """Train; return the fraction of groups with a learning signal in each step."""
    done = train(
        mixed_agent,
        TASKS,
        sampler=sampler,
        seed=seed,
        steps=options.steps,
        batch_size=options.batch_size,
        group_size=8,
        learning_rate=1e-4,  # low, so that the original tasks stay unsolved
        max_tokens=16,
        eval_every=0,
        log_path=str(folder),
        console=console,
    )
    return [step[TEACHES] for step in done.steps()]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=1, help="runs per sampler (default: 1)")
    parser.add_argument("--steps", type=int, default=16, help="steps per run (default: 16)")
    parser.add_argument("--batch-size", type=int, default=16, help="groups per step (default: 16)")
    parser.add_argument("--quick", action="store_true", help="3 steps of 8 groups, no target")
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    parser.add_argument("--out", default=f"runs/benchmark-curriculum-{stamp}", help="results")
    options = parser.parse_args(argv)
    if options.quick:
        options.steps, options.batch_size = 3, 8
    return options


def table(shares: dict[str, list[list[float]]]) -> Table:
    """Return a table of the fractions: all steps, the first quarter and the last quarter."""
    shown = Table(title="fraction of groups that teach")
    for column in ("tasks", "seeds", "all steps", "first quarter", "last quarter"):
        shown.add_column(column, no_wrap=True)
    for name, runs in shares.items():
        quarter = max(1, len(runs[0]) // 4)
        parts = [slice(None), slice(quarter), slice(-quarter, None)]
        means = [fmean(fmean(steps[part]) for steps in runs) for part in parts]
        shown.add_row(name, str(len(runs)), *(f"{mean:.2f}" for mean in means))
    return shown


if __name__ == "__main__":
    sys.exit(main())
