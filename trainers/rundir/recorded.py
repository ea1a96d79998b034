"""Read the recorded rollouts of a run, with a progress bar."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

from evert.bridge.records.files import record_files

if TYPE_CHECKING:
    from evert.bridge.records.record import RolloutRecord


@contextmanager
def progress(path: str, doing: str, console: Console) -> "Iterator[Iterator[RolloutRecord]]":
    """Read the rollouts inside the block; a terminal shows a progress bar."""
    size = sum(file.stat().st_size for file in record_files(Path(path)))
    from evert.bridge.records.record import read_records

    columns = "{task.description}", BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    bar = Progress(*columns, console=console, disable=not console.is_terminal, transient=True)
    task = bar.add_task(doing, total=size)
    with bar:
        yield read_records(path, lambda read: bar.advance(task, read))
