"""Train one agent (identity) with the Cookbook, a custom loop, verl and TRL.

    python frameworks/make_environment.py trainers
    python benchmarks/trainers.py [--quick] [--only trl] [--seeds 0 1 2] [--figure FILE]
        [--model FOLDER]

The four trainers are ``evert train``, the loop from ``docs/own-loop.md``, verl's unmodified
``main_ppo`` (``examples/verl_on_cpu``) and TRL's ``GRPOTrainer`` (``examples/trl_on_cpu``). The
last two run in ``.frameworks/trainers``. All use the same agent, base model and learning rate, and
run sequentially on the CPU, for 30 steps of 8 tasks with 8 episodes each. Rewards and step times
are taken from the trainer's own log (if it has one); the script prints and saves them. The
benchmark fails if a run fails, or if its mean reward over the last five steps is below 0.95.
``--model .models/smollm2`` trains an adapter for a real model instead, with 12 steps of 12 tasks on
two threads. This excludes verl, because that example supports only ``evert-tiny``.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

import tinker
from rich.console import Console
from rich.table import Table

import evert
from evert.envs.identity import TRAIN_TASKS, identity_agent
from evert.trainers.commands.train import train
from evert.trainers.reporting.figures.curves import draw_panel, mean
from evert.trainers.reporting.figures.metrics import Curve, curves
from evert.trainers.reporting.figures.style import save as save_figure
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.provenance import origin
from evert.trainers.training.progress import quiet_progress_bars

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".frameworks" / "trainers" / "bin" / "python"
QUICK_STEPS = 2
LAST = 5
"""Number of final steps to average."""
BAR = 0.95
LONGEST = 3600.0
"""Timeout of a run in seconds."""


class RunError(RuntimeError):
    """A trainer process failed."""


@dataclass(frozen=True)
class Recipe:
    """Model and hyperparameters. A step has ``tasks`` tasks with ``EPISODES`` episodes each."""

    model: str = "evert-tiny"
    steps: int = 30
    tasks: int = 8
    max_tokens: int = 16
    learning_rate: float = 1e-3
    threads: int = 1
    passes: int = 1  # TRL's passes per step; more passes need less memory


EPISODES = 8
RANK = 32


def recipe_of(options: argparse.Namespace) -> Recipe:
    """Return the recipe for the given options."""
    recipe = Recipe()
    if options.model:
        recipe = Recipe(str(Path(options.model).resolve()), 12, 12, 12, 3e-4, threads=2, passes=4)
    return replace(recipe, steps=QUICK_STEPS) if options.quick else recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a run failed or did not learn."""
    options = parse(argv)
    quiet_progress_bars()
    console = Console(highlight=False)
    out, recipe = Path(options.out).resolve(), recipe_of(options)
    found: dict[str, list[Curve]] = {name: [] for name in options.only}
    failures: list[str] = []
    for name in options.only:
        for seed in options.seeds:
            console.rule(f"{name}, seed {seed}")
            try:
                folder = out / f"{name}-seed{seed}"
                curve = TRAINERS[name](folder, recipe, seed)
            except Exception as error:
                traceback.print_exc()
                failures.append(f"{name}, seed {seed}: {type(error).__name__}: {error}")
                continue
            found[name].append(curve)
            if not options.quick and ends_at(curve) < BAR:
                failures.append(f"{name}, seed {seed}: ends at {ends_at(curve):.3f}, below {BAR}")
    figure = Path(options.figure) if options.figure else out / "trainers.png"
    save(out, figure, found, failures)
    console.print(table(found))
    console.print(f"saved: {out / 'trainers.json'}, {figure}", soft_wrap=True)
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    return 1 if failures else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(TRAINERS))
    parser.add_argument("--model", help="model folder (default: evert-tiny)")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps, no check")
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    parser.add_argument("--out", default=f"runs/benchmark-trainers-{stamp}", help="results folder")
    parser.add_argument("--figure", help="where to save the plot (default: in --out)")
    options = parser.parse_args(argv)
    options.only = options.only or [
        one for one in TRAINERS if not (options.model and one == "verl")
    ]
    if options.model and "verl" in options.only:
        parser.error("The verl example only trains evert-tiny. Remove verl or --model.")
    return options


# -- the trainers --------------------------------------------------------------------------------


def under_cookbook(folder: Path, recipe: Recipe, seed: int) -> Curve:
    """Train with ``evert train``: the Cookbook's loop with the embedded engine."""
    train(
        env="identity",
        model_name=recipe.model,
        steps=recipe.steps,
        batch_size=recipe.tasks,
        group_size=EPISODES,
        learning_rate=recipe.learning_rate,
        max_tokens=recipe.max_tokens,
        threads=recipe.threads,
        eval_every=0,
        seed=seed,
        log_path=str(folder),
        console=Console(quiet=True),
    )
    return curves(RunFolder(folder).steps())[0]


def in_own_loop(folder: Path, recipe: Recipe, seed: int) -> Curve:
    """Train with the loop from ``docs/own-loop.md`` on the embedded engine."""
    with evert.embedded_engine(folder, threads=recipe.threads):
        return asyncio.run(_own_loop(recipe, seed))


async def _own_loop(recipe: Recipe, seed: int) -> Curve:
    service, curve = tinker.ServiceClient(), Curve([], [], [])
    trainer = await service.create_lora_training_client_async(recipe.model, rank=RANK, seed=seed)
    start = time.perf_counter()
    for step in range(recipe.steps):
        policy = await trainer.save_weights_and_get_sampling_client_async()
        tasks = TRAIN_TASKS[recipe.tasks * step : recipe.tasks * (step + 1)]
        batch = await evert.rollout(
            identity_agent,
            tasks,
            policy,
            group_size=EPISODES,
            max_tokens=recipe.max_tokens,
            seed=1000 * seed + step,
        )
        backward = await trainer.forward_backward_async(batch.data(), "importance_sampling")
        update = await trainer.optim_step_async(
            tinker.AdamParams(learning_rate=recipe.learning_rate)
        )
        await backward
        await update
        curve.steps.append(step + 1)
        curve.seconds.append(time.perf_counter() - start)
        curve.scores.append(float(batch.rewards.mean()))
    return curve


def under_verl(folder: Path, recipe: Recipe, seed: int) -> Curve:
    """Train with verl's ``main_ppo``."""
    run(
        folder,
        ROOT / "examples" / "verl_on_cpu" / "train.sh",
        folder,
        "identity",
        f"trainer.total_training_steps={recipe.steps}",
        f"actor_rollout_ref.actor.optim.lr={recipe.learning_rate}",
        f"data.seed={seed}",
    )
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return curve_of([json.loads(line)["data"] for line in lines], *VERL)


def under_trl(folder: Path, recipe: Recipe, seed: int) -> Curve:
    """Train with TRL's ``GRPOTrainer``."""
    options = {
        "steps": recipe.steps,
        "seed": seed,
        "learning-rate": recipe.learning_rate,
        "model": recipe.model,
        "episodes": recipe.tasks * EPISODES,
        "passes": recipe.passes,
        "max-tokens": recipe.max_tokens,
        "threads": recipe.threads,
        "out": folder,
    }
    script = ROOT / "examples" / "trl_on_cpu" / "identity.py"
    run(folder, PYTHON, script, *(f"--{name}={value}" for name, value in options.items()))
    log = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return curve_of(log, *TRL)


TRAINERS: dict[str, Callable[[Path, Recipe, int], Curve]] = {
    "cookbook": under_cookbook,
    "own": in_own_loop,
    "verl": under_verl,
    "trl": under_trl,
}
VERL, TRL = ("critic/score/mean", "timing_s/step"), ("reward", "step_time")
"""Log keys for the reward and duration of a step."""


def curve_of(log: Sequence[dict[str, Any]], reward: str, seconds: str) -> Curve:
    """Return the curve in a trainer's log, skipping entries without a reward."""
    steps = [entry for entry in log if reward in entry]
    times = list(accumulate(float(entry[seconds]) for entry in steps))
    return Curve([*range(1, len(steps) + 1)], times, [float(entry[reward]) for entry in steps])


def run(folder: Path, *command: object) -> None:
    """Run a trainer process with its output in ``output.log``, then kill all of its children.

    Raises:
        RunError: If it failed or took too long.
    """
    if not PYTHON.exists():
        raise RunError(
            f"{PYTHON.relative_to(ROOT)} does not exist. Create it with: "
            "python frameworks/make_environment.py trainers"
        )
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PYTHON": str(PYTHON), "PYTHONPATH": str(ROOT / "src")}
    log = folder / "output.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [str(word) for word in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment | {"TRL_EXPERIMENTAL_SILENCE": "1"},
            start_new_session=True,
        )
        try:
            code = process.wait(LONGEST)
        except subprocess.TimeoutExpired as error:
            raise RunError(f"The run took over {LONGEST:.0f} s; see {log}.") from error
        finally:
            end(process)
    if code:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RunError(f"The run ended with code {code}. Its output is in {log}:\n{last}")


def end(process: "subprocess.Popen[bytes]") -> None:
    """Kill a process and its whole session, which includes Ray's processes."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        time.sleep(1)
    process.wait()


# -- results -------------------------------------------------------------------------------------


def ends_at(curve: Curve) -> float:
    """Return the mean reward over the final steps."""
    return statistics.fmean(curve.scores[-LAST:])


def step_seconds(curve: Curve) -> list[float]:
    """Return the duration of each step in seconds."""
    before = [0.0, *curve.seconds]
    return [after - start for start, after in zip(before, curve.seconds, strict=False)]


def table(found: dict[str, list[Curve]]) -> Table:
    """Return the results table, with one row per trainer."""
    shown = Table(title="identity: mean training reward per episode")
    for column in ("trainer", "seeds", "steps", "first step", f"last {LAST} steps", "s per step"):
        shown.add_column(column, no_wrap=True)
    for name, several in found.items():
        if several:
            first = statistics.fmean(curve.scores[0] for curve in several)
            last = ", ".join(f"{ends_at(curve):.3f}" for curve in several)
            median = statistics.median(s for curve in several for s in step_seconds(curve))
            counts = str(len(several)), str(len(several[0].steps))
            shown.add_row(name, *counts, f"{first:.3f}", last, f"{median:.1f}")
    return shown


NAMES = {
    "cookbook": "Cookbook, evert's engine",
    "own": "custom loop, evert's engine",
    "verl": "verl, main_ppo",
    "trl": "TRL, GRPOTrainer",
}


def save(out: Path, figure: Path, found: dict[str, list[Curve]], failures: list[str]) -> None:
    """Write ``trainers.json`` and a plot with one line per trainer (mean over seeds)."""
    out.mkdir(parents=True, exist_ok=True)
    runs = {name: [vars(curve) for curve in several] for name, several in found.items()}
    record = {"command": sys.argv, **origin(), "failures": failures, "runs": runs}
    (out / "trainers.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    lines = [(NAMES[name], mean(several)) for name, several in found.items() if several]
    if lines:
        title = f"Identity: one agent, {len(lines)} trainers"
        save_figure(draw_panel(title, "mean training reward per episode", lines), figure)


if __name__ == "__main__":
    sys.exit(main())
