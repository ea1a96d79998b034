"""``TaskFolders``: Harbor's task folders, found, checked, and some of them held out.

A task is a folder with a ``task.toml``; an episode gets its path.
"""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from evert.bridge.errors import InvalidDatasetError

TASK, PARTS = "task.toml", ("instruction.md", "environment", "tests")
"""What makes a folder a task, and what else a task has."""

ONE_IN = 5
"""One task of so many is held out, where it is not said how many."""


class TaskFolders:
    """The tasks below a folder, by name; or the one that it is.

    Args:
        path: The folder.
        held_out: How many are held out: always the same, whatever their order. None: a fifth.

    Attributes:
        all: Their paths.
        train: Those to train on.
        test: Those that are held out.

    Raises:
        InvalidDatasetError: There is no task, or a broken one, or none is left to train on.
    """

    from_path = True

    def __init__(self, path: str, *, held_out: int | None = None) -> None:
        self.all = task_folders(path)
        count = len(self.all) // ONE_IN if held_out is None else held_out
        if not isinstance(count, int) or not 0 <= count < len(self.all):
            raise InvalidDatasetError(
                f"held_out={held_out!r}: {path} has {len(self.all)} tasks; expected a number of "
                "them, smaller than that."
            )
        drawn = sorted(self.all, key=lambda task: (crc32(Path(task).name.encode()), task))
        self.test: Sequence[str] = [task for task in self.all if task in drawn[:count]]
        self.train: Sequence[str] = [task for task in self.all if task not in drawn[:count]]


def task_folders(path: str | Path) -> list[str]:
    """The paths of the tasks below a folder, by name; or of the one that it is.

    Raises:
        InvalidDatasetError: There is none, or one is broken.
    """
    folder = Path(path).resolve()
    if not folder.is_dir():
        raise InvalidDatasetError(f"There is no folder {str(path)!r} with tasks of Harbor's.")
    tasks = [folder] if _is_meant(folder) else sorted(filter(_is_meant, folder.iterdir()))
    if not tasks:
        raise InvalidDatasetError(
            f"{folder} has no tasks of Harbor's; expected folders with a {TASK} in it."
        )
    for task in tasks:
        read_task(task)
    return [*map(str, tasks)]


def _is_meant(folder: Path) -> bool:
    """Whether a folder is a task, or was to be one."""
    return folder.is_dir() and any((folder / name).exists() for name in (TASK, PARTS[0]))


def read_task(folder: Path | str) -> Any:
    """A task as Harbor reads it.

    Raises:
        InvalidDatasetError: Harbor cannot.
    """
    from harbor.models.task.task import Task

    try:
        return Task(folder)
    except Exception as error:  # a file that is missing, is no TOML, or has fields of a wrong kind
        said = f"{type(error).__name__}: {error}"
        raise InvalidDatasetError(
            f"The task {folder} is broken: {said:.600}. Mend it, or leave it out; a task has "
            f"{TASK}, {', '.join(PARTS)}."
        ) from error
