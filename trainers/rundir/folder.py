"""Create, lock, read and write run folders.

``docs/runs.md`` describes the user-facing files. There are also ``sampler.jsonl`` (the rewards
that a task sampler received), and ``tensorboard/``, ``wandb/`` and ``wandb.json`` for the trackers.

A lock (``.lock``) ensures that only one process uses the folder. ``run.json`` is written first. As
long as there is nothing to resume from, the run does not count as started, and a new run may
replace it.
"""

import itertools
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import chz
from filelock import FileLock, Timeout

from evert.bridge.redaction import redacted
from evert.trainers.rundir.metrics import read_steps
from evert.trainers.system import files
from evert.trainers.system.files import CHECKPOINTS, METRICS, RunFolderError, read_jsonl, slug

LOGS, LOCK = "logs.log", ".lock"
STORE, WARM_UP = "checkpoints", "warm_up"
PLOT, SAMPLES_MD, SAMPLES_JSONL = "learning_curve.png", "samples.md", "samples.jsonl"


@dataclass(frozen=True)
class RunFolder:
    """A run's folder, which gives access to the results once the run has finished."""

    path: Path
    resumed: bool = False
    """Whether the run had already started when ``open_run`` opened the folder."""

    @property
    def begun(self) -> bool:
        """Whether the folder contains a run that can be resumed."""
        paths = [self.path / name for name in (files.BEFORE, METRICS, CHECKPOINTS, WARM_UP)]
        return (self.path / files.RUN).is_file() and any(file.exists() for file in paths)

    @property
    def result(self) -> dict[str, Any]:
        """Content of ``result.json``; empty until the run has finished."""
        return self.read_json(files.RESULT) or {}

    @property
    def before(self) -> dict[str, Any] | Any:
        """Held-out scores before training, like ``before["greedy"]["reward"]``.

        The keys are ``greedy`` and ``temperature_1``. None if there are no scores. This is typed as
        ``Any``, so that scripts with held-out tasks pass type checkers without checking for None.
        """
        return self._held_out("before")

    @property
    def after(self) -> dict[str, Any] | Any:
        """Held-out scores after training, in the same format as ``before``."""
        return self._held_out("after")

    def _held_out(self, when: str) -> dict[str, Any] | None:
        scores = (self.result.get("held_out") or {}).get(when)
        return scores if isinstance(scores, dict) else None

    @property
    def plot(self) -> Path:
        """PNG file with the learning curve, which exists once the run has finished."""
        return self.path / PLOT

    def write(self, name: str, text: str) -> None:
        """Write a file atomically, with known secrets redacted.

        Raises:
            RunFolderError: The file cannot be written. Its old content is kept.
        """
        files.write_whole(self.path / name, redacted(text).encode())

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file atomically."""
        self.write(name, json.dumps(value, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return the content of a JSON file, or None if it is missing or invalid."""
        return files.read_json(self.path / name)

    def steps(self) -> list[dict[str, Any]]:
        """Return the metrics of all steps, in order; see ``metrics.read_steps``."""
        return read_steps(self.path / METRICS)

    def steps_done(self) -> int:
        """Return the number of steps before the last checkpoint. These need not be repeated."""
        states = [record for record in self.checkpoints() if record.get("state_path")]
        return int(states[-1].get("batch") or 0) if states else 0

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the Cookbook's list of checkpoints, from oldest to newest."""
        return read_jsonl(self.path / CHECKPOINTS)


@contextmanager
def alone_in(path: Path, doing: str, key: str) -> Iterator[None]:
    """Lock a folder during the block. ``key`` is the setting that contains the folder's path."""
    lock = FileLock(path / LOCK)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise RunFolderError(
            f"Another process is {doing} in {path}. Wait until it finishes, or stop it with "
            f"Ctrl-C. To run both at the same time, choose a different {key}."
        ) from None
    except OSError as error:
        raise files.cannot_write(path, error) from error
    try:
        with files.file_errors(path, key):
            yield
    finally:
        with suppress(OSError):  # the folder may be gone
            (path / LOCK).unlink()
        lock.release()


def output_folder(out: str | None, home: str, name: str, marker: str) -> Path:
    """Create the output folder of a command, after checking it with ``check_output``."""
    path = named_folder(out, home, slug(name))
    check_output(path, home, marker)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.cannot_write(path, error) from error
    return path


def check_output(path: Path, home: str, marker: str) -> None:
    """Raise an error if an output folder contains files, but no ``marker``."""
    with files.file_errors(path, "out"):
        strange = path.exists() and any(file.name != LOCK for file in path.iterdir())
    if strange and not (path / marker).is_file():
        raise RunFolderError(
            f"{path} is not empty and is not one of evert's {home}: it has no {marker}. Nothing "
            f"was changed. Choose a different out=, or omit it for a new folder in {home}/."
        )


def recorded_settings(log_path: str | Path, kind: type, name: str = files.RUN) -> dict[str, Any]:
    """Return the settings recorded in a folder, or {} if there is no record.

    Settings that no longer exist in this version of evert are dropped. ``trust_remote_code`` is
    dropped as well, because the record may come from someone else.
    """
    file = Path(log_path).expanduser() / name
    if not log_path or not os.path.lexists(file):
        return {}
    settings = (files.read_json(file) or {}).get("settings")
    if not settings:
        raise files.cannot_read(file)
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in settings.items()
        if key in chz.chz_fields(kind) and key != "trust_remote_code"
    }


def named_folder(path: str | None, home: str, name: str) -> Path:
    """Return ``path``. If it is None, return a new folder in ``home``, named with a timestamp."""
    if path:
        return Path(path).expanduser()
    name += datetime.now().strftime("-%Y-%m-%d-%H%M%S")
    numbered = (Path(home) / f"{name}-{number}" for number in itertools.count(2))
    return next(p for p in itertools.chain([Path(home) / name], numbered) if not p.exists())
