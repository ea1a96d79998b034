"""What tasksets share: imports, games for agents, held-out tasks, errors for unknown names."""

import importlib
import random
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import ModuleType
from typing import Any, TypeVar

from evert.bridge.errors import did_you_mean
from evert.bridge.isolation import STOPPED
from evert.envs.games import Game, GameError, Metric

T = TypeVar("T")

ONE_IN = 5
"""One in ``ONE_IN`` tasks is held out."""


@cache  # agents call this in threads, where ``catch_warnings`` is not safe
def needed(taskset: str, module: str, install: str) -> ModuleType:
    """Import a module that a taskset needs.

    Args:
        taskset: Name of the taskset, for the message.
        module: Name of the module.
        install: The command that installs its package.

    Raises:
        GameError: The module cannot be imported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies
            return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise GameError(
            f"tasks={taskset} needs the package {package}. Install it: {install} ({error})."
        ) from error


TOOLS = {"batch_size": 4, "group_size": 8, "max_tokens": 512, "eval_every": 10}
"""Recipe for agents that call tools."""


STOPPED_METRIC = {STOPPED: Metric("Answers at which the scorer was stopped", "share")}
"""For tasksets whose scorers run in isolates: calls that exceeded the limits."""


def game_of_agent(
    id: str, agent: Any, recipe: Mapping[str, Any], metrics: Mapping[str, Metric] | None = None
) -> Game:
    """Return the game for an agent with both lists of tasks, whose ``repr`` is an import path."""
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
    """Split tasks into training and held-out ones. The same list is always split the same way."""
    held_out = set(random.Random(0).sample(range(len(tasks)), len(tasks) // ONE_IN))
    return (
        [task for place, task in enumerate(tasks) if place not in held_out],
        [task for place, task in enumerate(tasks) if place in held_out],
    )


def no_such(
    owner: str, what: str, name: str, names: Iterable[str], listed: Iterable[str] | None = None
) -> GameError:
    """Return the error for an unknown name, with the nearest known name and a list of names.

    Args:
        owner: What the names belong to: "ScienceWorld".
        what: What kind of thing they name: "task".
        name: The unknown name.
        names: All known names.
        listed: Names that the message lists; None: all.
    """
    hint = did_you_mean(name, names := list(names), "{}")
    choices = ", ".join(sorted(names) if listed is None else listed)
    return GameError(f"{owner} has no {what} {name!r:.200}.{hint} It has {choices}.")
