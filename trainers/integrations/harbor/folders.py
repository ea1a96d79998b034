"""``TaskFolders``: find and validate Harbor task folders, and hold out some of the tasks.

A task is a folder that contains a ``task.toml``. Agents receive the path of the folder.
"""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from evert.bridge.errors import InvalidDatasetError

TASK, PARTS = "task.toml", ("instruction.md", "environment", "tests")
"""The file that identifies a task folder, and the other required files and folders."""

ONE_IN = 5
"""By default, one out of every ``ONE_IN`` tasks is held out."""


class TaskFolders:
    """All task folders in a folder, sorted by name.

    Args:
        path: A folder of tasks, or a single task.
        held_out: How many tasks to hold out (default: a fifth). They are selected by a hash of
            their names, so the split is always the same.

    Attributes:
        all: Paths of all tasks.
        train: Paths of the training tasks.
        test: Paths of the held-out tasks.

    Raises:
        InvalidDatasetError: There are no tasks, a task is invalid, or no tasks remain for training.
    """

    from_path = True

    def __init__(self, path: str, *, held_out: int | None = None) -> None:
        self.all = task_folders(path)
        count = len(self.all) // ONE_IN if held_out is None else held_out
        if not isinstance(count, int) or not 0 <= count < len(self.all):
            raise InvalidDatasetError(
                f"held_out={held_out!r}: {path} has {len(self.all)} tasks; expected at least 0 "
                "and less than the number of tasks."
            )
        ordered = sorted(self.all, key=lambda task: (crc32(Path(task).name.encode()), task))
        self.test: Sequence[str] = [task for task in self.all if task in ordered[:count]]
        self.train: Sequence[str] = [task for task in self.all if task not in ordered[:count]]


def task_folders(path: str | Path) -> list[str]:
    """Return the paths of all tasks in a folder, sorted by name. The folder may itself be a task.

    Raises:
        InvalidDatasetError: There are no tasks, or a task is invalid.
    """
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise InvalidDatasetError(f"There is no folder {str(path)!r} with Harbor tasks.")
    tasks = [folder] if _is_meant(folder) else sorted(filter(_is_meant, folder.iterdir()))
    if not tasks:
        raise InvalidDatasetError(
            f"{folder} has no Harbor tasks; expected folders that contain a {TASK}."
        )
    for task in tasks:
        read_task(task)
    return [*map(str, tasks)]


def _is_meant(folder: Path) -> bool:
    """Return whether a folder looks like a task, even if it is invalid."""
    return folder.is_dir() and any((folder / name).exists() for name in (TASK, PARTS[0]))


def read_task(folder: Path | str) -> Any:
    """Load a task with Harbor.

    Raises:
        InvalidDatasetError: The task is invalid.
    """
    from harbor.models.task.task import Task

    try:
        return Task(folder)
    except Exception as error:  # missing file, invalid TOML, or wrong field type
        reason = f"{type(error).__name__}: {error}"
        raise InvalidDatasetError(
            f"The task {folder} is invalid: {reason:.600}. Fix or remove it. A task must contain "
            f"{TASK}, {', '.join(PARTS)}."
        ) from error
