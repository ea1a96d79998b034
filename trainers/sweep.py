"""Search the settings of a run: ``evert sweep env=identity learning_rate=1e-4,1e-3 steps=10``.

From top to bottom: the command, and the sweep, a loop that starts runs while there is room and
writes down how each ends.

What it is made of is in ``sweeping/``.
"""

import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from multiprocessing.connection import wait
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from evert.bridge.errors import EvertError
from evert.trainers import train
from evert.trainers.runs.progress import quiet_progress_bars
from evert.trainers.sweeping.folder import SweepFolder, open_sweep
from evert.trainers.sweeping.record import Attempt, Record, Run, need_optuna
from evert.trainers.sweeping.results import (
    ObjectiveError,
    best_of,
    objective_of,
    show_results,
    write_results,
)
from evert.trainers.sweeping.runs import STOP_SECONDS, Room, Running
from evert.trainers.sweeping.space import OWN, read_arguments, show, whole

PROGRAM = ("python", "-m", "evert.trainers.sweep")
TRAIN = {"evert": ("evert", "train"), "python": train.PROGRAM}
"""How the training command is called, by how this one was."""
POLL_SECONDS = 0.5
FILE_WIDTH = 240
"""Columns that a table may take where there is no terminal."""

HELP = f"""\
Usage: evert sweep key=value ...

Trains many times and says which settings did best. Every setting of `evert train` can be given;
one with a list or a range is searched, the others are the same in all runs:

  learning_rate=1e-4,3e-4,1e-3     each of these
  learning_rate=1e-4..1e-2         numbers between, evenly by their logarithm
  group_size=4..16                 whole numbers between; 4..64:log evenly by their logarithm
  loss_fn=ppo,cispo                words, too
  seed=0,1,2                       repetitions: the best values are those with the best mean

The sweep's own keys:

{chr(10).join(f"  {key:<14}{meaning}" for key, meaning in OWN.items())}

Examples:

  evert sweep env=identity learning_rate=1e-4,3e-4,1e-3 group_size=4,8 steps=10
  evert sweep env=identity search=random trials=12 learning_rate=1e-4..1e-2 loss_fn=ppo,cispo
  evert sweep out=sweeps/NAME      go on: what failed or was interrupted is done again, from its
                                   own checkpoints
  evert train --help               every setting of a run
"""


# -- the command ---------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None, program: Sequence[str] = PROGRAM) -> int:
    """Run the command.

    Args:
        argv: ``key=value`` arguments; None for those of this process.
        program: What to call to run this command again.

    Returns:
        The exit status: 0, 1 for what could not be done or if a run failed, 130 after Ctrl-C.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or {"--help", "-h", "help"} & set(arguments):
        print(HELP, end="")
        return 0
    if str(Path.cwd()) not in sys.path and "" not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # a user's own agent, as in ``train``
    quiet_progress_bars()
    # A table is as wide as the terminal; a file has no width.
    console = Console(highlight=False, width=None if sys.stdout.isatty() else FILE_WIDTH)
    try:
        need_optuna()
        parallel = read_arguments(arguments).get("parallel")
        room = Room(None if parallel is None else whole({"p": parallel}, "p", 1, least=1))
        folder = open_sweep(arguments, [*program, *arguments])
        return sweep(folder, room, console, program)
    except EvertError as error:
        print(f"error: {str(error).rstrip()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        console.print("\nInterrupted before the sweep began.")
        return train.INTERRUPTED


def sweep(folder: SweepFolder, room: Room, console: Console, program: Sequence[str]) -> int:
    """Do all the runs that have not completed, and report.

    Args:
        folder: Of the sweep.
        room: How many runs fit at a time.
        console: Where to show how it goes.
        program: What to call to run this command again.

    Returns:
        The exit status, as for ``main``.
    """
    train_program = TRAIN[program[0]]
    go_on = shlex.join([*program, f"out={folder.path}"])
    with folder.in_use():
        record = Record(folder.plan, folder.path)
        record.take_up()
        console.print(f"sweep folder: {folder.path}", soft_wrap=True, markup=False)
        interrupted = _do_all(folder, record, room, console)
        runs = record.runs()
        write_results(folder, runs, train_program)
    if interrupted:
        done = sum(run.status == "completed" for run in runs)
        console.print(
            f"\nInterrupted after {done} of {folder.plan.trials} runs. To go on:\n  {go_on}",
            soft_wrap=True,
            markup=False,
        )
        return train.INTERRUPTED
    show_results(console, folder, runs, train_program)
    if any(run.status != "completed" for run in runs):
        console.print(f"To try the others again:\n  {go_on}", soft_wrap=True, markup=False)
        return 1
    return 0


def _do_all(folder: SweepFolder, record: Record, room: Room, console: Console) -> bool:
    """Do the runs, and show it; whether Ctrl-C was pressed."""
    progress = Progress(
        TextColumn("runs"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}"),
        TextColumn("{task.fields[state]}"),
        TimeElapsedColumn(),
        console=console,
    )
    with progress if console.is_terminal else nullcontext():
        loop = Loop(folder, record, room, console, progress)
        try:
            loop.run()
        except KeyboardInterrupt:
            loop.stop()
            return True
    return False


# -- the sweep -----------------------------------------------------------------------------------


class Loop:
    """Starts runs while there is room, and writes down how each ends."""

    def __init__(
        self,
        folder: SweepFolder,
        record: Record,
        room: Room,
        console: Console,
        progress: Progress,
    ) -> None:
        self._folder = folder
        self._record = record
        self._room = room
        self._console = console
        self._progress = progress
        self._task = progress.add_task("runs", total=folder.plan.trials, state="")
        self._running: list[Running] = []
        self._all_started = False

    def run(self) -> None:
        """Go on until every run was tried."""
        self._show()
        while not self._all_started or self._running:
            while not self._all_started and self._room.for_another(self._running):
                self._start_one()
            wait([run.sentinel for run in self._running], timeout=POLL_SECONDS)
            self._room.look(self._running)
            self._collect()
            self._show()

    def stop(self) -> None:
        """Have the runs under way save themselves and end; a second Ctrl-C does not wait."""
        self._console.print(
            f"\nInterrupted; {len(self._running)} run(s) are saving their state ...", markup=False
        )
        for run in self._running:
            run.interrupt()
        deadline = time.monotonic() + STOP_SECONDS
        try:
            for run in self._running:
                run.wait(deadline - time.monotonic())
        except KeyboardInterrupt:
            pass
        for run in self._running:
            run.kill()
            run.wait(STOP_SECONDS)
        self._collect(stopped=True)

    def _start_one(self) -> None:
        tried = self._record.next()
        if tried is None:
            self._all_started = True
            return
        self._folder.clear_unbegun(tried.run)
        arguments = self._folder.plan.arguments(tried.run.values)
        path, output = self._folder.run_path(tried.run), self._folder.output_path(tried.run)
        group = self._folder.path.resolve().name
        self._running.append(Running(tried, path, output, arguments, group))

    def _collect(self, *, stopped: bool = False) -> None:
        """Write down the runs that have ended."""
        for ended in [run for run in self._running if run.over]:
            self._running.remove(ended)
            attempt, objective = ended.outcome(), None
            if attempt.status == "completed":
                try:
                    objective = objective_of(ended.folder, self._folder.plan.objective)
                except ObjectiveError as error:
                    attempt = Attempt("failed", attempt.seconds, f"error: {error}")
            elif stopped:
                attempt.status = "interrupted"
            self._record.finish(ended.tried, attempt, objective)
            self._say(ended.tried.run, attempt, objective)

    def _say(self, run: Run, attempt: Attempt, objective: float | None) -> None:
        values = " ".join(f"{key}={show(value)}" for key, value in run.values.items())
        score = "" if objective is None else f" {show(objective)}"
        why = f" ({attempt.error.splitlines()[-1]})" if attempt.status == "failed" else ""
        self._console.print(
            f"run {run.number} {attempt.status}{score} in {attempt.seconds:.0f} s: {values}{why}",
            soft_wrap=True,
            markup=False,
        )

    def _show(self) -> None:
        runs = self._record.runs()
        done = sum(run.status == "completed" for run in runs)
        failed = sum(run.status == "failed" for run in runs)
        best = best_of(runs)
        state = [f"best {show(best.objective)}"] if best else []
        state += [f"{failed} failed"] if failed else []
        state += [
            f"{run.tried.run.number}: step {run.folder.steps_done()}" for run in self._running
        ]
        self._progress.update(self._task, completed=done, state=", ".join(state))


if __name__ == "__main__":
    sys.exit(main())
