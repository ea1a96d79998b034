"""Train an agent with images: a tiny vision model learns to name the colour of a square.

    python benchmarks/vision.py [--quick] [--seeds 3]

``bases.seeing`` creates the model, a randomly initialized Qwen3-VL with 0.2M parameters. The agent
is in ``examples/colours.py``. A supervised warm-up with random colours teaches the answer format,
and RL with ``evert train`` teaches the right colour. The script prints and saves the accuracy on
held-out squares, greedy and at temperature 1 (chance is 25%), and the duration of each run. The
benchmark fails if a run ends with a greedy accuracy below 90%.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))  # for the agent

from bases import seeing  # noqa: E402

from evert.trainers.commands.train import train  # noqa: E402
from evert.trainers.system.provenance import origin  # noqa: E402
from evert.trainers.training.progress import quiet_progress_bars  # noqa: E402

BAR = 0.9
RECIPE: dict[str, Any] = {
    "agent": "examples.colours:agent",
    "train_tasks": "examples.colours:TRAIN",
    "test_tasks": "examples.colours:TEST",
    "demonstrations": "examples.colours:demonstrations",
    "renderer_name": "qwen3_vl_instruct",
    "warm_up_steps": 120,
    "warm_up_batch": 32,
    "warm_up_learning_rate": 3e-3,
    "steps": 90,
    "batch_size": 32,
    "group_size": 16,
    "learning_rate": 1e-3,
    "max_tokens": 4,
    "eval_every": 90,
    "save_every": 0,
    "threads": 1,
}
QUICK = {"warm_up_steps": 3, "steps": 2, "batch_size": 4}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a run did not learn."""
    options = parse(argv)
    quiet_progress_bars()
    console, out = Console(highlight=False), Path(options.out)
    runs = [run(seed, out, options.quick, console) for seed in range(options.seeds)]
    record = {"command": sys.argv, **origin(), "runs": runs}
    (out / "vision.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    console.print(table(runs))
    failed = [] if options.quick else [each for each in runs if after(each) < BAR]
    for each in failed:
        print(f"FAILED seed {each['seed']}: {after(each):.2f}, target {BAR}", file=sys.stderr)
    return 1 if failed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3, help="number of runs (default: 3)")
    parser.add_argument("--quick", action="store_true", help="two steps, target not checked")
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    parser.add_argument("--out", default=f"runs/benchmark-vision-{stamp}", help="results folder")
    return parser.parse_args(argv)


def run(seed: int, out: Path, quick: bool, console: Console) -> dict[str, Any]:
    """Create and train a model; return the record of the run."""
    console.rule(f"seed {seed}")
    began, burnt = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        seeing.main(seeing.SeeingConfig(out=folder, seed=seed))
        values = {**RECIPE, **(QUICK if quick else {}), "model_name": folder, "seed": seed}
        result = train(log_path=str(out / f"seed{seed}"), console=console, **values).result
    return {
        "seed": seed,
        "held_out": result["held_out"],
        "seconds": time.perf_counter() - began,
        "cpu_seconds": time.process_time() - burnt,
    }


def after(result: dict[str, Any]) -> float:
    """Return the greedy accuracy on held-out squares after training."""
    return float(result["held_out"]["after"]["greedy"]["reward"])


def table(runs: Sequence[dict[str, Any]]) -> Table:
    """Return the results table with two rows: greedy and temperature 1."""
    shown = Table(title="accuracy on held-out squares: mean over seeds (each)")
    for column in ("played", "before", "after", "seconds", "CPU s"):
        shown.add_column(column, no_wrap=True)
    for how in ("greedy", "temperature_1"):
        cells = []
        for when in ("before", "after"):
            scores = [each["held_out"][when][how]["reward"] for each in runs]
            each = ", ".join(f"{score:.2f}" for score in scores)
            cells.append(f"{statistics.fmean(scores):.2f} ({each})")
        seconds = [
            f"{statistics.fmean(each[key] for each in runs):.0f}"
            for key in ("seconds", "cpu_seconds")
        ]
        shown.add_row(how.replace("_", " "), *cells, *seconds)
    return shown


if __name__ == "__main__":
    sys.exit(main())
