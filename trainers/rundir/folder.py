"""A run's folder, and the rules for using it.

``docs/runs.md`` describes the files that users look at. The others are ``sampler.jsonl`` (what a
task sampler received) and the trackers' ``tensorboard/``, ``wandb/`` and ``wandb.json``.

Only one process at a time may use the folder (``.lock``). ``run.json`` is written first. Until the
folder has something to resume from, the run counts as not begun, and another may replace it.
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
    """A run's folder, with the results of a finished run."""

    path: Path
    resumed: bool = False
    """Whether the folder's run had begun when ``open_run`` opened it."""

    @property
    def begun(self) -> bool:
        """Whether the folder has a run that can be resumed."""
        paths = [self.path / name for name in (files.BEFORE, METRICS, CHECKPOINTS, WARM_UP)]
        return (self.path / files.RUN).is_file() and any(file.exists() for file in paths)

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``result.json``; empty until the run is finished."""
        return self.read_json(files.RESULT) or {}

    @property
    def before(self) -> dict[str, Any] | Any:
        """Held-out scores of untrained weights, ``before["greedy"]["reward"]``; None: not scored.

        The keys are ``greedy`` and ``temperature_1``. The type is ``Any`` rather than None, so
        that a script with held-out tasks passes type checkers without a check for None.
        """
        return self._held_out("before")

    @property
    def after(self) -> dict[str, Any] | Any:
        """Held-out scores of the trained weights, as in ``before``."""
        return self._held_out("after")

    def _held_out(self, when: str) -> dict[str, Any] | None:
        scores = (self.result.get("held_out") or {}).get(when)
        return scores if isinstance(scores, dict) else None

    @property
    def plot(self) -> Path:
        """The PNG file with the learning curve of a finished run."""
        return self.path / PLOT

    def write(self, name: str, text: str) -> None:
        """Write a file atomically, without known secrets.

        Raises:
            RunFolderError: The file cannot be written; its old content is untouched.
        """
        files.write_whole(self.path / name, redacted(text).encode())

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file atomically."""
        self.write(name, json.dumps(value, indent=2) + "\n")

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Return a JSON file's content; None if the file is missing or broken."""
        return files.read_json(self.path / name)

    def steps(self) -> list[dict[str, Any]]:
        """Return the metrics of each step, in order; see ``metrics.read_steps``."""
        return read_steps(self.path / METRICS)

    def steps_done(self) -> int:
        """Return the number of steps that a resumed run does not repeat."""
        states = [record for record in self.checkpoints() if record.get("state_path")]
        return int(states[-1].get("batch") or 0) if states else 0

    def checkpoints(self) -> list[dict[str, Any]]:
        """Return the Cookbook's list of checkpoints, oldest first."""
        return read_jsonl(self.path / CHECKPOINTS)


@contextmanager
def alone_in(path: Path, doing: str, key: str) -> Iterator[None]:
    """Keep other processes out of a folder inside the block; the setting ``key`` has its path."""
    lock = FileLock(path / LOCK)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise RunFolderError(
            f"Another process is {doing} in {path}. Wait until it ends, or stop it with "
            f"Ctrl-C; to run both at the same time, choose another {key}."
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
    """Check a command's output folder (None: a new one) as ``check_output`` does, and make it."""
    path = named_folder(out, home, slug(name))
    check_output(path, home, marker)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise files.cannot_write(path, error) from error
    return path


def check_output(path: Path, home: str, marker: str) -> None:
    """Refuse an output folder that has files, unless ``marker`` is one of them."""
    with files.file_errors(path, "out"):
        strange = path.exists() and any(file.name != LOCK for file in path.iterdir())
    if strange and not (path / marker).is_file():
        raise RunFolderError(
            f"{path} is not empty, and is not one of evert's {home}: it has no {marker}. Nothing "
            f"was changed. Choose another out=, or leave it out for a new folder under {home}/."
        )


def recorded_settings(log_path: str | Path, kind: type, name: str = files.RUN) -> dict[str, Any]:
    """Return the settings that a folder records; {} if it has no record.

    Settings that this version of evert no longer has are left out. So is ``trust_remote_code``,
    which a record from someone else must not set.
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
    """Return the folder at ``path``; None: a new one under ``home``, with the time in its name."""
    if path:
        return Path(path).expanduser()
    name += datetime.now().strftime("-%Y-%m-%d-%H%M%S")
    numbered = (Path(home) / f"{name}-{number}" for number in itertools.count(2))
    return next(p for p in itertools.chain([Path(home) / name], numbered) if not p.exists())
