"""``Index``: what stands in the files of runs, found again fast; a SQLite file in the user's cache.

A file is read on from where it was read to. What became another file than it was, begun anew by a
run that does a step again, is read from its beginning. Lines that cannot be read are counted. The
files of runs are only ever read.
"""

import os
import sqlite3
import threading
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, TypeAlias

from evert.bridge.records.files import ROLLOUTS
from evert.trainers.rundir.folder import SAMPLES_JSONL
from evert.trainers.system import files
from evert.trainers.viewing.lines import Entry, Row, entries

COLUMNS = Entry._fields[:-1]
SCHEMA = f"""
PRAGMA journal_mode = WAL;
PRAGMA synchronous = OFF;
PRAGMA cache_size = -16000;
CREATE TABLE IF NOT EXISTS runs (id INTEGER PRIMARY KEY, path TEXT UNIQUE);
CREATE TABLE IF NOT EXISTS files (
    id INTEGER PRIMARY KEY, run INTEGER, path TEXT UNIQUE, done INTEGER, last INTEGER, mark INTEGER,
    broken INTEGER
);
CREATE TABLE IF NOT EXISTS episodes (
    id INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER, file INTEGER, place INTEGER, size INTEGER,
    {", ".join(COLUMNS)}
);
CREATE INDEX IF NOT EXISTS by_step
    ON episodes (run, split, model, step, kind, grp, traj, reward, turns, tokens);
CREATE INDEX IF NOT EXISTS by_reward ON episodes (run, split, model, step, reward);
CREATE INDEX IF NOT EXISTS by_task ON episodes (same, run);
CREATE INDEX IF NOT EXISTS by_file ON episodes (file);
CREATE VIRTUAL TABLE IF NOT EXISTS texts USING fts5 (text, content='');
"""
VERSION = zlib.crc32(SCHEMA.encode())
"""Of the schema; it is in the database's name."""
LONGEST_LINE = 32 * 2**20
"""Bytes of a line that is read; a file with a longer one is read up to there."""
AT_ONCE = 200, 8 * 2**20
"""Lines, or bytes, after which what was read can be seen."""
DEEPEST, MOST_RUNS = 4, 1_000
"""Folders below a folder that was named in which runs are looked for, and most of them."""
LARGE = 2**30
"""Bytes of a file that is read after all others."""
FACTS = (files.RUN, files.METRICS, files.BATCHES, files.BEFORE, files.RESULT)
Stamp: TypeAlias = tuple[int, int, int]
"""What changes when a file does, or who may read it: its size, its time, its number."""


class Index:
    """The episodes of the runs in some folders.

    One thread calls ``look``; any may ask.

    Args:
        paths: Folders of runs or of evaluations, folders of such, or files of rollouts.
        database: The SQLite file; one that is damaged is made anew.
    """

    def __init__(self, paths: Sequence[Path], database: Path) -> None:
        self.runs: dict[int, Path] = {}
        """The runs that there are now, by their number."""
        self.facts: dict[int, tuple[Stamp | None, ...]] = {}
        """Of each, what changes when the files change that are not of episodes."""
        self.behind = 0
        """Bytes that are not read yet."""
        self.version = 0
        """Grows with all that is found."""
        self.troubles: dict[Path, str] = {}
        """Why a file or a folder is not read, or not all of it."""
        self._paths = paths
        self._write = _opened(database)
        self._read = sqlite3.connect(database, check_same_thread=False)
        self._read.row_factory = sqlite3.Row
        self._lock = threading.Lock()
        self._stamps: dict[Path, tuple[int, Stamp]] = {}
        """Files as they were when they were read to their ends."""

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._read.close()
        self._write.close()

    def ask(self, question: str, *values: Any) -> list[Row]:
        """The rows that a question in SQL gives."""
        with self._lock:
            return [dict(row) for row in self._read.execute(question, values)]

    def look(self, stopped: threading.Event) -> None:
        """Read what is new, until there is no more or it is told to stop."""
        found = find_runs(self._paths)
        self.troubles.pop(Path(), None)
        if len(found) >= MOST_RUNS:
            self.troubles[Path()] = f"there are more than {MOST_RUNS:,} runs; name some of them"
        runs = {self._number(path): path for path in found}
        facts = {run: tuple(_stamp(path / name) for name in FACTS) for run, path in runs.items()}
        self.version += facts != self.facts
        self.runs, self.facts = runs, facts
        stamps = {
            file: (run, stamp)
            for run, path in runs.items()
            for file in episode_files(path)
            if (stamp := _stamp(file))
        }
        self._forget(stamps.keys())
        news = {file: new for file, new in stamps.items() if self._stamps.get(file) != new}
        self.behind = sum(stamp[0] for _, stamp in news.values())
        for file, (run, stamp) in sorted(news.items(), key=lambda new: new[1][1][0] > LARGE):
            self.troubles.pop(file, None)
            try:
                number, done = self._begin(run, file)
                self.behind -= min(done, stamp[0])
                for size in self._take(run, file, number, done):
                    self.behind -= size
                    done += size
                    self.version += 1
                    if stopped.is_set():
                        return
            except OSError as error:  # of this file: the others are read all the same
                self.troubles[file] = str(error)
            else:
                if stamp[0] - done > LONGEST_LINE:
                    self.troubles[file] = f"{file} has a line of more than 32 MB"
            self._stamps[file] = run, stamp
        self.behind = 0

    def _number(self, path: Path) -> int:
        with self._write as database:
            name = os.fsencode(path)
            database.execute("INSERT OR IGNORE INTO runs (path) VALUES (?)", [name])
            [[number]] = database.execute("SELECT id FROM runs WHERE path = ?", [name])
        return int(number)

    def _forget(self, there: Collection[Path]) -> None:
        """Drop the episodes of files that are gone."""
        known = self._write.execute("SELECT id, path FROM files").fetchall()
        there_once = [(number, Path(os.fsdecode(path))) for number, path in known]
        gone = [(number, path) for number, path in there_once if path not in there]
        with self._write as database:
            for number, path in gone:
                database.execute("DELETE FROM episodes WHERE file = ?", [number])
                database.execute("DELETE FROM files WHERE id = ?", [number])
                self._stamps.pop(path, None)
                self.troubles.pop(path, None)
        self.version += bool(gone)

    def _begin(self, run: int, file: Path) -> tuple[int, int]:
        """A file's number, and how far it was read; 0 where it is another file than it was."""
        with self._write as database:
            database.execute(
                "INSERT OR IGNORE INTO files (run, path, done, last, mark, broken) "
                "VALUES (?, ?, 0, 0, 0, 0)",
                [run, os.fsencode(file)],
            )
            question = "SELECT id, done, last, mark FROM files WHERE path = ?"
            [[number, done, last, mark]] = database.execute(question, [os.fsencode(file)])
            if done and _mark(file, last, done) != mark:
                database.execute("DELETE FROM episodes WHERE file = ?", [number])
                database.execute("UPDATE files SET done = 0, broken = 0 WHERE id = ?", [number])
                done = 0
        return int(number), int(done)

    def _take(self, run: int, file: Path, number: int, done: int) -> Iterator[int]:
        """Read a file's new lines; the bytes of each lot, when it can be asked for."""
        with file.open("rb") as lines:
            while lot := list(_lines(lines, done)):
                broken, place = 0, done
                with self._write as database:
                    for line in lot:
                        broken += not self._add(run, number, place, line)
                        place += len(line)
                    last = place - len(lot[-1])
                    database.execute(
                        "UPDATE files SET done = ?, last = ?, mark = ?, broken = broken + ? "
                        "WHERE id = ?",
                        [place, last, zlib.crc32(lot[-1][:4096]), broken, number],
                    )
                yield place - done
                done = place

    def _add(self, run: int, file: int, place: int, line: bytes) -> bool:
        if not line.strip():
            return True
        try:
            found = entries(line)
        except ValueError:
            return False
        for entry in found:
            *values, text = entry
            given = [run, file, place, len(line), *values]
            made = self._write.execute(
                f"INSERT INTO episodes (run, file, place, size, {', '.join(COLUMNS)}) "
                f"VALUES ({', '.join('?' * len(given))})",
                given,
            )
            if text:
                self._write.execute(
                    "INSERT INTO texts (rowid, text) VALUES (?, ?)", [made.lastrowid, text]
                )
        return bool(found)


def _opened(database: Path) -> sqlite3.Connection:
    for attempt in range(2):
        database.touch(mode=0o600)  # who may not read the runs may not read this
        connection = sqlite3.connect(database, check_same_thread=False)
        try:
            connection.executescript(SCHEMA)
            return connection
        except sqlite3.DatabaseError:
            connection.close()
            if attempt:
                raise
            for file in database.parent.glob(f"{database.name}*"):
                file.unlink()
    raise AssertionError("unreachable")


def _mark(file: Path, start: int, end: int) -> int | None:
    """What tells that the last line that was read still stands where it was."""
    if file.stat().st_size < end:
        return None
    with file.open("rb") as lines:
        lines.seek(start)
        return zlib.crc32(lines.read(min(4096, end - start)))


def _lines(file: BinaryIO, start: int) -> Iterator[bytes]:
    """Some whole lines; one that is still being written waits for its end."""
    file.seek(start)
    most, left = AT_ONCE
    for _ in range(most):
        line = file.readline(LONGEST_LINE) if left > 0 else b""
        if not line.endswith(b"\n"):
            return
        left -= len(line)
        yield line


def _stamp(file: Path) -> Stamp | None:
    """None: it is no file, or gone."""
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_size, found.st_ctime_ns, found.st_ino) if S_ISREG(found.st_mode) else None


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """The run folders, evaluations and files of rollouts in some folders, each once."""
    found, known = list[Path](), set[tuple[int, int]]()

    def search(path: Path, deep: int) -> None:
        about = path.stat()
        if len(found) >= MOST_RUNS or (about.st_dev, about.st_ino) in known:
            return
        known.add((about.st_dev, about.st_ino))
        if is_run(path):
            found.append(path)
        elif deep < DEEPEST:
            inside = [each for each in os.scandir(path) if each.is_dir() and each.name[0] != "."]
            for each in sorted(inside, key=lambda each: (each.is_symlink(), each.name)):
                with suppress(OSError):
                    search(Path(each.path), deep + 1)

    for path in paths:
        with suppress(OSError):
            search(path, 0)
    return found


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run or of an evaluation, or a path a file of rollouts."""
    marks = files.RUN, files.METRICS, files.EVALUATION, f"{ROLLOUTS}.jsonl", ROLLOUTS
    return path.is_file() or any((path / mark).exists() for mark in marks)


def episode_files(run: Path) -> list[Path]:
    """The files of a run that have episodes, as they were written."""
    if run.is_file():
        return [run]
    summaries = "iteration_*/*_rollout_summaries.jsonl"
    patterns = f"{ROLLOUTS}/*.jsonl", f"{ROLLOUTS}.jsonl", SAMPLES_JSONL, summaries
    return [file for pattern in patterns for file in sorted(run.glob(pattern))]
