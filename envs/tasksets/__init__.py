"""Tasksets: functions that make a ``Game`` from a name and arguments, for ``tasks=``.

    evert train tasks=reasoning_gym:chain_sum tasks.min_terms=2

The function gets the name after the colon, and the arguments. The part before the colon names the
taskset: a module of your own with a function ``taskset``, or an entry point in the group
``evert.tasksets``, declared in a package's ``pyproject.toml``:

    [project.entry-points."evert.tasksets"]
    my_tasks = "my_package.my_tasks:taskset"

    common.py           what tasksets share: imports, held-out tasks, errors for unknown names
    agentdojo.py        AgentDojo's workspaces, with and without prompt injections
    bfcl.py             BFCL's multi-turn rows
    bfcl_apis.py        BFCL's simulated APIs, in a separate process
    miniwob.py          MiniWoB++'s pages in a headless Chromium
    openenv.py          the environment of an OpenEnv server
    openenv_session.py  one episode at an OpenEnv server; checks of its answers
    answers.py          which answers are safe for reasoning-gym's scorers, since some use ``eval``
    reasoning_gym.py    reasoning-gym's generators and scorers: an example for other tasksets
    scienceworld.py     ScienceWorld's experiments, in its Java simulator
    textarena.py        TextArena's games, with a seat for each player
    verifiers.py        verifiers' environments: their tasks, and the agent that plays them
    verifiers_v0.py     the environments of verifiers before 0.4
    verifiers_v1.py     the environments of verifiers 0.4
"""

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from evert.bridge.errors import did_you_mean
from evert.bridge.import_paths import place_of
from evert.envs.games import Game, GameError, import_user_module, literals

GROUP = "evert.tasksets"


def task_game(fields: Mapping[str, Any]) -> Game:
    """Make a game from a taskset.

    Args:
        fields: The ``id`` 'taskset:name', and the taskset's arguments (parsed by ``literals``).

    Raises:
        GameError: There is no such taskset, or it cannot make a game from these arguments.
    """
    id, arguments = str(fields.get("id") or ""), literals(fields)
    taskset, _, name = id.partition(":")
    make = _maker(taskset, id)
    if not name:
        raise GameError(f"tasks={id} has no name; expected tasks={taskset}:NAME.")
    try:
        inspect.signature(make).bind(name, **arguments)
    except TypeError as error:
        raise GameError(
            f"tasks={id}: {error}. It takes {inspect.signature(make)}; the first is the name after "
            "the colon, the others are tasks.KEY=VALUE."
        ) from error
    except ValueError:  # a function in C has no signature
        pass
    try:
        game = make(name, **arguments)
    except GameError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise GameError(
            f"tasks={id} could not be made with {arguments}: {type(error).__name__}: {error}"
            f"{place_of(error)}. Check the name and the arguments (tasks.KEY=VALUE), or the code."
        ) from error
    if not isinstance(game, Game):
        raise GameError(
            f"The taskset {taskset} made a {type(game).__name__} from {name!r}; expected an "
            "evert.Game" + (": does it return one?" if game is None else ".")
        )
    return game


def _maker(taskset: str, id: str) -> Callable[..., Any]:
    """Return the function of a taskset: an entry point, or ``taskset`` in a user's module."""
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    if taskset in entries:
        try:
            return entries[taskset].load()  # type: ignore[no-any-return]
        except Exception as error:  # the package may raise anything
            reason = f"{type(error).__name__}: {error}{place_of(error)}"
            value = entries[taskset].value
            raise GameError(
                f"The taskset {taskset} ({value}) cannot be loaded: {reason}."
            ) from error
    if module := import_user_module(taskset):
        if callable(make := getattr(module, "taskset", None)):
            return make  # type: ignore[no-any-return]
        raise GameError(
            f"tasks={id}: {module.__file__} has no function taskset(name) that returns an "
            "evert.Game. Write one, or use env= for a game without a name or arguments."
        )
    local = [path.stem for path in Path().glob("*.py")]
    hint = did_you_mean(taskset.removesuffix(".py"), [*entries, *local], "tasks={}:NAME")
    raise GameError(
        f"tasks={id or '(no name)'} does not name a taskset; expected 'taskset:name', like "
        f"reasoning_gym:chain_sum.{hint} There are {', '.join(sorted(entries))}, and modules of "
        "yours with a function taskset(name): my_tasks for my_tasks.py in this folder. For a list "
        "of tasks, set agent=package.module:function train_tasks=package.module:TASKS."
    )
