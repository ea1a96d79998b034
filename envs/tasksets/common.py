"""What tasksets share: their packages, and which tasks are held out."""

import importlib
import random
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import TypeVar

from evert.envs.games import GameError

T = TypeVar("T")

ONE_IN = 5
"""One of so many tasks is held out."""


def needed(taskset: str, module: str, install: str) -> ModuleType:
    """A module of the package that a taskset is made of.

    Args:
        taskset: Its name, for the message.
        module: To import.
        install: The command that installs it.

    Raises:
        GameError: It cannot be imported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of packages that it brings
            return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise GameError(
            f"tasks={taskset} needs the package {package}. Install it: {install} ({error})."
        ) from error


def split(tasks: Sequence[T], *, one_in: int = ONE_IN) -> tuple[list[T], list[T]]:
    """Tasks to train on, and held-out ones: always the same for the same tasks in their order."""
    held_out = set(random.Random(0).sample(range(len(tasks)), len(tasks) // one_in))
    return (
        [task for place, task in enumerate(tasks) if place not in held_out],
        [task for place, task in enumerate(tasks) if place in held_out],
    )
