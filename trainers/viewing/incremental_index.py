"""``Index``: quickly find episodes in runs' files, using a SQLite file in the user's cache.

Each call to ``look`` resumes reading where the previous call stopped. If a file was replaced
because a run repeated a step, it is read from the start. Unreadable lines are counted. The index
never writes to the runs' files.
"""

import os
import sqlite3
import tempfile
import threading
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from stat import S_ISREG
from typing import Any, BinaryIO, TypeAlias

from evert.bridge.records.files import ROLLOUTS, TRACES
from evert.bridge.records.traces import is_trace_file
from evert.trainers.rundir.folder import SAMPLES_JSONL
from evert.trainers.system import files
from evert.trainers.viewing.lines import IndexRow, Row, entries

COLUMNS = IndexRow._fields[:-1]
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
"""Checksum of the schema, used in the database's file name."""
LONGEST_LINE = 32 * 2**20
"""Maximum size of a line in bytes. We stop reading a file when we reach a longer line."""
AT_ONCE = 200, 8 * 2**20
"""Commit the transaction after this many lines or bytes."""
DEEPEST, MOST_RUNS = 4, 1_000
"""How many folder levels to search for runs, and the maximum number of runs."""
LARGE = 2**30
"""Read files larger than this (in bytes) after all other files."""
FACTS = (files.RUN, files.METRICS, files.BATCHES, files.BEFORE, files.RESULT, files.SCORES)
Stamp: TypeAlias = tuple[int, int, int]
"""Size, ctime and inode, used to detect changes to a file or its permissions."""


class Index:
    """An index of the episodes of all runs in the given folders.

    ``look`` must only be called from one thread; ``ask`` is thread-safe.

    Args:
        paths: Folders of runs or evaluations, folders that contain such folders, or rollout files.
        database: The SQLite file, which is rebuilt if it is damaged.
    """

    def __init__(self, paths: Sequence[Path], database: Path) -> None:
        self.runs: dict[int, Path] = {}
        """For each run number, the run's folder or file. Only contains runs that exist."""
        self.facts: dict[int, tuple[Stamp | None, ...]] = {}
        """For each run number, the stamps of the run's ``FACTS`` (the files without episodes)."""
        self.behind = 0
        """How many bytes still need to be read."""
        self.version = 0
        """Increases with every change."""
        self.troubles: dict[Path, str] = {}
        """Why a file or folder could not be read completely."""
        self._paths = paths
        self._database = database
        self._lock = threading.Lock()
        """Held while reading or opening the database."""
        self._stamps: dict[Path, tuple[int, Stamp]] = {}
        """For each file: the number of its run, and the file's stamp when it was last read."""
        self._is_damaged = False
        """Whether the database must be rebuilt."""
        self._reader = self._writer = sqlite3.connect(":memory:")  # until the database is open
        try:
            self._open()
        except sqlite3.DatabaseError:
            self._make_anew()

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._reader.close()
        self._writer.close()

    def _open(self) -> None:
        self._close()  # an earlier attempt may have failed and left the database open
        self._database.touch(mode=0o600)  # runs may be private, so only the user may read the file
        self._writer = sqlite3.connect(self._database, check_same_thread=False)
        self._reader = sqlite3.connect(self._database, check_same_thread=False)
        self._reader.row_factory = sqlite3.Row
        self._writer.executescript(SCHEMA)

    def _make_anew(self) -> None:
        self._is_damaged = True  # remains True if rebuilding fails, for example on a full disk
        with self._lock:
            self._close()
            for end in ("", "-wal", "-shm"):
                self._database.with_name(self._database.name + end).unlink(missing_ok=True)
            self._open()
        self._stamps.clear()
        self._is_damaged = False
        self.version += 1

    def ask(self, question: str, *values: Any) -> list[Row]:
        """Return the rows of an SQL query.

        Raises:
            sqlite3.Error: The query is invalid, or the database is damaged. In the latter case,
                the next ``look`` rebuilds it.
        """
        with self._lock:
            try:
                return [dict(row) for row in self._reader.execute(question, values)]
            except sqlite3.DatabaseError as error:
                self._is_damaged |= _is_damage(error)
                raise

    def look(self, stopped: threading.Event) -> None:
        """Read all new lines, and stop early if ``stopped`` is set."""
        try:
            if not self._is_damaged:
                return self._look(stopped)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
        self._make_anew()
        self._look(stopped)

    def _look(self, stopped: threading.Event) -> None:
        paths = find_runs(self._paths)
        self.troubles.pop(Path(), None)
        if len(paths) >= MOST_RUNS:
            self.troubles[Path()] = f"there are more than {MOST_RUNS:,} runs; pass fewer folders"
        runs = {self._number(path): path for path in paths}
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
                number, offset = self._begin(run, file)
                self.behind -= min(offset, stamp[0])
                for size in self._take(run, file, number, offset):
                    self.behind -= size
                    offset += size
                    self.version += 1
                    if stopped.is_set():
                        return
            except OSError as error:  # continue with other files
                self.troubles[file] = str(error)
            else:
                if stamp[0] - offset > LONGEST_LINE:
                    self.troubles[file] = f"{file} has a line that is larger than 32 MB"
            self._stamps[file] = run, stamp
        self.behind = 0

    def _number(self, path: Path) -> int:
        with self._writer as database:
            name = os.fsencode(path)
            database.execute("INSERT OR IGNORE INTO runs (path) VALUES (?)", [name])
            [[number]] = database.execute("SELECT id FROM runs WHERE path = ?", [name])
        return int(number)

    def _forget(self, paths: Collection[Path]) -> None:
        """Remove the episodes of files that no longer exist."""
        rows = self._writer.execute("SELECT id, path FROM files").fetchall()
        indexed = [(number, Path(os.fsdecode(path))) for number, path in rows]
        gone = [(number, path) for number, path in indexed if path not in paths]
        with self._writer as database:
            for number, path in gone:
                database.execute("DELETE FROM episodes WHERE file = ?", [number])
                database.execute("DELETE FROM files WHERE id = ?", [number])
                self._stamps.pop(path, None)
                self.troubles.pop(path, None)
        self.version += bool(gone)

    def _begin(self, run: int, file: Path) -> tuple[int, int]:
        """Return a file's number, and how many bytes were already read (0 if it was replaced)."""
        with self._writer as database:
            database.execute(
                "INSERT OR IGNORE INTO files (run, path, done, last, mark, broken) "
                "VALUES (?, ?, 0, 0, 0, 0)",
                [run, os.fsencode(file)],
            )
            question = "SELECT id, done, last, mark FROM files WHERE path = ?"
            [[number, offset, last, mark]] = database.execute(question, [os.fsencode(file)])
            if offset and (_mark(file, last, offset) != mark or _is_rewritten(file, offset)):
                database.execute("DELETE FROM episodes WHERE file = ?", [number])
                database.execute("UPDATE files SET done = 0, broken = 0 WHERE id = ?", [number])
                offset = 0
        return int(number), int(offset)

    def _take(self, run: int, file: Path, number: int, offset: int) -> Iterator[int]:
        """Read new lines in batches, and yield the size of each batch after committing it."""
        with file.open("rb") as lines:
            while lot := list(_lines(lines, offset)):
                broken, place = 0, offset
                with self._writer as database:
                    for line in lot:
                        broken += not self._add(run, number, place, line)
                        place += len(line)
                    last = place - len(lot[-1])
                    database.execute(
                        "UPDATE files SET done = ?, last = ?, mark = ?, broken = broken + ? "
                        "WHERE id = ?",
                        [place, last, _checksum(lines, lot[-1]), broken, number],
                    )
                yield place - offset
                offset = place

    def _add(self, run: int, file: int, place: int, line: bytes) -> bool:
        if not line.strip():
            return True
        try:
            episodes = entries(line)
        except ValueError:
            return False
        for entry in episodes:
            *values, text = entry
            row = [run, file, place, len(line), *values]
            cursor = self._writer.execute(
                f"INSERT INTO episodes (run, file, place, size, {', '.join(COLUMNS)}) "
                f"VALUES ({', '.join('?' * len(row))})",
                row,
            )
            if text:
                self._writer.execute(
                    "INSERT INTO texts (rowid, text) VALUES (?, ?)", [cursor.lastrowid, text]
                )
        return bool(episodes)


@contextmanager
def indexed(paths: Sequence[Path]) -> Iterator[Index]:
    """Yield a complete index of the runs. It is kept in a temporary file."""
    with tempfile.TemporaryDirectory(prefix="evert-index-") as folder:
        index = Index(paths, Path(folder) / "index.sqlite")
        try:
            index.look(threading.Event())
            yield index
        finally:
            index.close()


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    kind = getattr(error, "sqlite_errorcode", 0) & 0xFF  # primary error code
    return kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _is_rewritten(file: Path, offset: int) -> bool:
    """Return whether a trace file's size has changed, which means that it was rewritten."""
    return is_trace_file(file) and file.stat().st_size != offset


def _mark(file: Path, start: int, end: int) -> int | None:
    """Return a checksum of the last line that was read, to detect whether the file was replaced."""
    if file.stat().st_size < end:
        return None
    with file.open("rb") as lines:
        lines.seek(start)
        return _checksum(lines, lines.read(min(4096, end - start)))


def _checksum(file: BinaryIO, line: bytes) -> int:
    """Return a checksum of the start of a line and the file's inode number."""
    return zlib.crc32(line[:4096], os.fstat(file.fileno()).st_ino & 0xFFFFFFFF)


def _lines(file: BinaryIO, start: int) -> Iterator[bytes]:
    """Yield the next batch of complete lines, or the whole file if it is a trace."""
    file.seek(start)
    max_lines, remaining = AT_ONCE
    if is_trace_file(Path(os.fsdecode(file.name))):
        content = file.read(LONGEST_LINE + 1)
        yield from [content] if 0 < len(content) <= LONGEST_LINE else []
        return
    for _ in range(max_lines):
        line = file.readline(LONGEST_LINE) if remaining > 0 else b""
        if not line.endswith(b"\n"):
            return
        remaining -= len(line)
        yield line


def _stamp(file: Path) -> Stamp | None:
    """Return a file's stamp, or None if it is not a regular file or no longer exists."""
    try:
        status = file.stat()
    except OSError:
        return None
    return (status.st_size, status.st_ctime_ns, status.st_ino) if S_ISREG(status.st_mode) else None


def find_runs(paths: Sequence[Path]) -> list[Path]:
    """Find all runs, evaluations and rollout files in the given folders, without duplicates."""
    runs, visited = list[Path](), set[tuple[int, int]]()

    def search(path: Path, deep: int) -> None:
        about = path.stat()
        if len(runs) >= MOST_RUNS or (about.st_dev, about.st_ino) in visited:
            return
        visited.add((about.st_dev, about.st_ino))
        if is_run(path):
            runs.append(path)
        elif deep < DEEPEST:
            folders = [
                entry for entry in os.scandir(path) if entry.is_dir() and entry.name[0] != "."
            ]
            for entry in sorted(folders, key=lambda entry: (entry.is_symlink(), entry.name)):
                with suppress(OSError):
                    search(Path(entry.path), deep + 1)

    for path in paths:
        with suppress(OSError):
            search(path, 0)
    return runs


def holds_episodes(file: Path) -> bool:
    """Return whether a file is empty or has an episode in one of its first lines."""
    with file.open("rb") as lines:
        return not file.stat().st_size or any(map(_is_episode, _lines(lines, 0)))


def _is_episode(line: bytes) -> bool:
    with suppress(ValueError):
        return bool(entries(line))
    return False


def is_run(path: Path) -> bool:
    """Return whether a path is a run, an evaluation, a folder of traces, or a rollout file."""
    marks = files.RUN, files.METRICS, files.EVALUATION, f"{ROLLOUTS}.jsonl", ROLLOUTS
    has_mark = path.is_file() or any((path / mark).exists() for mark in marks)
    return has_mark or next(path.glob(TRACES), None) is not None


def episode_files(run: Path) -> list[Path]:
    """Return a run's files that contain episodes, sorted by type and name."""
    if run.is_file():
        return [run]
    summaries = "iteration_*/*_rollout_summaries.jsonl"
    patterns = f"{ROLLOUTS}/*.jsonl", f"{ROLLOUTS}.jsonl", SAMPLES_JSONL, summaries, TRACES
    return [file for pattern in patterns for file in sorted(run.glob(pattern))]
