"""A run's folder: what is in it, and what may happen to it.

    run.json               settings, command, engine, versions: what the run is
    config.json            the Cookbook's own configuration
    metrics.jsonl          a line a step, by the Cookbook
    checkpoints.jsonl      the Cookbook's list of checkpoints, to resume from
    checkpoints/           the checkpoints themselves (embedded engine)
    iteration_*/           rollouts of each step, by the Cookbook
    before.json            held-out scores and samples of the untrained weights
    result.json            the figures of a finished run
    learning_curve.png  samples.md  samples.jsonl  logs.log
    tensorboard/  wandb/  wandb.json    where the run is tracked there, too

``open_run`` makes a new folder or opens one to resume, and refuses the rest: a folder that is no
run, and a run with other settings. One process at a time works in a folder (``.lock``).
Files of our own are written whole or not at all.
"""

import json
import os
import platform
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import chz
from filelock import FileLock, Timeout

from evert.bridge.errors import EvertError
from evert.trainers.runs.settings import TrainSettings, differing, slug

RUN, BEFORE, RESULT = "run.json", "before.json", "result.json"
METRICS, CHECKPOINTS, LOGS = "metrics.jsonl", "checkpoints.jsonl", "logs.log"
LOCK = ".lock"
PLOT, SAMPLES_MD, SAMPLES_JSONL = "learning_curve.png", "samples.md", "samples.jsonl"

TRAIN_REWARD = "env/all/reward/total"
HELD_OUT_REWARD = "test/env/all/reward/total"


class RunFolderError(EvertError, OSError):
    """A run folder cannot be used: it is no run, another run, or cannot be written to."""


@dataclass(frozen=True)
class RunFolder:
    """An open run folder."""

    path: Path
    resumed: bool

    @property
    def begun(self) -> bool:
        """Whether there is a run in it."""
        return (self.path / RUN).is_file()

    def in_use(self) -> AbstractContextManager[None]:
        """Keep every other process out of the folder inside the block; see ``alone_in``."""
        return alone_in(self.path, "training", "log_path")

    def discard(self) -> None:
        """Remove the folder of a run that failed before it began."""
        (self.path / LOGS).unlink(missing_ok=True)
        with suppress(OSError):  # not empty, so not ours to remove
            self.path.rmdir()

    def write(self, name: str, text: str) -> None:
        """Write a file whole, or not at all.

        Raises:
            RunFolderError: It cannot be written; what was there before is untouched.
        """
        draft = self.path / f".{name}.draft"
        try:
            draft.write_text(text, encoding="utf-8")
            draft.replace(self.path / name)
        except OSError as error:
            draft.unlink(missing_ok=True)
            raise cannot_write(self.path / name, error) from error

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file whole, or not at all."""
        self.write(name, json.dumps(value, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """A JSON file's content; None where there is no such file, or it is broken."""
        return read_json(self.path / name)

    def steps(self) -> list[dict[str, Any]]:
        """The metrics of each step, in order; see ``read_steps``."""
        return read_steps(self.path / METRICS)

    def steps_done(self) -> int:
        """Steps that a resumed run does not do again."""
        states = [record for record in self.checkpoints() if record.get("state_path")]
        return int(states[-1].get("batch") or 0) if states else 0

    def checkpoints(self) -> list[dict[str, Any]]:
        """The Cookbook's list of checkpoints, oldest first."""
        return read_jsonl(self.path / CHECKPOINTS)


@contextmanager
def alone_in(path: Path, doing: str, key: str) -> Iterator[None]:
    """Keep every other process out of a folder inside the block.

    Args:
        path: The folder.
        doing: What is done there ("training"), for the message.
        key: The setting that names another folder.

    Raises:
        RunFolderError: Another process is at work in it.
    """
    lock = FileLock(path / LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise RunFolderError(
            f"Another process is {doing} in {path}. Wait until it is done, or stop it with "
            f"Ctrl-C; to work beside it, choose another {key}."
        ) from None
    try:
        yield
    finally:
        (path / LOCK).unlink(missing_ok=True)
        lock.release()


def open_run(settings: TrainSettings) -> RunFolder:
    """Make the folder of a new run, or open that of a run to resume.

    Raises:
        RunFolderError: The folder holds something else or other settings, or is not writable.
    """
    path = Path(settings.log_path).expanduser() if settings.log_path else _new_path(settings)
    try:
        path.mkdir(parents=True, exist_ok=True)
        resumed = any(file.name != LOCK for file in path.iterdir())
        probe = path / ".probe"
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise cannot_write(path, error) from error
    if resumed:
        _check_is_ours(path, settings)
    return RunFolder(path, resumed)


def recorded_settings(log_path: str | Path) -> dict[str, Any]:
    """The settings of the run in a folder; empty where there is no run.

    Those that this version of evert does not have any more are left out.
    """
    run = read_json(Path(log_path).expanduser() / RUN) if log_path else None
    recorded = dict((run or {}).get("settings") or {})
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in recorded.items()
        if key in chz.chz_fields(TrainSettings)
    }


def _check_is_ours(path: Path, settings: TrainSettings) -> None:
    recorded = recorded_settings(path)
    if not recorded:
        raise RunFolderError(
            f"{path} is not empty, and no run of evert's: it has no readable {RUN}. Nothing was "
            "changed. Choose another log_path, or leave it out for a new folder under runs/."
        )
    changes = differing(recorded, settings)
    if changes:
        raise RunFolderError(
            f"{path} holds a run with other settings:\n  "
            + "\n  ".join(changes)
            + "\nTo resume it, leave these out (the run knows its settings); to train with the new "
            "ones, choose another log_path."
        )


def _new_path(settings: TrainSettings) -> Path:
    model = slug(Path(settings.model_name).name)
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    name = f"{slug(settings.name)}-{model}-{stamp}"
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path


def drop_broken_lines(path: Path) -> int:
    """Take unreadable lines, such as a crash leaves, out of a JSONL file; a copy keeps them.

    The Cookbook reads its files line by line and stops at the first that is no JSON.

    Returns:
        How many lines were taken out.
    """
    if not path.is_file():
        return 0
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    whole = [line for line in lines if isinstance(_parse(line), dict)]
    if len(whole) < len(lines):
        shutil.copyfile(path, path.with_suffix(".jsonl.broken"))
        draft = path.with_suffix(".jsonl.draft")
        draft.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
        draft.replace(path)
    return len(lines) - len(whole)


def read_steps(path: Path) -> list[dict[str, Any]]:
    """The metrics of each training step in a ``metrics.jsonl``, in order.

    Of a step that was done again the last row counts. Where steps overlap, the Cookbook writes
    held-out scores in rows of their own: they join their step's, whose time they took no part of.
    What belongs to no step is left out: since 0.6 it ends with the scores of the last weights and
    with totals.
    """
    found: dict[int, dict[str, Any]] = {}
    for row in read_jsonl(path):
        if isinstance(step := row.get("step"), int):
            held_out, there = _held_out(row), found.get(step, {})
            found[step] = _held_out(there) | row if is_step(row) else there | held_out
    return [found[step] for step in sorted(found) if is_step(found[step])]


def _held_out(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key.startswith("test/")}


def is_step(row: Mapping[str, Any]) -> bool:
    """Whether a training step wrote a row of ``metrics.jsonl``: it says how far training is."""
    return "progress/done_frac" in row or "progress" in row  # of RL; of supervised training


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """The records of a JSONL file; unreadable lines are left out, a missing file has none."""
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    return [record for record in map(_parse, lines) if isinstance(record, dict)]


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON file's content; None where there is no such file, or it is broken."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None


def cannot_write(path: Path, error: OSError) -> RunFolderError:
    """The error for a file or folder that cannot be written."""
    return RunFolderError(
        f"{path} cannot be written to: {error.strerror or error}. What was written before is "
        "untouched. Free some space, or choose a log_path that can be written to."
    )


def describe(settings: TrainSettings, command: Sequence[str], engine: Mapping[str, Any]) -> Any:
    """``run.json``: what the run is, and what it ran on."""
    return {
        "name": settings.name,
        "settings": chz.asdict(settings),
        "command": list(command),
        "engine": dict(engine),
        "started": datetime.now().astimezone().isoformat(timespec="seconds"),
        "versions": versions(),
        "git": git_revision(),
        "machine": machine(),
    }


def versions() -> dict[str, str]:
    """Versions of what decides a run's figures."""
    found = {"python": platform.python_version()}
    for package in ("evert", "tinker", "tinker-cookbook", "torch", "transformers"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def machine() -> dict[str, Any]:
    """The kind of computer, without its name."""
    here = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
    return {
        "system": platform.system(),
        "processor": platform.machine(),
        "cpus": len(here) or os.cpu_count(),
    }


def git_revision() -> str | None:
    """The revision of the working directory, with '-dirty' where it has changes; None if none."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
