"""Train tic-tac-toe with self-play and evaluate it against a random and a perfect player.

    python benchmarks/self_play.py [--quick] [--seeds 0 1 2]

Each run is ``evert train env=tic_tac_toe seed=N`` with the game's recipe. Both seats are trained,
and in some games an earlier checkpoint of the run plays one of them. The trained weights then play
512 games against each player at temperature 1, from the empty board, with alternating seats. The
weights of each run must win or draw at least 95% of the games against the random player and draw at
least 50% against the perfect player. Training must take at most 20 minutes.
"""

import argparse
import csv
import sys
import time
import traceback
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evert.trainers.commands import evaluate
from evert.trainers.commands.train import train
from evert.trainers.system.files import SCORES

OPPONENTS = ("random", "perfect")
NOT_LOST, DRAWN, MINUTES = 0.95, 0.5, 20.0
QUICK: dict[str, Any] = {
    "steps": 2,
    "batch_size": 2,
    "group_size": 2,
    "warm_up_steps": 2,
    "warm_up_batch": 8,
}
Shares = dict[str, float]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a run failed or missed a target."""
    options = parse(argv)
    console, out, failures = Console(highlight=False), Path(options.out), list[str]()
    table = Table("seed", "against", "won", "drawn", "lost", "minutes", title="after training")
    for seed in options.seeds:
        try:
            minutes, found = run(seed, out, options.quick, console)
        except Exception as error:
            traceback.print_exc()
            failures.append(f"seed {seed}: {type(error).__name__}: {error}")
            continue
        for opponent, shares in found.items():
            columns = [f"{shares[name]:.3f}" for name in ("won", "drawn", "lost")]
            table.add_row(str(seed), opponent, *columns, f"{minutes:.1f}")
        if not options.quick:
            failures += [f"seed {seed}: {said}" for said in under(found, minutes)]
    console.print(table)
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="short runs, targets not checked")
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    parser.add_argument("--out", default=f"runs/self_play-{stamp}", help="results folder")
    return parser.parse_args(argv)


def run(seed: int, out: Path, quick: bool, console: Console) -> tuple[float, dict[str, Shares]]:
    """Train and evaluate; return the training minutes and the results against each opponent."""
    console.rule(f"seed {seed}")
    began = time.monotonic()
    log_path = out / f"seed{seed}"
    train(
        env="tic_tac_toe", seed=seed, log_path=log_path, console=console, **QUICK if quick else {}
    )
    minutes = (time.monotonic() - began) / 60
    return minutes, {each: shares(log_path, each, quick) for each in OPPONENTS}


def shares(log_path: Path, opponent: str, quick: bool) -> Shares:
    """Return the fractions of games that a run's final weights win, draw and lose.

    Raises:
        RuntimeError: If the evaluation failed.
    """
    folder = Path(f"{log_path}-{opponent}")
    games = ["max_tasks=4", "seeds=1"] if quick else ["seeds=8"]
    names = [f"models={log_path}", f"opponent={opponent}", f"out={folder}"]
    if evaluate.main(["env=tic_tac_toe", "split=test", *names, *games]) != 0:
        raise RuntimeError(f"evert evaluate against {opponent} failed")
    with (folder / SCORES).open() as file:
        [row] = csv.DictReader(file)
    return {name: float(row[name]) for name in ("won", "drawn", "lost")}


def under(found: dict[str, Shares], minutes: float) -> list[str]:
    """Return a message for each missed target."""
    kept, drawn = 1 - found["random"]["lost"], found["perfect"]["drawn"]
    return [
        said
        for said, is_under in (
            (f"{kept:.3f} not lost against random, target {NOT_LOST}", kept < NOT_LOST),
            (f"{drawn:.3f} drawn against perfect, target {DRAWN}", drawn < DRAWN),
            (f"{minutes:.1f} minutes, target {MINUTES:g}", minutes > MINUTES),
        )
        if is_under
    ]


if __name__ == "__main__":
    sys.exit(main())
