"""Tasksets: games that a package makes of a name and arguments, for ``tasks=``.

    evert train tasks=reasoning_gym:chain_sum tasks.min_terms=2

What stands before the colon is a module of yours that has a function ``taskset``, from what stands
behind it, and the arguments, to a ``Game``; or an entry point of the group ``evert.tasksets``,
which a package offers in its ``pyproject.toml``:

    [project.entry-points."evert.tasksets"]
    my_tasks = "my_package.my_tasks:taskset"

    common.py          what tasksets share: packages, held-out tasks, answers to a wrong name
    agentdojo.py       AgentDojo's workspaces, with and without prompt injections
    bfcl.py            BFCL's multi-turn rows
    bfcl_apis.py       their simulated APIs, in a process of their own
    miniwob.py         MiniWoB++'s pages in a headless Chromium
    openenv.py         what an OpenEnv server has
    answers.py         which answers reasoning-gym's scorers may read: some evaluate them as Python
    reasoning_gym.py   reasoning-gym's generators, scored by their own scorers: a pattern for others
    scienceworld.py    ScienceWorld's experiments, in a simulator of Java's
    textarena.py       TextArena's games, with a seat for each player
"""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from evert.bridge.import_paths import place_of
from evert.envs.games import Game, GameError, imported, literals

GROUP = "evert.tasksets"


def task_game(given: Mapping[str, Any]) -> Game:
    """The game of a taskset.

    Args:
        given: Its ``id``, 'taskset:name', and the taskset's arguments; texts are read as Python's
            literals where they are some.

    Raises:
        GameError: There is no such taskset, or it makes no game of this.
    """
    id, arguments = str(given.get("id") or ""), literals(given)
    taskset, _, name = id.partition(":")
    make = _maker(taskset, id)
    if not name:
        raise GameError(f"tasks={id} has no name; expected tasks={taskset}:NAME.")
    _check_arguments(make, id, name, arguments)
    try:
        game = make(name, **arguments)
    except GameError:
        raise
    except Exception as error:  # a package of a user's
        raise GameError(
            f"tasks={id} could not be made with {arguments}: {type(error).__name__}: {error}"
            f"{place_of(error)}. Check the name and the arguments (tasks.KEY=VALUE), or the code."
        ) from error
    if not isinstance(game, Game):
        raise GameError(
            f"The taskset {taskset} made a {type(game).__name__} of {name!r}; expected an "
            "evert.Game" + (": does it return one?" if game is None else ".")
        )
    return game


def _check_arguments(
    make: Callable[..., Any], id: str, name: str, arguments: Mapping[str, Any]
) -> None:
    try:
        signature = inspect.signature(make)
    except ValueError:  # of C
        return
    try:
        signature.bind(name, **arguments)
    except TypeError as error:
        raise GameError(
            f"tasks={id}: {error}. It takes {signature}; the first is what stands behind the "
            "colon, the others are tasks.KEY=VALUE."
        ) from error


def _maker(taskset: str, id: str) -> Callable[..., Any]:
    """What makes a taskset's games: an entry point, or ``taskset`` of a user's module."""
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    if taskset in found:
        try:
            loaded: Callable[..., Any] = found[taskset].load()
        except Exception as error:  # of somebody's package
            said = f"{type(error).__name__}: {error}{place_of(error)}"
            value = found[taskset].value
            raise GameError(f"The taskset {taskset} ({value}) cannot be loaded: {said}.") from error
        return loaded
    if module := imported(taskset):
        if callable(make := getattr(module, "taskset", None)):
            made: Callable[..., Any] = make
            return made
        raise GameError(
            f"tasks={id}: {module.__file__} has no function taskset(name) that returns an "
            "evert.Game. Write one; a game without a name or arguments goes with env=."
        )
    local = [path.stem for path in Path().glob("*.py")]
    near = get_close_matches(taskset.removesuffix(".py"), [*found, *local], n=1)
    hint = f" Did you mean tasks={near[0]}:NAME?" if near else ""
    raise GameError(
        f"tasks={id or '(no name)'} names no taskset; expected 'taskset:name', like "
        f"reasoning_gym:chain_sum.{hint} There are {', '.join(sorted(found))}, and modules of "
        "yours with a function taskset(name): my_tasks for my_tasks.py in this folder. Tasks alone "
        "go with an agent: agent=package.module:function train_tasks=package.module:TASKS."
    )
