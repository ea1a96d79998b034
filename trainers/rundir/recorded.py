"""Read a run's recorded rollouts with a progress bar, and change rollouts in a file."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from evert.bridge.records.files import record_files
from evert.trainers.system.files import write_whole

if TYPE_CHECKING:
    from evert.bridge.records.record import RolloutRecord
    from evert.bridge.records.rows import Row


@contextmanager
def progress(path: str, doing: str, console: Console) -> "Iterator[Iterator[RolloutRecord]]":
    """Yield the rollouts of a run, and show a progress bar if the output is a terminal."""
    size = sum(file.stat().st_size for file in record_files(Path(path)))
    from evert.bridge.records.record import read_records

    columns = "{task.description}", BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    task = bar.add_task(doing, total=size)
    with bar:
        yield read_records(path, lambda length: bar.advance(task, length))


def change_rows(file: Path, change: "Callable[[Row], bool]", part: str = "") -> bool:
    """Change rows in a file of rollouts. The file is only rewritten if a row changed.

    If a server appends to the file in the meantime, we start over with the new content.

    Args:
        file: The file.
        change: Modifies a row in place and returns whether it changed.
        part: Only rows that contain this text are parsed and changed.

    Returns:
        Whether any row was changed.

    Raises:
        OSError: The file cannot be read or written.
    """
    while True:
        content = file.read_bytes()
        is_changed, lines = False, content.splitlines(keepends=True)
        for number, line in enumerate(lines):
            if part.encode() in line and line.endswith(b"\n") and change(row := json.loads(line)):
                lines[number], is_changed = f"{json.dumps(row)}\n".encode(), True
        if not is_changed:
            return False
        if file.stat().st_size == len(content):
            write_whole(file, b"".join(lines))
            return True
