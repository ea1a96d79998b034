"""Tasksets: functions that create a ``Game`` from a name and arguments, for ``tasks=``.

    evert train tasks=reasoning_gym:chain_sum tasks.min_terms=2

The part before the colon identifies the taskset. Its function is called with the name after the
colon and with the arguments. A taskset is either a module of yours with a ``taskset`` function, or
an entry point in the ``evert.tasksets`` group, which a package declares in its ``pyproject.toml``:

    [project.entry-points."evert.tasksets"]
    my_tasks = "my_package.my_tasks:taskset"

    common.py           shared helpers: imports, held-out tasks, errors for unknown names
    agentdojo.py        AgentDojo workspaces, with and without prompt injections
    bfcl.py             BFCL's multi-turn rows
    bfcl_apis.py        BFCL's simulated APIs, in a separate process
    miniwob.py          MiniWoB++ pages in a headless Chromium
    openenv.py          environments served by an OpenEnv server
    openenv_session.py  an episode on an OpenEnv server, with validation of its responses
    answers.py          checks that an answer is safe for scorers that call ``eval``
    reasoning_gym.py    reasoning-gym's generators and scorers; an example for your own tasksets
    scienceworld.py     ScienceWorld's experiments, in its Java simulator
    textarena.py        TextArena games, with a seat per player
    verifiers.py        verifiers environments: their tasks, and the agent that plays them
    verifiers_v0.py     environments for verifiers before 0.4
    verifiers_v1.py     environments for verifiers 0.4
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
    """Create a game using a taskset.

    Args:
        fields: The ``id`` 'taskset:name' and the taskset's arguments (parsed by ``literals``).

    Raises:
        GameError: There is no such taskset, or it cannot create a game with these arguments.
    """
    id, arguments = str(fields.get("id") or ""), literals(fields)
    taskset, _, name = id.partition(":")
    make = _maker(taskset, id)
    if not name:
        raise GameError(f"tasks={id} is missing the name; expected tasks={taskset}:NAME.")
    try:
        inspect.signature(make).bind(name, **arguments)
    except TypeError as error:
        raise GameError(
            f"tasks={id}: {error}. Its signature is {inspect.signature(make)}: the first argument "
            "is the name after the colon, and the others are set with tasks.KEY=VALUE."
        ) from error
    except ValueError:  # C functions have no signature
        pass
    try:
        game = make(name, **arguments)
    except GameError:
        raise
    except Exception as error:  # the user's code may raise anything
        raise GameError(
            f"tasks={id} failed with the arguments {arguments}: {type(error).__name__}: {error}"
            f"{place_of(error)}. Check the name, the arguments (tasks.KEY=VALUE) and the code."
        ) from error
    if not isinstance(game, Game):
        raise GameError(
            f"The taskset {taskset} returned a {type(game).__name__} for {name!r}; expected an "
            "evert.Game" + (". Is a return statement missing?" if game is None else ".")
        )
    return game


def _maker(taskset: str, id: str) -> Callable[..., Any]:
    """Find a taskset's function, as an entry point or as ``taskset`` in a user's module."""
    entries = {entry.name: entry for entry in entry_points(group=GROUP)}
    if taskset in entries:
        try:
            return entries[taskset].load()  # type: ignore[no-any-return]
        except Exception as error:  # the package may raise anything
            reason = f"{type(error).__name__}: {error}{place_of(error)}"
            value = entries[taskset].value
            raise GameError(
                f"The taskset {taskset} ({value}) could not be loaded: {reason}."
            ) from error
    if module := import_user_module(taskset):
        if callable(make := getattr(module, "taskset", None)):
            return make  # type: ignore[no-any-return]
        raise GameError(
            f"tasks={id}: {module.__file__} does not define taskset(name), a function that "
            "returns an evert.Game. Add it, or use env= if the game takes no name or arguments."
        )
    local = [path.stem for path in Path().glob("*.py")]
    hint = did_you_mean(taskset.removesuffix(".py"), [*entries, *local], "tasks={}:NAME")
    raise GameError(
        f"tasks={id or '(no name)'} is not a known taskset; expected 'taskset:name', like "
        f"reasoning_gym:chain_sum.{hint} Available tasksets: {', '.join(sorted(entries))}, and any "
        "module of yours with a taskset(name) function (my_tasks for my_tasks.py in this folder). "
        "For a list of tasks, set agent=package.module:function train_tasks=package.module:TASKS."
    )
