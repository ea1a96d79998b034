"""A sweep from its command line to its report: as many workers as there is room for.

Its folder:

    sweep.json                 the command, versions, machine: what the sweep is
    journal.log                every attempt at every run: an Optuna study
    runs/NUMBER-VALUES/        the run folders
    output/NUMBER.txt          what each run printed
    results.csv results.json   a row a run, those of the best values first
    parallel_coordinates.png
"""

import asyncio
import csv
import io
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import chz
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from evert.trainers.arguments import read_pairs
from evert.trainers.command import run_async
from evert.trainers.runs import folder as run_folder
from evert.trainers.runs import process
from evert.trainers.runs.folder import RunFolder, RunFolderError
from evert.trainers.runs.origin import origin
from evert.trainers.runs.progress import quiet_progress_bars
from evert.trainers.runs.settings import TrainSettings, slug
from evert.trainers.sweeping.results import (
    ObjectiveError,
    as_rows,
    objective_of,
    praise,
    rank,
    show,
)
from evert.trainers.sweeping.study import Plan, Record, Run, SweepSettings, read_plan

SWEEP, JSON, CSV, PLOT = "sweep.json", "results.json", "results.csv", "parallel_coordinates.png"
NAME_LENGTH = 80
POLL_SECONDS = 0.2
FILE_WIDTH = 240
"""Columns that a table may take where there is no terminal."""


def sweep(arguments: Sequence[str], program: Sequence[str]) -> int:
    """Do all the runs that have not completed, and report.

    Args:
        arguments: ``key=value`` ones.
        program: What to call to run this command again.

    Returns:
        The exit status: 1 if a run failed.
    """
    quiet_progress_bars()
    known = {*chz.chz_fields(SweepSettings), *chz.chz_fields(TrainSettings)} - {"log_path"}
    folder, plan = open_sweep(read_pairs(arguments, known, "env"), [*program, *arguments])
    go_on = f"To go on:\n  {shlex.join([*program, f'out={folder.path}'])}"
    with run_folder.alone_in(folder.path, "sweeping", "out"):
        doing = Sweep(folder, plan)
        doing.say(f"sweep folder: {folder.path}")
        try:
            run_async(doing.run())
        except KeyboardInterrupt as stopped:
            done = f"{doing.done} of {plan.settings.trials}"
            stopped.add_note(f"Interrupted after {done} runs. {go_on}")
            raise
        finally:
            doing.report([word.replace("sweep", "train") for word in program])
    if doing.done < plan.settings.trials:
        doing.say(go_on)
    return int(doing.done < plan.settings.trials)


def open_sweep(given: Mapping[str, str], command: Sequence[str]) -> tuple[RunFolder, Plan]:
    """Make the folder of a new sweep, or open that of one to resume.

    Raises:
        RunFolderError: The folder holds something else or another sweep.
        EvertError: As ``read_plan``.
    """
    asked = {key: text for key, text in given.items() if key not in ("out", "parallel")}
    out = Path(given.get("out") or "none").expanduser()
    recorded = (run_folder.read_json(out / SWEEP) or {}).get("arguments", {})
    if recorded and any(recorded.get(key) != asked[key] for key in asked.keys() - {"trials"}):
        raise RunFolderError(
            f"{out} holds another sweep:\n  {shlex.join(f'{k}={v}' for k, v in recorded.items())}\n"
            "To resume it, give out= alone; for the new one, choose another out=."
        )
    plan = read_plan({**recorded, **given})
    before = read_plan(recorded).settings.trials if recorded else plan.settings.trials
    if plan.settings.trials < before:
        raise RunFolderError(
            f"Got trials={plan.settings.trials}, but {out} holds a sweep of {before} runs. "
            "Only more can be asked for."
        )
    path = run_folder.output_folder(plan.settings.out, "sweeps", plan.name, SWEEP)
    about = {"arguments": {**recorded, **asked}, "command": list(command)}
    folder = RunFolder(path, resumed=True)
    folder.write_json(SWEEP, {**about, **origin()})
    return folder, plan


class Sweep:
    """A sweep under way in its folder."""

    def __init__(self, folder: RunFolder, plan: Plan) -> None:
        self._folder, self._plan = folder, plan
        self._record = Record(plan, folder.path)
        self._room = asyncio.Semaphore(plan.settings.parallel or 1)
        self._measured = plan.settings.parallel is not None
        """Whether it is known how many runs fit; one, while it is not."""
        # A table is as wide as the terminal; a file has no width.
        wide = None if sys.stdout.isatty() else FILE_WIDTH
        console = Console(highlight=False, width=wide)
        self._progress = Progress(console=console, disable=not console.is_terminal)
        self._bar = self._progress.add_task("runs", total=plan.settings.trials)

    def say(self, text: str) -> None:
        """Print a line or more."""
        self._progress.console.print(text, soft_wrap=True, markup=False)

    @property
    def done(self) -> int:
        """Runs that have completed."""
        return sum(run.objective is not None for run in self._record.runs)

    async def run(self) -> None:
        """Do every run that has not completed."""
        with self._progress:
            async with asyncio.TaskGroup() as under_way:
                while await self._room.acquire() and (run := self._record.next()) is not None:
                    under_way.create_task(self._do(run))

    async def _do(self, run: Run) -> None:
        """Do a run; if the sweep is interrupted, have it save itself."""
        values = "-".join(f"{key}-{value}" for key, value in run.values.items())
        name = slug(f"{run.number:03}-{values}")[:NAME_LENGTH]
        folder = RunFolder(self._folder.path / "runs" / name, resumed=True)
        output = self._folder.path / "output" / f"{run.number:03}.txt"
        for parent in (folder.path.parent, output.parent):
            parent.mkdir(exist_ok=True)
        arguments = [*self._plan.arguments(run.values), f"log_path={folder.path}"]
        group = {"WANDB_RUN_GROUP": self._folder.path.resolve().name}
        began, under_way = time.monotonic(), process.start(arguments, output, group)
        try:
            while under_way.is_alive():
                await asyncio.sleep(POLL_SECONDS)
                if not self._measured and (fit := process.room_for(folder, under_way.pid)):
                    self._measured = True
                    for _ in range(fit - 1):
                        self._room.release()
        finally:
            self._room.release()
            await process.stop(under_way)
            status, error = process.ending(under_way.exitcode, output)
            self._finish(run, folder, status, error, round(time.monotonic() - began, 2))

    def _finish(self, run: Run, folder: RunFolder, status: str, error: str, seconds: float) -> None:
        """Write down and show how a run ended."""
        objective = None
        if status == "completed":
            try:
                objective = objective_of(folder, self._plan.settings.objective)
            except ObjectiveError as missing:
                status, error = "failed", f"error: {missing}"
        self._record.finish(run, {"status": status, "seconds": seconds, "error": error}, objective)
        values = " ".join(f"{key}={show(value)}" for key, value in run.values.items())
        why = f" ({error.splitlines()[-1]})" if error else ""
        score = status if objective is None else f"{status} {show(objective)}"
        self.say(f"run {run.number} {score} in {seconds:.0f} s: {values}{why}")
        self._progress.update(self._bar, completed=self.done)

    def report(self, program: Sequence[str]) -> None:
        """Write what came of it, and show it; ``program`` trains with the best values."""
        settings, runs = self._plan.settings, self._record.runs
        ranked = rank(runs)
        rows = as_rows(runs, ranked)
        best = command = None
        if ranked:
            command = shlex.join([*program, *self._plan.arguments(ranked[0].values)])
            best = {**asdict(ranked[0]), "command": command}
        about = {"search": settings.search, "objective": settings.objective, "best": best}
        self._folder.write_json(JSON, {**about, "planned": settings.trials, "runs": rows})
        text, names = io.StringIO(), list(rows[0]) if rows else ["run"]
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        self._folder.write(CSV, text.getvalue())
        shown = [name for name in names if name not in ("status", "error")]
        table = Table(*shown)
        for row in rows:
            empty = {name for name in shown if row[name] is None} - self._plan.space.keys()
            table.add_row(*("" if name in empty else show(row[name]) for name in shown))
        self._progress.console.print(table)
        self.say(f"results: {self._folder.path / CSV}")
        if best:
            self._draw(self._folder.path / PLOT)
            self.say(f"{praise(ranked)}. To train with it:\n  {command}")

    def _draw(self, path: Path) -> None:
        """Draw the completed runs."""
        from evert.trainers.reporting.figures.style import save
        from evert.trainers.reporting.figures.sweep import Scale, draw_sweep

        scales = [
            Scale(
                key,
                getattr(d, "choices", ()),
                *(getattr(d, end, 0) for end in ("low", "high", "log")),
            )
            for key, d in self._plan.space.items()
        ]
        done = [
            (run.values, run.objective) for run in self._record.runs if run.objective is not None
        ]
        title = f"{self._plan.name}: {self._plan.settings.search} search"
        save(draw_sweep(title, scales, done, self._plan.settings.objective), path)
