"""``TaskFolders``: finds and checks Harbor's task folders, and holds some tasks out.

A task is a folder with a ``task.toml``; an episode gets the folder's path.
"""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from evert.bridge.errors import InvalidDatasetError

TASK, PARTS = "task.toml", ("instruction.md", "environment", "tests")
"""The file that makes a folder a task, and a task's other files and folders."""

ONE_IN = 5
"""By default, one in this many tasks is held out."""


class TaskFolders:
    """The task folders in a folder, sorted by name; or the folder itself if it is a task.

    Args:
        path: The folder.
        held_out: How many tasks are held out; a hash of their names always selects the same tasks.
            None: a fifth.

    Attributes:
        all: The paths of all tasks.
        train: The paths of the tasks to train on.
        test: The paths of the tasks that are held out.

    Raises:
        InvalidDatasetError: There is no task, one is broken, or no task is left to train on.
    """

    from_path = True

    def __init__(self, path: str, *, held_out: int | None = None) -> None:
        self.all = task_folders(path)
        count = len(self.all) // ONE_IN if held_out is None else held_out
        if not isinstance(count, int) or not 0 <= count < len(self.all):
            raise InvalidDatasetError(
                f"held_out={held_out!r}: {path} has {len(self.all)} tasks; expected a smaller "
                "number, 0 or more."
            )
        ordered = sorted(self.all, key=lambda task: (crc32(Path(task).name.encode()), task))
        self.test: Sequence[str] = [task for task in self.all if task in ordered[:count]]
        self.train: Sequence[str] = [task for task in self.all if task not in ordered[:count]]


def task_folders(path: str | Path) -> list[str]:
    """Return the paths of the tasks in a folder, sorted by name; its own path if it is a task.

    Raises:
        InvalidDatasetError: There is no task, or one is broken.
    """
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise InvalidDatasetError(f"There is no folder {str(path)!r} with Harbor tasks.")
    tasks = [folder] if _is_meant(folder) else sorted(filter(_is_meant, folder.iterdir()))
    if not tasks:
        raise InvalidDatasetError(
            f"{folder} has no Harbor tasks; expected folders with a {TASK} in them."
        )
    for task in tasks:
        read_task(task)
    return [*map(str, tasks)]


def _is_meant(folder: Path) -> bool:
    """Return whether a folder is a task, intact or broken."""
    return folder.is_dir() and any((folder / name).exists() for name in (TASK, PARTS[0]))


def read_task(folder: Path | str) -> Any:
    """Read a task with Harbor.

    Raises:
        InvalidDatasetError: The task is broken.
    """
    from harbor.models.task.task import Task

    try:
        return Task(folder)
    except Exception as error:  # a missing file, invalid TOML, or a field of the wrong type
        reason = f"{type(error).__name__}: {error}"
        raise InvalidDatasetError(
            f"The task {folder} is broken: {reason:.600}. Fix or remove it. A task has "
            f"{TASK}, {', '.join(PARTS)}."
        ) from error
