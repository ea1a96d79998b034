"""What tasksets share: packages, games of agents with tools, held-out tasks, wrong names."""

import importlib
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

from evert.envs.games import Game, GameError, Metric

T = TypeVar("T")

ONE_IN = 5
"""One of so many tasks is held out."""


@cache  # agents ask in threads, where no warnings should be caught
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


TOOLS = {"batch_size": 4, "group_size": 8, "max_tokens": 512, "eval_every": 10}
"""Recipe of agents that call tools."""


def game_of_agent(
    id: str, agent: Any, recipe: Mapping[str, Any], metrics: Mapping[str, Metric] | None = None
) -> Game:
    """The game of an agent that a path can make, and that has both kinds of tasks."""
    path = f"{type(agent).__module__}:{agent!r}"
    return Game(
        id,
        agent=path,
        train_tasks=f"{path}.train_tasks",
        test_tasks=f"{path}.test_tasks",
        recipe=recipe,
        metrics=metrics or {},
    )


def split(tasks: Sequence[T]) -> tuple[list[T], list[T]]:
    """Tasks to train on, and held-out ones: always the same for the same tasks in their order."""
    held_out = set(random.Random(0).sample(range(len(tasks)), len(tasks) // ONE_IN))
    return (
        [task for place, task in enumerate(tasks) if place not in held_out],
        [task for place, task in enumerate(tasks) if place in held_out],
    )


def no_such(
    whose: str, what: str, name: str, known: Iterable[str], listed: Iterable[str] | None = None
) -> GameError:
    """The error of a name that there is not, with the nearest one and what there is.

    Args:
        whose: Has none of this name, in a message's words.
        what: It has none of.
        name: That was given.
        known: All names.
        listed: Names that the message lists; None: all.
    """
    near = get_close_matches(name, known := list(known), n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]}?" if near else ""
    there_is = ", ".join(sorted(known) if listed is None else listed)
    return GameError(f"{whose} has no {what} {name!r:.200}.{hint} It has {there_is}.")
