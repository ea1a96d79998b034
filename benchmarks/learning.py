"""Train the bundled base models on every game with several seeds, and check that they learn it.

    python benchmarks/learning.py [--quick] [--games identity guess_number] [--seeds 3]

Each run is ``evert train env=GAME seed=N`` with the game's recipe. The script prints and saves the
held-out scores before and after training, greedy and at temperature 1, as mean and standard
deviation over seeds. Run times include imports and evaluation. The benchmark fails if a run fails
or does not improve the score.
"""

import argparse
import json
import statistics
import sys
import traceback
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evert.envs.games import games
from evert.trainers.commands.train import train
from evert.trainers.system.provenance import origin
from evert.trainers.training.progress import quiet_progress_bars

QUICK_STEPS = 3


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a run failed or did not improve."""
    options = parse(argv)
    quiet_progress_bars()
    console = Console(highlight=False)
    out = Path(options.out)
    results: dict[str, list[dict[str, Any]]] = {}
    failures: list[str] = []
    for game in options.games:
        results[game] = []
        for seed in range(options.seeds):
            console.rule(f"{game}, seed {seed}")
            try:
                results[game].append(run(game, seed, out, options.quick, console))
            except Exception as error:
                traceback.print_exc()
                failures.append(f"{game}, seed {seed}: {type(error).__name__}: {error}")
    if not options.quick:
        failures += [
            f"{game}, seed {result['seed']}: no better after training than before"
            for game, runs in results.items()
            for result in runs
            if gain(result) <= 0
        ]
    save(out, results, failures)
    console.print(table(results))
    console.print(f"saved: {out / 'learning.json'}", soft_wrap=True)
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    alone = [name for name, game in games().items() if "seats" not in game.recipe]
    parser.add_argument(  # for games with several seats, see self_play.py
        "--games", nargs="+", choices=list(games()), default=alone
    )
    parser.add_argument("--seeds", type=int, default=3, help="runs per game (default: 3)")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps, no check")
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    parser.add_argument("--out", default=f"runs/benchmark-learning-{stamp}", help="results folder")
    return parser.parse_args(argv)


def run(game: str, seed: int, out: Path, quick: bool, console: Console) -> dict[str, Any]:
    """Train once and return the result."""
    values: dict[str, Any] = {"steps": QUICK_STEPS, "batch_size": 4} if quick else {}
    if quick and "warm_up_steps" in games()[game].recipe:
        values["warm_up_steps"] = QUICK_STEPS
    name = f"{game}-{'quick-' if quick else ''}seed{seed}"
    return train(env=game, seed=seed, log_path=str(out / name), console=console, **values).result


def gain(result: dict[str, Any]) -> float:
    """Return the improvement of the held-out score at temperature 1."""
    held_out = result["held_out"]
    after, before = (held_out[when]["temperature_1"]["reward"] for when in ("after", "before"))
    return float(after - before)


def spread(runs: Sequence[dict[str, Any]], when: str, how: str) -> str:
    """Format the mean and standard deviation over seeds."""
    means = [result["held_out"][when][how]["reward"] for result in runs]
    deviation = statistics.stdev(means) if len(means) > 1 else 0.0
    return f"{statistics.fmean(means):.2f} ± {deviation:.2f}"


def table(results: dict[str, list[dict[str, Any]]]) -> Table:
    """Return the results table with two rows per game: greedy and temperature 1."""
    shown = Table(title="held-out mean reward: mean ± standard deviation over seeds")
    for column in ("game", "steps", "seeds", "played", "before", "after", "seconds"):
        shown.add_column(column, no_wrap=True)
    for game, runs in results.items():
        if not runs:
            continue
        seconds = statistics.fmean(result["seconds"]["total"] for result in runs)
        for how, label in (("greedy", "greedy"), ("temperature_1", "at T = 1")):
            steps, seeds = str(runs[0]["steps"]), str(len(runs))
            scores = (spread(runs, "before", how), spread(runs, "after", how))
            shown.add_row(game, steps, seeds, label, *scores, f"{seconds:.0f}")
    return shown


def save(out: Path, results: dict[str, list[dict[str, Any]]], failures: list[str]) -> None:
    """Write ``learning.json``."""
    record = {"command": sys.argv, **origin(), "failures": failures, "runs": results}
    out.mkdir(parents=True, exist_ok=True)
    (out / "learning.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
