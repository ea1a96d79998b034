"""Kill ``evert train`` at random moments and check that every run resumes.

    python benchmarks/kill9.py [--runs 30] [--seed 0] [--signal KILL|TERM|INT] [--quick]

Half of the moments are spread evenly over the run. Each of the other moments is a few milliseconds
after some file appears in the run folder (a draft, the first checkpoint, the result), so that short
phases are interrupted, too. 40% of the runs are stopped a second time while they resume. The same
command is then repeated until it succeeds, and the run is compared with an uninterrupted one: the
metrics of every step (except times), the held-out scores and the checkpoints must be the same, with
no step repeated and no drafts left. Numbers may differ by rounding errors, because batching depends
on timing. The runs have a warm-up, and both rolling and kept checkpoints. The benchmark fails if a
run does not resume or ends with different results.
"""

import argparse
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from evert.trainers.rundir.folder import WARM_UP, RunFolder
from evert.trainers.system.files import (
    BATCHES,
    BEFORE,
    CHECKPOINTS,
    METRICS,
    RESULT,
    RUN,
    read_jsonl,
)

SETTINGS = (
    "env=identity", "device=cpu", "steps=5", "save_every=3", "eval_every=2", "batch_size=2",
    "group_size=2", "samples=1", "warm_up_steps=7", "warm_up_batch=2", "tensorboard=True",
    "demonstrations=evert.envs.twenty_questions.demonstrations:demonstrations",
)  # fmt: skip
TRIES, LONGEST = 6, 300
"""Maximum number of commands per run, and the timeout of each in seconds."""
AGAIN = 0.4
"""Fraction of runs that are stopped again while they resume."""
STOPPED = {signal.SIGKILL: -signal.SIGKILL, signal.SIGTERM: 130, signal.SIGINT: 130}
"""Signal -> exit status of a command that was stopped by that signal."""


# -- moments -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """When to stop a command: ``seconds`` after its start, or after ``there`` becomes true."""

    name: str
    seconds: float
    there: Callable[[Path], bool] = lambda folder: True

    def wait(self, folder: Path, process: "subprocess.Popen[str]") -> None:
        """Wait until the moment comes or the command exits."""
        while process.poll() is None and not self.there(folder):
            time.sleep(0.001)
        deadline = time.monotonic() + self.seconds
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.0005)


def exists(pattern: str) -> Callable[[Path], bool]:
    """Return a function that checks whether a folder has a file matching the pattern."""
    return lambda folder: any(folder.glob(pattern))


def lines(name: str, count: int) -> Callable[[Path], bool]:
    """Return a function that checks whether a file has at least ``count`` lines."""
    return lambda folder: len(read_jsonl(folder / name)) >= count


APPEARS = {
    "lock": exists(".lock"),
    "settings": exists(RUN),
    "warm-up": exists(WARM_UP),
    "warm-up's checkpoint": exists(f"{WARM_UP}/{CHECKPOINTS}"),
    "warm-up's last": lambda folder: '"final"' in text(folder / WARM_UP / CHECKPOINTS),
    "scores before": exists(BEFORE),
    "first batch": exists(BATCHES),
    "a draft": exists("checkpoints/*/*weights/.draft-*"),
    "first step": lines(METRICS, 1),
    "first checkpoint": exists(CHECKPOINTS),
    "kept checkpoint": exists("checkpoints/*/sampler_weights/000003/*"),
    "last step": lines(METRICS, 5),
    "last checkpoint": lambda folder: '"final"' in text(folder / CHECKPOINTS),
    "scores after": exists("learning_curve.png"),
    "result": exists(RESULT),
}


def text(path: Path) -> str:
    """Return a file's text, or an empty string if the file does not exist."""
    return path.read_text() if path.is_file() else ""


def moments(count: int, whole: float, draws: random.Random) -> list[Moment]:
    """Return the moments for ``count`` runs: half spread over time, half when a file appears."""
    found, names = [], list(APPEARS)
    by_time = (count + 1) // 2
    for number in range(by_time):
        seconds = whole * (number + draws.random()) / by_time
        found.append(Moment(f"{seconds:.2f} s", seconds))
    for number in range(count - by_time):
        name = names[number * len(names) // (count - by_time)]
        found.append(Moment(f"{name} exists", draws.random() * 0.03, APPEARS[name]))
    return found


# -- runs ----------------------------------------------------------------------------------------


def start(folder: Path, settings: Sequence[str] = SETTINGS) -> "subprocess.Popen[str]":
    """Start a run in a new session."""
    command = [sys.executable, "-m", "evert.trainers.cli", "train", *settings, f"log_path={folder}"]
    environment = {key: value for key, value in os.environ.items() if key != "TINKER_API_KEY"}
    return subprocess.Popen(
        command, text=True, env=environment, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@dataclass
class Stopped:
    """A run that was stopped, and the problems that were found."""

    folder: Path
    moments: list[str]
    """For each time it was stopped: the moment, and the last phase that it had reached."""
    commands: int = 0
    problems: tuple[str, ...] = ()


def stop_and_go_on(
    folder: Path, stops: Sequence[Moment], number: signal.Signals, whole: dict[str, Any],
    settings: Sequence[str] = SETTINGS,
) -> Stopped:  # fmt: skip
    """Stop a run at each moment, resume it until it completes, and compare it with ``whole``."""
    run, left = Stopped(folder, []), list(stops)
    while run.commands < TRIES:
        run.commands += 1
        with start(folder, settings) as process:
            if left:
                moment = left.pop(0)
                moment.wait(folder, process)
                process.send_signal(number)
                run.moments.append(f"{moment.name} ({furthest(folder)})")
            shown, errors = process.communicate(timeout=LONGEST)
        if process.returncode == 0 and not left:
            run.problems = tuple(differences(state(folder), whole))
            return run
        if not ended_well(process.returncode, errors, number, folder):
            run.problems = (f"exit status {process.returncode}: {(shown + errors)[-2000:]}",)
            return run
    run.problems = (f"it did not finish within {TRIES} commands",)
    return run


def ended_well(status: int, errors: str, number: signal.Signals, folder: Path) -> bool:
    """Return whether a command exited with the right status and without a traceback.

    A command that is stopped before it has imported evert may also exit as Python does by default.
    """
    if status in (0, STOPPED[number]) and "Traceback" not in errors:
        return True
    return status in (-number, 1) and furthest(folder) == "nothing yet" and "error: " not in errors


def furthest(folder: Path) -> str:
    """Return the name of the last phase that the run has reached."""
    reached = [name for name, there in APPEARS.items() if name != "a draft" and there(folder)]
    return reached[-1] if reached else "nothing yet"


# -- what must be equal --------------------------------------------------------------------------


def state(folder: Path) -> dict[str, Any]:
    """Return what is compared between runs: metrics, scores, checkpoints and leftover files."""
    run = RunFolder(folder)
    rows = {name: [timeless(row) for row in read_jsonl(folder / name)] for name in
            (METRICS, BATCHES, f"{WARM_UP}/{METRICS}")}  # fmt: skip
    listed = [record.get("name") for record in run.checkpoints()]
    kept = sorted(
        f"{path.parent.name}/{path.name}" for path in folder.glob("checkpoints/*/*weights/*")
    )
    hidden = sorted(str(path.relative_to(folder)) for path in folder.glob("**/.*"))
    before = run.read_json(BEFORE) or {}
    scores = {"before": before.get("scores"), "after": run.after, "result": run.before}
    times = [row.get("step") for row in read_jsonl(folder / "timing_spans.jsonl")]
    return {**rows, **scores, "list": listed, "kept": kept, "hidden": hidden, "times": times}


def timeless(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row of metrics without timings."""
    return {key: value for key, value in row.items() if not key.startswith("time/")}


def differences(found: Any, wanted: Any, place: str = "") -> Iterator[str]:
    """Yield a message for each difference that is larger than a rounding error."""
    if isinstance(wanted, dict) and isinstance(found, dict):
        for key in {**wanted, **found}:
            yield from differences(found.get(key), wanted.get(key), f"{place}/{key}")
    elif isinstance(wanted, list) and isinstance(found, list) and len(wanted) == len(found):
        for number, (one, other) in enumerate(zip(found, wanted, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif isinstance(wanted, float) and isinstance(found, float):
        if not math.isclose(found, wanted, rel_tol=1e-4, abs_tol=1e-5):
            yield f"{place}: got {found}, expected {wanted}"
    elif found != wanted:
        yield f"{place}: got {found!r:.300}, expected {wanted!r:.300}"


# -- the benchmark -------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 if a run did not resume to the same results."""
    options, console = parse(argv), Console(highlight=False)
    number, draws = signal.Signals[f"SIG{options.signal}"], random.Random(options.seed)
    out = Path(tempfile.mkdtemp(prefix="kill9-"))
    began = time.monotonic()
    with start(out / "whole") as process:
        _, errors = process.communicate(timeout=LONGEST)
    if process.returncode:
        print(errors, file=sys.stderr)
        return 1
    seconds, whole = time.monotonic() - began, state(out / "whole")
    console.print(f"uninterrupted run: {seconds:.1f} s")
    runs = []
    for index, moment in enumerate(moments(options.runs, seconds, draws)):
        again = [Moment("again", draws.random() * seconds)] * (draws.random() < AGAIN)
        runs.append(stop_and_go_on(out / f"{index:03}", [moment, *again], number, whole))
        said = "; ".join(runs[-1].problems) or "equal"
        console.print(f"{index + 1}: {', '.join(runs[-1].moments)}: {said}", soft_wrap=True)
    failed = [run for run in runs if run.problems]
    stops = sum(len(run.moments) for run in runs)
    equal = f"{len(runs) - len(failed)} of {len(runs)} runs resumed to the same results"
    console.print(f"{stops} stops with SIG{options.signal}: {equal}")
    if failed:
        print(f"FAILED: see {out}", file=sys.stderr)
        return 1
    shutil.rmtree(out)
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=30, help="number of runs (default: 30)")
    parser.add_argument("--seed", type=int, default=0, help="random seed")
    parser.add_argument("--signal", choices=["KILL", "TERM", "INT"], default="KILL")
    parser.add_argument("--quick", action="store_true", help="3 runs")
    options = parser.parse_args(argv)
    options.runs = 3 if options.quick else options.runs
    return options


if __name__ == "__main__":
    sys.exit(main())
