"""Harbor's task folders: found, checked, some of them held out.

    evert train tasks=harbor:examples/harbor tasks.agent=terminus-2 tasks.environment=bubblewrap

A taskset (``evert.envs.tasksets``). A task is a folder with a ``task.toml``; an episode gets its
path.
"""

# pyright: reportMissingImports=false

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from zlib import crc32

from evert.bridge.errors import EvertError, InvalidDatasetError
from evert.envs.games import Game, GameError, Metric

TASK, PARTS = "task.toml", ("instruction.md", "environment", "tests")
"""What makes a folder a task, and what else a task has."""

ONE_IN = 5
"""One task of so many is held out, where it is not said how many."""


def harbor(
    path: str,
    *,
    agent: Any = "terminus-2",
    environment: Any = "docker",
    held_out: int | None = None,
    **options: Any,
) -> Game:
    """The game of a folder of tasks.

    Args:
        path: The folder.
        agent: As ``HarborAgent`` takes it.
        environment: So, too.
        held_out: How many tasks are never trained on; None: a fifth.
        **options: Further ones of ``HarborAgent``.

    Raises:
        GameError: Harbor is not installed, there is no such folder, agent, environment or option,
            or a task is broken, or not one for that environment.
    """
    if find_spec("harbor") is None:
        raise GameError(
            "tasks=harbor needs the package harbor, 0.25, and Python 3.12 or newer. Give it an "
            "environment of its own, and evert in it: pip install harbor==0.25.0 evert."
        )
    try:
        folders = TaskFolders(path, held_out=held_out)
        _check(folders.all, agent=agent, environment=environment, **options)
    except EvertError as error:
        raise GameError(f"tasks=harbor:{path}: {error}") from error
    given = {"agent": agent, "environment": environment, **options}
    arguments = ", ".join(f"{name}={value!r}" for name, value in given.items())
    split = f"evert.harbor:TaskFolders({path!r}, held_out={held_out!r})"
    return Game(
        "harbor/Tasks-v0",
        agent=f"evert.harbor:HarborAgent({arguments})",
        train_tasks=f"{split}.train",
        test_tasks=f"{split}.test" if folders.test else "",
        recipe={"batch_size": 4, "group_size": 8, "max_tokens": 1024, "eval_every": 10},
        metrics={"solved": Metric("Trials with the full reward", "share", drawn=("train", "test"))},
    )


def _check(tasks: Sequence[str], **options: Any) -> None:
    """Look at all that is told of a trial, without loading what plays it."""
    from evert.trainers.integrations.harbor.options import OWN, TrialOptions

    trial = TrialOptions(**{name: value for name, value in options.items() if name not in OWN})
    if trial.is_sandbox:
        from evert.trainers.integrations.harbor.plan import check

        check(tasks)


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
