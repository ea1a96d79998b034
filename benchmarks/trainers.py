"""One agent, three trainers: identity under the Cookbook with the engine, verl, and TRL, on a CPU.

    python frameworks/make_environment.py trainers
    python benchmarks/trainers.py [--quick] [--only trl] [--seeds 0 1 2] [--figure FILE]

The same agent and base, 30 steps of 8 tasks with 8 episodes each, the same learning rate, one run
after the other: ``evert train``, verl's unmodified ``main_ppo`` (``examples/verl_on_cpu``) and
TRL's ``GRPOTrainer`` (``examples/trl_on_cpu``), the last two with ``.frameworks/trainers``. Printed
and saved: the reward of each step as that trainer has it in its own log, and seconds a step. A run
that fails, or whose last five steps have a mean below 0.95, fails the benchmark.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from evert.trainers.commands.train import train
from evert.trainers.reporting.figures.curves import draw_panel, mean
from evert.trainers.reporting.figures.metrics import Curve, curves
from evert.trainers.reporting.figures.style import save as save_figure
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.provenance import origin
from evert.trainers.training.progress import quiet_progress_bars

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ROOT / ".frameworks" / "trainers" / "bin" / "python"
STEPS, QUICK_STEPS = 30, 2
LEARNING_RATE = 1e-3
LAST = 5
"""Steps at the end whose mean counts."""
BAR = 0.95
LONGEST = 3600.0
"""Seconds after which a run is given up."""


class RunError(RuntimeError):
    """A trainer's process failed."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns 1 if any run failed or did not learn."""
    options = parse(argv)
    quiet_progress_bars()
    console = Console(highlight=False)
    out = Path(options.out).resolve()
    found: dict[str, list[Curve]] = {name: [] for name in options.only}
    failures: list[str] = []
    for name in options.only:
        for seed in options.seeds:
            console.rule(f"{name}, seed {seed}")
            try:
                folder = out / f"{name}-seed{seed}"
                curve = TRAINERS[name](folder, QUICK_STEPS if options.quick else STEPS, seed)
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
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=list(TRAINERS), default=list(TRAINERS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument(
        "--quick", action="store_true", help=f"{QUICK_STEPS} steps: that it works, not how well"
    )
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    parser.add_argument("--out", default=f"runs/benchmark-trainers-{stamp}", help="results' folder")
    parser.add_argument("--figure", help="where the figure goes (default: into that folder)")
    return parser.parse_args(argv)


# -- the trainers --------------------------------------------------------------------------------


def under_cookbook(folder: Path, steps: int, seed: int) -> Curve:
    """``evert train``: the Cookbook's loop and the embedded engine, in this process."""
    train(
        env="identity",
        steps=steps,
        batch_size=8,
        group_size=8,
        learning_rate=LEARNING_RATE,
        eval_every=0,
        seed=seed,
        log_path=str(folder),
        console=Console(quiet=True),
    )
    return curves(RunFolder(folder, resumed=True).steps())[0]


def under_verl(folder: Path, steps: int, seed: int) -> Curve:
    """verl's ``main_ppo``."""
    run(
        folder,
        ROOT / "examples" / "verl_on_cpu" / "train.sh",
        folder,
        "identity",
        f"trainer.total_training_steps={steps}",
        f"actor_rollout_ref.actor.optim.lr={LEARNING_RATE}",
        f"data.seed={seed}",
    )
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return curve_of([json.loads(line)["data"] for line in lines], *VERL)


def under_trl(folder: Path, steps: int, seed: int) -> Curve:
    """TRL's ``GRPOTrainer``."""
    script = ROOT / "examples" / "trl_on_cpu" / "identity.py"
    options = {"steps": steps, "seed": seed, "learning-rate": LEARNING_RATE, "out": folder}
    run(folder, PYTHON, script, *(f"--{name}={value}" for name, value in options.items()))
    log = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    return curve_of(log, *TRL)


TRAINERS: dict[str, Callable[[Path, int, int], Curve]] = {
    "cookbook": under_cookbook,
    "verl": under_verl,
    "trl": under_trl,
}
VERL, TRL = ("critic/score/mean", "timing_s/step"), ("reward", "step_time")
"""Names of a step's reward and seconds in each log."""


def curve_of(log: Sequence[dict[str, Any]], reward: str, seconds: str) -> Curve:
    """The curve of a trainer's own log; entries without a reward are of no step."""
    steps = [entry for entry in log if reward in entry]
    times = list(accumulate(float(entry[seconds]) for entry in steps))
    return Curve([*range(1, len(steps) + 1)], times, [float(entry[reward]) for entry in steps])


def run(folder: Path, *command: object) -> None:
    """Run a trainer's process with its output in ``output.log``; nothing of it is left.

    Raises:
        RunError: It failed, or took too long.
    """
    if not PYTHON.exists():
        raise RunError(
            f"There is no {PYTHON.relative_to(ROOT)}. Make it first: "
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
            raise RunError(f"It took over {LONGEST:.0f} s. Its output is in {log}.") from error
        finally:
            end(process)
    if code:
        last = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise RunError(f"It ended with code {code}. Its output is in {log}:\n{last}")


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a process and all that it started (Ray's are of its session)."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            return
        time.sleep(1)
    process.wait()


# -- what comes out ------------------------------------------------------------------------------


def ends_at(curve: Curve) -> float:
    """Mean reward of the last steps."""
    return statistics.fmean(curve.scores[-LAST:])


def step_seconds(curve: Curve) -> list[float]:
    """Seconds of each step."""
    before = [0.0, *curve.seconds]
    return [after - start for start, after in zip(before, curve.seconds, strict=False)]


def table(found: dict[str, list[Curve]]) -> Table:
    """The figures, a row a trainer."""
    shown = Table(title="identity: mean reward of an episode in training")
    for column in ("trainer", "seeds", "steps", "first step", f"last {LAST} steps", "s a step"):
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
    "verl": "verl, main_ppo",
    "trl": "TRL, GRPOTrainer",
}


def save(out: Path, figure: Path, found: dict[str, list[Curve]], failures: list[str]) -> None:
    """Write ``trainers.json`` and the figure: a line a trainer, the mean over the seeds."""
    out.mkdir(parents=True, exist_ok=True)
    runs = {name: [vars(curve) for curve in several] for name, several in found.items()}
    record = {"command": sys.argv, **origin(), "failures": failures, "runs": runs}
    (out / "trainers.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    lines = [(NAMES[name], mean(several)) for name, several in found.items() if several]
    if lines:
        title = "Identity, one agent under three trainers"
        save_figure(draw_panel(title, "mean reward of an episode in training", lines), figure)


if __name__ == "__main__":
    sys.exit(main())
