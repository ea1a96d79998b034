"""A sweep's folder: what is in it, and which sweep may go on in it.

    sweep.json                 the command, versions, machine: what the sweep is
    journal.log                every attempt at every run (``record.py``)
    runs/NUMBER-VALUES/        the run folders
    output/NUMBER.txt          what each run printed
    results.csv results.json   a row a run
    parallel_coordinates.png

The folder knows its command: ``evert sweep out=FOLDER`` goes on with it. A folder that holds
anything else, or another sweep, is refused. One process at a time works in it.
"""

import shutil
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from evert.trainers.runs import folder as run_folder
from evert.trainers.runs.folder import RunFolder, RunFolderError
from evert.trainers.runs.settings import slug
from evert.trainers.sweeping.record import Run
from evert.trainers.sweeping.space import FREE, Plan, read_arguments, read_plan, show, whole

SWEEP, RESULTS_CSV, RESULTS_JSON = "sweep.json", "results.csv", "results.json"
PLOT = "parallel_coordinates.png"
RUNS, OUTPUT = "runs", "output"
NAME_LENGTH = 80


class SweepFolderError(RunFolderError):
    """A sweep folder cannot be used: it holds something else, or another sweep."""


class SweepFolder:
    """An open sweep folder.

    Args:
        path: Of the folder, which is there.
        plan: Of the sweep in it.
        resumed: Whether it was there before.
    """

    def __init__(self, path: Path, plan: Plan, *, resumed: bool) -> None:
        self.path = path
        self.plan = plan
        self.resumed = resumed
        self._files = RunFolder(path, resumed)

    def in_use(self) -> AbstractContextManager[None]:
        """Keep every other process out of the folder inside the block; see ``alone_in``."""
        return run_folder.alone_in(self.path, "sweeping", "out")

    def describe(self, arguments: Sequence[str], command: Sequence[str]) -> None:
        """Write ``sweep.json``."""
        about = {
            "arguments": [a for a in arguments if a.partition("=")[0] not in FREE],
            "command": list(command),
            "started": datetime.now().astimezone().isoformat(timespec="seconds"),
            "versions": run_folder.versions(),
            "git": run_folder.git_revision(),
            "machine": run_folder.machine(),
        }
        self.write_json(SWEEP, about)

    def record_trials(self) -> None:
        """Write down that the sweep has more runs now."""
        about = run_folder.read_json(self.path / SWEEP) or {}
        kept = [a for a in about["arguments"] if not a.startswith("trials=")]
        self.write_json(SWEEP, {**about, "arguments": [*kept, f"trials={self.plan.trials}"]})

    def write(self, name: str, text: str) -> None:
        """Write a file whole, or not at all."""
        self._files.write(name, text)

    def write_json(self, name: str, value: Any) -> None:
        """Write a JSON file whole, or not at all."""
        self._files.write_json(name, value)

    def run_path(self, run: Run) -> Path:
        """The folder of a run: its number and its values."""
        values = "-".join(f"{key}-{show(value)}" for key, value in run.values.items())
        return self.path / RUNS / slug(f"{run.number:03}-{values}")[:NAME_LENGTH]

    def output_path(self, run: Run) -> Path:
        """The file of what a run printed."""
        return self.path / OUTPUT / f"{run.number:03}.txt"

    def clear_unbegun(self, run: Run) -> None:
        """Make room for a run that was killed before it began: it left nothing to resume."""
        path = self.run_path(run)
        if path.is_dir() and not RunFolder(path, resumed=True).begun:
            shutil.rmtree(path)
        for parent in (path.parent, self.output_path(run).parent):
            parent.mkdir(exist_ok=True)


def open_sweep(arguments: Sequence[str], command: Sequence[str]) -> SweepFolder:
    """Read the command line, and make the folder of a new sweep or open that of one to resume.

    Args:
        arguments: ``key=value`` ones.
        command: The whole command line, for the record.

    Raises:
        SweepFolderError: The folder holds something else or another sweep.
        EvertError: As ``read_plan``.
    """
    given = read_arguments(arguments)
    path = Path(given["out"]).expanduser() if given.get("out") else None
    recorded = _recorded(path) if path is not None else None
    if path is not None and recorded is not None:
        folder = SweepFolder(path, _resumed_plan(path, recorded, arguments), resumed=True)
        if "trials" in given:
            folder.record_trials()
        return folder
    plan = read_plan(arguments)
    folder = SweepFolder(_make(path or _new_path(plan)), plan, resumed=False)
    folder.describe(arguments, command)
    return folder


def _resumed_plan(path: Path, recorded: list[str], arguments: Sequence[str]) -> Plan:
    """The plan of a sweep to resume, which only ``trials`` may add to."""
    given = read_arguments(arguments)
    plan = read_plan(recorded)
    own = {key: text for key, text in given.items() if key not in FREE}
    trials = whole(own, "trials", plan.trials, least=1)
    if own.keys() - {"trials"} and replace(read_plan(arguments), trials=trials) != replace(
        plan, trials=trials
    ):
        raise SweepFolderError(
            f"{path} holds another sweep:\n  {' '.join(recorded)}\nTo resume it, give out= alone; "
            "for the new one, choose another out=."
        )
    if trials < plan.trials or (plan.search == "grid" and trials != plan.trials):
        raise SweepFolderError(
            f"Got trials={trials}, but {path} holds a {plan.search} search of {plan.trials} runs. "
            "Only a random or tpe search can be resumed with another number, a larger one."
        )
    return replace(plan, trials=trials)


def _recorded(path: Path) -> list[str] | None:
    """The arguments of the sweep in a folder; None where the folder is empty or missing."""
    about = run_folder.read_json(path / SWEEP)
    if about is not None and isinstance(about.get("arguments"), list):
        return [str(argument) for argument in about["arguments"]]
    if path.is_dir() and any(path.iterdir()):
        raise SweepFolderError(
            f"{path} is not empty, and no sweep of evert's: it has no readable {SWEEP}. Nothing "
            "was changed. Choose another out=, or leave it out for a new folder under sweeps/."
        )
    return None


def _make(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise run_folder.cannot_write(path, error) from error
    return path


def _new_path(plan: Plan) -> Path:
    name = f"{slug(plan.name)}-{datetime.now().strftime('%Y-%m-%d-%H%M%S')}"
    path, number = Path("sweeps") / name, 2
    while path.exists():
        path, number = Path("sweeps") / f"{name}-{number}", number + 1
    return path
