"""Write files atomically, and read the files of run folders even if they are damaged.

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
"""Error codes for a full or read-only disk."""
BARRED = (errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.EEXIST, errno.EIO)
"""Error codes for missing permissions, I/O errors, and mixing up a file and a folder."""

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
"""For each file, the types of the fields that we check. Only a checkpoint's name is required."""


class RunFolderError(EvertError, OSError):
    """The run folder contains no run or the wrong run, or it cannot be read or written."""


LARGEST = 2**28
"""Maximum size of a JSON file to read, in bytes. evert never writes larger files."""


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the content of a JSON file, or None if it is missing or broken."""
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:  # reading a pipe could block
            return None
        return _record(path.name, path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError):
        return None


def fits(path: Path) -> bool:
    """Return whether a file is missing or small enough to read into memory."""
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
    """Return the records of a JSONL file, skipping broken lines; [] if the file is missing."""
    return [record for _, record in _records(path) if record is not None]


def drop_broken_lines(path: Path) -> int:
    """Remove broken lines that a crash left in a JSONL file, and return how many there were.

    This is needed because the Cookbook stops reading at the first line that is not valid JSON. A
    copy of the file is kept. If only the final newline is missing, we add it, so that the next
    record starts on a new line.
    """
    lines = _records(path)
    broken = sum(record is None for _, record in lines)
    if broken:
        shutil.copyfile(path, path.with_name(f"{path.name}.broken"))
    if broken or (lines and not path.read_bytes().endswith(b"\n")):
        _write_lines(path, [line for line, record in lines if record is not None])
    return broken


def change_lines(path: Path, change: Callable[[dict[str, Any]], Mapping[str, Any] | None]) -> None:
    """Change the records of a JSONL file atomically; ``change`` returns None to remove a record."""
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
    """Remove all records of a JSONL file for which ``keep`` returns False."""
    change_lines(path, lambda record: record if keep(record) else None)


def _write_lines(path: Path, lines: list[str]) -> None:
    write_whole(path, "".join(f"{line}\n" for line in lines).encode())


def _records(path: Path) -> list[tuple[str, dict[str, Any] | None]]:
    """Return each nonblank line of a JSONL file with its record, or with None if it is broken."""
    if not path.is_file():
        return []
    lines = path.read_text("utf-8", "replace").split("\n")
    return [(line, _record(path.name, line)) for line in lines if line.strip()]


def write_whole(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file atomically, and flush it to disk."""
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
    """Flush the content of a file, or the entries of a folder, to disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":
        return  # folders cannot be opened on Windows, and need not be flushed
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def file_errors(folder: Path, key: str) -> Iterator[None]:
    """Convert OS errors in a folder to ``RunFolderError``; ``key`` is the folder's setting."""
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
    """Convert an OS error to a ``RunFolderError``; see ``file_errors``."""
    file = Path(os.fsdecode(error.filename)) if error.filename else folder
    if error.errno in FULL:
        return cannot_write(file, error)
    return RunFolderError(
        f"{file} cannot be used: {error.strerror or error}. Restore it, or choose a different "
        f"{key}."
    )


def cannot_read(path: Path) -> RunFolderError:
    """Return the error for a broken record."""
    return RunFolderError(
        f"{path} cannot be read, so there is nothing to resume: expected the file that evert "
        "wrote. Nothing was changed. Restore the file, or choose a different folder."
    )


def cannot_write(path: Path, error: OSError) -> RunFolderError:
    """Return the error for a file or folder that cannot be written."""
    return RunFolderError(
        f"{path} cannot be written to: {error.strerror or error}. Its old content was not "
        "changed. Free some disk space, or choose a writable folder."
    )


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format rows as CSV, with a column for every key that occurs in a row."""
    buffer = io.StringIO()
    names = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(buffer, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def read_csv(path: Path) -> list[dict[str, str]]:
    """Read a CSV file written by ``as_csv``; returns [] if it is missing or too large."""
    with suppress(OSError, UnicodeDecodeError, csv.Error):
        if path.stat().st_size <= LARGEST:
            text = io.StringIO(path.read_text(encoding="utf-8"), newline="")
            return [{k: v or "" for k, v in row.items() if k} for row in csv.DictReader(text)]
    return []


def slug(text: str) -> str:
    """Convert text to a form that is safe to use in a file name."""
    return re.sub(r"[^A-Za-z0-9_.]+", "-", text).strip("-.") or "run"
