"""The files of run folders: written atomically, and read even if damaged.

A record is broken if it is not a JSON object, or if one of its fields has the wrong type.
"""

import csv
import errno
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from evert.bridge.errors import EvertError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)
"""Errors of a full or read-only disk."""
BARRED = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EIO)
"""Errors of a path of the wrong kind, a missing permission, or a failing disk."""

RUN, BEFORE, RESULT = "run.json", "before.json", "result.json"
METRICS, BATCHES, CHECKPOINTS = "metrics.jsonl", "batches.jsonl", "checkpoints.jsonl"
TIMES, WANDB, SAMPLER = "timing_spans.jsonl", "wandb.json", "sampler.jsonl"
EVALUATION, SWEEP = "evaluation.json", "sweep.json"
SCORES = "scores.csv"

_NUMBER = (int, float)
_TYPES: Mapping[str, Mapping[str, tuple[type, ...]]] = {
    RUN: {
        "name": (str,), "settings": (dict,), "engine": (dict,), "versions": (dict,),
        "files": (dict,),
    },
    BEFORE: {"scores": (dict,), "samples": (list,), "failures": (dict,)},
    RESULT: {"held_out": (dict,)},
    WANDB: {"project": (str,), "id": (str,)},
    EVALUATION: {"settings": (dict,)},
    SWEEP: {"arguments": (dict,)},
    METRICS: {
        "step": (int,), "time/total": _NUMBER,
        "env/all/reward/total": _NUMBER, "test/env/all/reward/total": _NUMBER,
    },
    BATCHES: {"step": (int,), "metrics": (dict,), "episodes": (int,), "kinds": (dict,)},
    CHECKPOINTS: {"name": (str,), "batch": (int,), "state_path": (str,), "sampler_path": (str,)},
    TIMES: {"step": (int,)},
}  # fmt: skip
"""File -> types of its checked fields; all but a checkpoint's name may be missing."""


class RunFolderError(EvertError, OSError):
    """A run folder cannot be used: it has no run or another run, or reading or writing fails."""


LARGEST = 2**28
"""Maximum size of a JSON file to read, in bytes; evert writes no larger files."""


def read_json(path: Path) -> dict[str, Any] | None:
    """Return a JSON file's content; None if the file is missing or broken."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:  # reading a pipe would never end
            return None
        return _record(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError):
        return None


def fits(path: Path) -> bool:
    """Return whether a file is small enough to be read whole; True if it is missing."""
    try:
        return path.stat().st_size <= LARGEST
    except OSError:
        return True


def _record(file: str, text: str) -> dict[str, Any] | None:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or (file == CHECKPOINTS and record.get("name") is None):
        return None
    types = _TYPES.get(file, {}).items()
    fits = (record.get(key) is None or isinstance(record[key], kinds) for key, kinds in types)
    return record if all(fits) else None


def read_jsonl(path: Path) -> list[dict[str, Any]]:
    """Return the records of a JSONL file, without broken lines; [] for a missing file."""
    return [record for _, record in _records(path) if record is not None]


def drop_broken_lines(path: Path) -> int:
    """Remove the broken lines that a crash may leave in a JSONL file; return their number.

    The Cookbook stops reading at the first line that is not JSON. A copy of the file keeps the
    broken lines. If only the newline at the end is missing, it is added, so that the next record
    gets its own line.
    """
    lines = _records(path)
    broken = sum(record is None for _, record in lines)
    if broken:
        shutil.copyfile(path, path.with_name(f"{path.name}.broken"))
    if broken or (lines and not path.read_bytes().endswith(b"\n")):
        _write_lines(path, [line for line, record in lines if record is not None])
    return broken


def change_lines(path: Path, change: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> None:
    """Change a JSONL file's records atomically; ``change`` returns None to remove a record."""
    lines = [(line, record) for line, record in _records(path) if record is not None]
    changes = [(line, record, change(record)) for line, record in lines]
    new = [
        line if new_record == record else json.dumps(new_record)
        for line, record, new_record in changes
        if new_record is not None
    ]
    if new != [line for line, _ in lines]:
        _write_lines(path, new)


def keep_lines(path: Path, keep: Callable[[Mapping[str, Any]], bool]) -> None:
    """Keep only the records of a JSONL file for which ``keep`` is true; see ``change_lines``."""
    change_lines(path, lambda record: record if keep(record) else None)


def _write_lines(path: Path, lines: list[str]) -> None:
    write_whole(path, "".join(f"{line}\n" for line in lines).encode())


def _records(path: Path) -> list[tuple[str, dict[str, Any] | None]]:
    """Return the nonblank lines of a JSONL file with their records; None for a broken line."""
    if not path.is_file():
        return []
    lines = path.read_text("utf-8", "replace").split("\n")
    return [(line, _record(path.name, line)) for line in lines if line.strip()]


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file atomically, and flush it to the disk."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        try:
            with draft.open("wb") as file:
                file.writelines([content] if isinstance(content, bytes) else content)
            fsync(draft)
            draft.replace(path)
            fsync(path.parent)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(path, error) from error


def fsync(path: Path) -> None:
    """Flush a file's content, or the names of a folder's files, to the disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # Windows writes names by itself, and cannot open folders
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def file_errors(folder: Path, key: str) -> Iterator[None]:
    """Turn OS errors about a folder into a ``RunFolderError``; the setting ``key`` has its path."""
    try:
        yield
    except EvertError:
        raise
    except OSError as error:
        file = Path(os.fsdecode(error.filename)) if error.filename else folder
        if error.errno not in FULL and not file.resolve().is_relative_to(folder.resolve()):
            raise
        new_error = cannot_use(error, folder, key)
        for note in getattr(error, "__notes__", ()):
            new_error.add_note(note)
        raise new_error from error


def cannot_use(error: OSError, folder: Path, key: str = "folder") -> RunFolderError:
    """Return the error to raise for an OS error; see ``file_errors``."""
    file = Path(os.fsdecode(error.filename)) if error.filename else folder
    if error.errno in FULL:
        return cannot_write(file, error)
    return RunFolderError(
        f"{file} cannot be used: {error.strerror or error}. Restore it, or choose another {key}."
    )


def cannot_read(path: Path) -> RunFolderError:
    """Return the error to raise for a broken record."""
    return RunFolderError(
        f"{path} cannot be read, so nothing can be resumed from it: expected the file that evert "
        "wrote. Nothing was changed. Restore it, or choose another folder."
    )


def cannot_write(path: Path, error: OSError) -> RunFolderError:
    """Return the error to raise for a file or folder that cannot be written."""
    return RunFolderError(
        f"{path} cannot be written to: {error.strerror or error}. Its old content is "
        "untouched. Free some space, or choose a folder that can be written to."
    )


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as CSV text, with a column for each name that any row has."""
    buffer = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Return the rows of a CSV file that ``as_csv`` wrote; [] if it is missing or too large."""
    with suppress(OSError, UnicodeDecodeError, csv.Error):
        if path.stat().st_size <= LARGEST:
            text = io.StringIO(path.read_text(encoding="utf-8"), newline="")
            return [{k: v or "" for k, v in row.items() if k} for row in csv.DictReader(text)]
    return []


def slug(text: str) -> str:
    """Return a text in a form that can be part of a file name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "run"
