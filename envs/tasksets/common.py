"""Helpers for tasksets: imports, games for agents, held-out tasks, errors for unknown names."""

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
"""One in ``ONE_IN`` tasks is held out for testing."""


@cache  # agents call this in threads, but ``catch_warnings`` is not thread-safe
def needed(taskset: str, module: str, install: str) -> ModuleType:
    """Import a module that a taskset requires.

    Args:
        taskset: Name of the taskset, for the error message.
        module: Name of the module.
        install: The command that installs the module's package.

    Raises:
        GameError: The module cannot be imported.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings from dependencies
            return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0].replace("_", "-")
        raise GameError(
            f"tasks={taskset} requires the {package} package. Install it with: {install} ({error})."
        ) from error


TOOLS = {"batch_size": 4, "group_size": 8, "max_tokens": 512, "eval_every": 10}
"""Default recipe for agents that call tools."""


STOPPED_METRIC = {STOPPED: Metric("Answers whose scorer was stopped", "share")}
"""For tasksets whose scorers run in isolated processes: how often a call exceeded the limits."""


def game_of_agent(
    id: str, agent: Any, recipe: Mapping[str, Any], metrics: Mapping[str, Metric] | None = None
) -> Game:
    """Return the game for an agent with both task lists.

    The agent's ``repr`` must be code that recreates the agent.
    """
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
    """Split tasks into training and held-out tasks. The split is deterministic."""
    held_out = set(random.Random(0).sample(range(len(tasks)), len(tasks) // ONE_IN))
    return (
        [task for place, task in enumerate(tasks) if place not in held_out],
        [task for place, task in enumerate(tasks) if place in held_out],
    )


def no_such(
    owner: str, what: str, name: str, names: Iterable[str], listed: Iterable[str] | None = None
) -> GameError:
    """Return the error for an unknown name, with a suggestion and a list of known names.

    Args:
        owner: What the names belong to, such as "ScienceWorld".
        what: What the names stand for, such as "task".
        name: The unknown name.
        names: All known names.
        listed: The names to list in the message (default: all).
    """
    hint = did_you_mean(name, names := list(names), "{}")
    choices = ", ".join(sorted(names) if listed is None else listed)
    return GameError(f"{owner} has no {what} {name!r:.200}.{hint} Available: {choices}.")
