"""``evert sweep env=identity learning_rate=1e-4,1e-3 steps=10``: search for the best settings.

Runs train in parallel, as many as fit on the machine. The search and its record are implemented in
``sweeping/``. The sweep's folder contains:

    sweep.json                 command, package versions and machine
    journal.log                every attempt at every run, as an Optuna study
    runs/NUMBER-VALUES/        the run folders
    output/NUMBER.txt          the console output of each run
    results.csv results.json   one row per run, sorted from best to worst
    parallel_coordinates.png
"""

import asyncio
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import chz
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from evert.bridge.errors import NEEDS_UNIX
from evert.trainers.config.arguments import read_pairs, settings_help
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.train import TrainSettings
from evert.trainers.reporting.figures.formatting import show
from evert.trainers.rundir import folder as run_folder
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.sweeping import process, results
from evert.trainers.sweeping.study import Record, SweepPlan, SweepRun, SweepSettings, read_plan
from evert.trainers.system.command import run_async, run_command
from evert.trainers.system.files import SWEEP, RunFolderError, as_csv, cannot_read, read_json, slug
from evert.trainers.system.provenance import origin
from evert.trainers.training.progress import quiet_progress_bars

JSON, CSV, PLOT = "results.json", "results.csv", "parallel_coordinates.png"
NAME_LENGTH, FILE_WIDTH = 80, 240
"""Maximum length of a run folder's name, and table width if there is no terminal."""
POLL_SECONDS = 0.2

HELP = """\
Usage: evert sweep key=value ...

Trains many runs and shows which settings worked best. Accepts all settings of `evert train`. If
you give a setting a list or a range, the sweep searches over it; the others are fixed:

  learning_rate=1e-4,3e-4,1e-3     a list of numbers or words, like loss_fn=ppo,cispo
  learning_rate=1e-4..1e-2         a range of numbers, on a log scale
  group_size=4..16                 a range of integers; 4..64:log for a log scale
  seed=0,1,2                       repeat with several seeds, because results are noisy

  evert sweep env=identity learning_rate=1e-4,3e-4,1e-3 group_size=4,8 seed=0,1 steps=10
  evert sweep out=sweeps/NAME      resume a sweep, and retry failed and interrupted runs

"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; see ``run_command``."""
    return run_command(sweep, argv, lambda arguments: HELP + settings_help(SweepSettings, {}))


def sweep(arguments: Sequence[str]) -> int:
    """Start all runs that have not completed, and report the results. Return 1 if a run failed."""
    if sys.platform == "win32":
        raise RecipeError(f"evert sweep {NEEDS_UNIX} Start the runs one by one with evert train.")
    quiet_progress_bars()
    names = {*chz.chz_fields(SweepSettings), *chz.chz_fields(TrainSettings)} - {"log_path"}
    folder, plan = open_sweep(read_pairs(arguments, names, "env"), ["evert", "sweep", *arguments])
    resume = f":\n  {shlex.join(['evert', 'sweep', f'out={folder.path}'])}"
    with run_folder.alone_in(folder.path, "sweeping", "out"):
        search = Sweep(folder, plan)
        search.say(f"sweep folder: {folder.path}")
        try:
            run_async(search.run())
        except KeyboardInterrupt as stopped:
            stopped.add_note(
                f"Interrupted after {search.completed} of {plan.trials} runs. To resume{resume}"
            )
            raise
        finally:
            search.report()
    if search.completed < plan.trials:
        search.say(f"To retry the failed runs{resume}")
    return int(search.completed < plan.trials)


def open_sweep(arguments: Mapping[str, str], command: Sequence[str]) -> tuple[RunFolder, SweepPlan]:
    """Start a new sweep, or resume an existing sweep, possibly with a larger ``trials``."""
    pairs = {key: text for key, text in arguments.items() if key not in ("out", "parallel")}
    out = arguments.get("out")
    recorded = _recorded_arguments(Path(out).expanduser(), pairs) if out else {}
    plan = read_plan({**recorded, **arguments})
    folder = RunFolder(run_folder.output_folder(out, "sweeps", plan.name, SWEEP))
    about = {"arguments": {**recorded, **pairs}, "command": [*command]}
    folder.write_json(SWEEP, {**about, **origin()})
    return folder, plan


def _recorded_arguments(out: Path, pairs: Mapping[str, str]) -> dict[str, str]:
    """Return the recorded arguments ({} for a new sweep). Raise an error if ``pairs`` differ."""
    run_folder.check_output(out, "sweeps", SWEEP)
    recorded: dict[str, str] = (read_json(out / SWEEP) or {}).get("arguments") or {}
    if not recorded and (out / SWEEP).exists():
        raise cannot_read(out / SWEEP)
    if recorded and any(recorded.get(key) != pairs[key] for key in pairs.keys() - {"trials"}):
        raise RunFolderError(
            f"{out} contains a different sweep:\n"
            f"  {shlex.join(f'{k}={v}' for k, v in recorded.items())}\n"
            "To resume it, only pass out=. To start a new sweep, choose a different out=."
        )
    return recorded


class Sweep:
    """A running sweep."""

    def __init__(self, folder: RunFolder, plan: SweepPlan) -> None:
        self._folder, self._plan = folder, plan
        self._record = Record(plan, folder.path)
        self._room = asyncio.Semaphore(plan.settings.parallel or 1)
        self._measured = plan.settings.parallel is not None
        """Whether we know how many runs fit on the machine. Until we do, only one run trains."""
        # Tables are as wide as the terminal. In a file, they have a fixed width.
        wide = None if sys.stdout.isatty() else FILE_WIDTH
        console = Console(highlight=False, width=wide)
        self._progress = Progress(console=console, disable=not console.is_terminal)
        self._bar = self._progress.add_task("runs", total=plan.trials)

    def say(self, text: str) -> None:
        """Print text above the progress bar."""
        self._progress.console.print(text, soft_wrap=True, markup=False)

    @property
    def completed(self) -> int:
        """How many runs have completed."""
        return sum(run.objective is not None for run in self._record.runs)

    async def run(self) -> None:
        """Start all runs that have not completed, and wait for them."""
        with self._progress:
            try:
                async with asyncio.TaskGroup() as tasks:
                    while await self._room.acquire() and (run := self._record.next()) is not None:
                        tasks.create_task(self._do(run))
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None

    async def _do(self, run: SweepRun) -> None:
        values = "-".join(f"{key}-{value}" for key, value in run.values.items())
        name = slug(f"{run.number:03}-{values}")[:NAME_LENGTH]
        folder = RunFolder(self._folder.path / "runs" / name)
        output = self._folder.path / "output" / f"{run.number:03}.txt"
        for parent in (folder.path.parent, output.parent):
            parent.mkdir(exist_ok=True)
        arguments = [*self._plan.arguments(run.values), f"log_path={folder.path}"]
        group = {"WANDB_RUN_GROUP": self._folder.path.resolve().name}
        began, child = time.monotonic(), process.start(arguments, output, group)
        try:
            while child.is_alive():
                await asyncio.sleep(POLL_SECONDS)
                if not self._measured and (fit := process.room_for(folder, child.pid)):
                    self._measured = True
                    for _ in range(fit - 1):
                        self._room.release()
        finally:
            stopped = await process.stop(child, folder)
            ending = process.ending(child.exitcode, output, stopped=stopped)
            self._finish(run, folder, *ending, round(time.monotonic() - began, 2))
            self._room.release()

    def _finish(
        self, run: SweepRun, folder: RunFolder, status: str, error: str, seconds: float
    ) -> None:
        objective = None
        if status == "completed":
            try:
                objective = results.objective_of(folder, self._plan.settings.objective)
            except results.ObjectiveError as missing:
                status, error = "failed", f"error: {missing}"
        self._record.finish(run, {"status": status, "seconds": seconds, "error": error}, objective)
        values = " ".join(f"{key}={show(value)}" for key, value in run.values.items())
        # Show the last line of a traceback, or the first line of one of our errors.
        lines = error.splitlines()
        why = f" ({lines[0 if error.startswith('error: ') else -1]})" if lines else ""
        score = status if objective is None else f"{status} {show(objective)}"
        self.say(f"run {run.number} {score} in {seconds:.0f} s: {values}{why}")
        self._progress.update(self._bar, completed=self.completed)

    def report(self) -> None:
        """Write and print the results, and the command to train with the best values."""
        plan, ranked = self._plan, results.rank(self._record.runs)
        rows = results.as_rows(self._record.runs, ranked)
        train = ["evert", "train", *plan.arguments(ranked[0].values)] if ranked else []
        command = shlex.join(train) or None
        best = {**asdict(ranked[0]), "command": command} if ranked else None
        about = {"search": plan.search, "objective": plan.settings.objective, "best": best}
        self._folder.write_json(JSON, {**about, "planned": plan.trials, "runs": rows})
        if not rows:
            return
        self._folder.write(CSV, as_csv(rows))
        columns = [name for name in rows[0] if name not in ("status", "error")]
        table = Table(*columns)
        for row in rows:
            table.add_row(*(show(row[name]) for name in columns))
        self._progress.console.print(table)
        self.say(f"results: {self._folder.path / CSV}")
        if ranked:
            self._draw(self._folder.path / PLOT)
            self.say(f"{results.praise(ranked)}. To train with these values:\n  {command}")

    def _draw(self, path: Path) -> None:
        from evert.trainers.reporting.figures.style import save
        from evert.trainers.reporting.figures.sweep import Scale, draw_sweep

        space: dict[str, Any] = {key: vars(choice) for key, choice in self._plan.space.items()}
        keys = ("choices", "low", "high", "log")
        scales = [Scale(k, **{n: d[n] for n in keys if n in d}) for k, d in space.items()]
        points = [(r.values, r.objective) for r in self._record.runs if r.objective is not None]
        title = f"{self._plan.name}: {self._plan.search} search"
        save(draw_sweep(title, scales, points, self._plan.settings.objective), path)
