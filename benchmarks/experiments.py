"""Run five public experiments with small models, and show the published results for comparison.

    python benchmarks/experiments.py [--only reverse_text] [--seeds 0 1 2] [--plot docs/results.png]

Each run is ``evert train`` in ``examples/`` with the settings of a row and a seed. If the row has a
warm-up, ``evert evaluate`` then scores the untrained model. Scores are mean rewards on held-out
tasks at temperature 1. Runs already in the results folder are not repeated. Exits with status 1 if
the mean over seeds is outside the row's accepted interval. ``--quick`` runs one step and checks no
interval. Download SmolLM2 with ``make .models/smollm2``. ``benchmarks/README.md`` explains how to
get ``.models/qwen-coder``.
"""

import argparse
import csv
import json
import os
import re
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from evert.trainers.episodes.scores import interval
from evert.trainers.reporting.figures.curves import draw_panel, mean
from evert.trainers.reporting.figures.metrics import curves
from evert.trainers.reporting.figures.style import save as save_figure
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.provenance import origin

ROOT = Path(__file__).resolve().parents[1]
SMOLLM2 = "model_name=../.models/smollm2 threads=1 warm_up_learning_rate=5e-4"
COMMON = "eval_every=10 save_every=0 samples=2"
QUICK = "steps=1 batch_size=1 group_size=2"


@dataclass(frozen=True)
class Experiment:
    """An experiment: game and training settings, the published result, and the accepted interval.

    The benchmark fails if the mean over the three seeds is outside ``accepted``.
    """

    game: str
    training: str
    published: str
    accepted: tuple[float, float]


def agent_of(module: str) -> str:
    """Return the settings for an example's agent and tasks."""
    return f"agent={module}:agent train_tasks={module}:TRAIN test_tasks={module}:TEST"


EXPERIMENTS = {
    "reverse_text": Experiment(
        agent_of("reverse_text"),
        f"{SMOLLM2} demonstrations=reverse_text:demonstrations warm_up_steps=8 warm_up_batch=16 "
        "steps=20 batch_size=16 group_size=8 learning_rate=2e-4 max_tokens=16",
        "prime-rl: Qwen3-0.6B, 0.05 to 0.8, SFT and 20 steps of 128, two GPUs",
        (0.88, 0.96),
    ),
    "alphabet_sort": Experiment(
        agent_of("alphabet_sort"),
        f"{SMOLLM2} demonstrations=alphabet_sort:demonstrations warm_up_steps=8 warm_up_batch=16 "
        "steps=10 batch_size=8 group_size=8 learning_rate=2e-4 max_tokens=24",
        "prime-rl: Qwen3-4B-Instruct-2507, 0.26 to 0.81, 100 steps, one H100",
        (0.24, 0.33),
    ),
    "wordle": Experiment(
        agent_of("wordle"),
        f"{SMOLLM2} demonstrations=wordle:demonstrations warm_up_steps=48 warm_up_batch=16 "
        "steps=20 batch_size=8 group_size=8 learning_rate=2e-4 max_tokens=12",
        "prime-rl: Qwen3-1.7B, 0.2 to 1.5 (0 to 60 % won), SFT and 100 steps of 1,024, two GPUs",
        (0.23, 0.37),
    ),
    "multiply": Experiment(
        agent_of("multiply"),
        "model_name=../.models/qwen-coder threads=1 steps=8 batch_size=4 group_size=8 "
        "learning_rate=1e-4 max_tokens=48",
        "TRL issue 5366: Qwen3-0.6B, no score reported, one GPU",
        (0.9, 1.0),
    ),
    "countdown": Experiment(
        "tasks=reasoning_gym:countdown tasks.min_numbers=2 tasks.max_numbers=3 tasks.min_value=1 "
        "tasks.max_value=20 tasks.min_target=1 tasks.max_target=60",
        f"{SMOLLM2} warm_up_steps=8 warm_up_batch=16 steps=10 batch_size=8 group_size=8 "
        "learning_rate=2e-4 max_tokens=16",
        "TinyZero: Qwen2.5-3B learns to search, 0.5B only guesses, no score, under $30",
        (0.21, 0.28),
    ),
}


def evert(command: str, settings: str) -> dict[str, float]:
    """Run an ``evert`` command in ``examples/``; return its wall-clock and CPU seconds.

    Raises:
        subprocess.CalledProcessError: If the command failed.
    """
    began, used = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, "-m", "evert", command, *shlex.split(settings)],
        cwd=ROOT / "examples",
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    return {"seconds": time.monotonic() - began, "cpu_seconds": cpu}


def train(settings: str, folder: Path) -> dict[str, Any]:
    """Return the results of a run. If there are no results yet, train it first."""
    path = folder.with_suffix(".json")
    if not path.exists():
        times = evert("train", f"{settings} log_path={shlex.quote(str(folder.resolve()))}")
        run = RunFolder(folder)
        rows = run.steps()
        record = {
            "command": f"evert train {settings}",
            "before": run.before and run.before["temperature_1"]["reward"],
            "after": run.after and run.after["temperature_1"]["reward"],
            "greedy": run.after and run.after["greedy"]["reward"],
            "rewards": [row["env/all/reward/total"] for row in rows],
            "tokens": sum(row["env/all/total_ac_tokens"] for row in rows),
            **times,
            **origin(),
        }
        path.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    figures: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return figures


def untrained(experiment: Experiment, folder: Path) -> float:
    """Return the held-out mean reward of the untrained model."""
    scores = folder / "scores.csv"
    if not scores.exists():
        pairs = dict(pair.split("=", 1) for pair in shlex.split(experiment.training))
        settings = f"models={pairs['model_name']} max_tokens={pairs['max_tokens']} threads=1"
        game = re.sub(r"train_tasks=\S+", "", experiment.game)
        evert("evaluate", f"{game} {settings} seeds=1 split=test out={folder.resolve()}")
    with scores.open(encoding="utf-8") as file:
        return float(next(csv.DictReader(file))["reward"])


def shown(values: Sequence[float]) -> str:
    """Format the mean over seeds, with its 95% interval if there is more than one."""
    ends = interval([[value] for value in values])
    return f"{fmean(values):.2f}" + (f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends else "")


def outside(results: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Return a message for each experiment whose mean is outside its interval."""
    lines = []
    for name, runs in results.items():
        accepted, figure = EXPERIMENTS[name].accepted, fmean(run["after"] for run in runs)
        if not accepted[0] <= figure <= accepted[1]:
            lines.append(f"{name}: {figure:.3f} is outside {accepted[0]} to {accepted[1]}")
    return lines


def table(results: Mapping[str, Sequence[Mapping[str, Any]]], zeros: Mapping[str, float]) -> Table:
    """Return the results table, with one row per experiment."""
    grid = Table(title="held-out mean reward at temperature 1, mean (95 % over seeds)")
    columns = ("experiment", "seeds", "untrained", "before RL", "after", "steps", "tokens")
    for column in (*columns, "seconds", "CPU seconds"):
        grid.add_column(column, no_wrap=True)
    grid.add_column("published")
    for name, runs in results.items():
        before, after = ([run[when] for run in runs] for when in ("before", "after"))
        costs = [fmean(run[key] for run in runs) for key in ("tokens", "seconds", "cpu_seconds")]
        scores = (f"{zeros[name]:.2f}", shown(before), shown(after))
        cells = (*scores, str(len(runs[0]["rewards"])), *(f"{cost:,.0f}" for cost in costs))
        grid.add_row(name, str(len(runs)), *cells, EXPERIMENTS[name].published)
    return grid


def plot(names: Sequence[str], seeds: Sequence[int], out: Path, path: Path) -> None:
    """Plot the mean training reward of each experiment."""
    lines = [
        (name, mean([curves(RunFolder(out / f"{name}-{seed}").steps())[0] for seed in seeds]))
        for name in names
    ]
    title = "Public experiments with small models" if len(names) > 1 else names[0]
    save_figure(draw_panel(title, "mean training reward, averaged over seeds", lines), path)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a mean is outside its interval."""
    options = parse(__doc__, [*EXPERIMENTS], argv)
    console = Console(highlight=False, width=200)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    results, zeros = {}, {}
    for name in options.only:
        experiment = EXPERIMENTS[name]
        settings = f"{experiment.game} {experiment.training} {COMMON}"
        if options.quick:
            settings += f" {QUICK}"
        results[name] = [
            train(f"{settings} seed={seed}", out / f"{name}-{seed}") for seed in options.seeds
        ]
        if "warm_up_steps" not in settings:
            zeros[name] = fmean(run["before"] for run in results[name])
        elif not options.quick:
            zeros[name] = untrained(experiment, out / f"{name}-untrained")
    if options.quick:
        return 0
    console.print(table(results, zeros))
    if options.plot:
        plot(list(results), options.seeds, out, Path(options.plot))
    failures = outside(results)
    print(*(f"FAILED {failure}" for failure in failures), sep="\n", file=sys.stderr)
    return 1 if failures else 0


def parse(doc: str | None, rows: Sequence[str], argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line, also for ``algorithms.py``."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=rows, default=rows, help="rows (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--quick", action="store_true", help="one step per run, no table")
    parser.add_argument("--plot", default="", help="where to save the plot")
    parser.add_argument("--out", default="runs/benchmark-experiments", help="results folder")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
