"""Reads rows from files, for settings that accept a path to demonstrations or tasks.

    FILE.jsonl      one JSON value per line
    FILE.csv        one dict of strings per row, with the column names as keys
    FILE.parquet    one dict per row
    FOLDER          a dataset saved by ``datasets`` (the "train" split), or recorded rollouts

Files are not trusted: nothing in them is executed, and lines that are too long are rejected.
"""

import csv
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from evert.bridge.errors import EvertError, nearest, repr_of

LONGEST = 2**24
"""Maximum size of a line, in bytes."""

KINDS = (".jsonl", ".csv", ".parquet")
EXPECTED = (
    f"a file ({', '.join(KINDS)}), a folder with a dataset or records, or an import path "
    "'package.module:name'"
)

_SAVED = ("dataset_dict.json", "dataset_info.json", "state.json")


def names_file(text: str) -> bool:
    """Return whether a setting is a file path, not an import path. The file may not exist."""
    is_path = text.endswith(KINDS) or (":" not in text and "/" in text)
    return bool(text) and (is_path or os.path.exists(os.path.expanduser(text)))


def holds_records(path: str, error: type[EvertError]) -> bool:
    """Return whether a path is a folder of recorded rollouts rather than a file or dataset.

    Raises:
        error: The path does not exist, or the file type is not supported.
    """
    place = Path(path).expanduser()
    if place.is_dir():
        return not any((place / name).is_file() for name in _SAVED)
    if not place.is_file():
        near = f" {near_path(place)}".rstrip()
        raise error(f"There is no file or folder {path}.{near} Expected {EXPECTED}.")
    if place.suffix not in KINDS:
        raise error(f"{path} has an unsupported file type; expected {EXPECTED}.")
    return False


def near_path(path: Path) -> str:
    """Return a "Did you mean" question for a missing path, or "" if no path is similar."""
    beside = path.parent if path.parent.is_dir() else Path()
    name = nearest(path.name, [sibling.name for sibling in beside.iterdir()])
    return f"Did you mean {beside / name}?" if name else ""


def read_rows(path: str, error: type[EvertError]) -> Iterator[tuple[str, Any]]:
    """Read the rows in a file or a dataset folder.

    Yields:
        The location of each row, such as "FILE, line 3", and its value. Blank lines are skipped.

    Raises:
        error: A row cannot be read.
    """
    for file in row_files(path):
        try:
            if file.suffix in (".jsonl", ".csv"):
                with file.open("rb") as opened:
                    reader = _jsonl if file.suffix == ".jsonl" else _csv
                    yield from ((f"{file}, line {at}", row) for at, row in reader(opened))
            else:
                yield from ((f"{file}, row {at}", row) for at, row in enumerate(_table(file), 1))
        except _BadRowError as bad:
            raise error(f"{file}, line {bad}") from None
        except Exception as bad:  # damaged tables can raise anything
            raise error(f"{file} cannot be read: {bad}") from bad


def row_files(path: str) -> list[Path]:
    """Return the files to read for a file path or a dataset folder, in order."""
    place = Path(path).expanduser()
    if place.is_file():
        return [place]
    return sorted((place / "train" if (place / _SAVED[0]).is_file() else place).glob("*.arrow"))


def digest(files: list[Path]) -> str:
    """Return the SHA-256 hash of the concatenated files."""
    total = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            while block := opened.read(2**20):
                total.update(block)
    return total.hexdigest()


class _BadRowError(Exception):
    pass


def _lines(file: BinaryIO) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST + 1):
        number += 1
        if len(line) > LONGEST:
            raise _BadRowError(f"{number} is longer than {LONGEST:,} bytes; expected a row.")
        try:
            yield line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise _BadRowError(f"{number} is not UTF-8 ({error}). Save it as UTF-8.") from None


def _jsonl(file: BinaryIO) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(_lines(file), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _BadRowError(
                    f"{number} is not valid JSON ({error}): {repr_of(line.strip())}. Expected a "
                    "JSON value on each line."
                ) from None
            yield number, row


def _csv(file: BinaryIO) -> Iterator[tuple[int, Any]]:
    rows = csv.DictReader(_lines(file), strict=True)
    try:
        names = rows.fieldnames or []
        if len({*names}) < len(names):
            raise _BadRowError(f"1 has duplicate column names: {', '.join(names)}. Rename one.")
        for row in rows:
            if None in row or None in row.values():
                fields = f"{len(names)}: {', '.join(names)}"
                raise _BadRowError(
                    f"{rows.line_num} has too many or too few fields; expected {fields}."
                )
            yield rows.line_num, row
    except csv.Error as error:
        raise _BadRowError(f"{rows.reader.line_num} is not valid CSV: {error}.") from None


def _table(file: Path) -> Iterator[Any]:
    if file.suffix == ".parquet":
        from pyarrow import parquet

        batches = parquet.ParquetFile(file).iter_batches()
    else:
        from pyarrow import ipc

        batches = ipc.open_stream(file.read_bytes())
    for batch in batches:
        yield from batch.to_pylist()
