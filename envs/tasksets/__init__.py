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

from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

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
    found = {entry.name: entry for entry in entry_points(group=GROUP)}
    module = imported(taskset) if name and taskset not in found else None
    if not name or (taskset not in found and module is None):
        raise GameError(
            f"tasks={id or '(no name)'} names no taskset; expected 'taskset:name', like "
            f"reasoning_gym:chain_sum. There are {', '.join(sorted(found))}, and modules of yours "
            "with a function taskset(name). Tasks alone go with an agent: "
            "agent=package.module:function train_tasks=package.module:TASKS."
        )
    try:
        make = found[taskset].load() if module is None else module.taskset
        game = make(name, **arguments)
    except GameError:
        raise
    except Exception as error:  # a package of a user's
        raise GameError(
            f"tasks={id} could not be made with {arguments}: {type(error).__name__}: {error}. "
            "Check the name and the arguments: tasks.KEY=VALUE."
        ) from error
    if not isinstance(game, Game):
        raise GameError(
            f"The taskset {taskset} made a {type(game).__name__} of {name!r}; expected an "
            "evert.Game."
        )
    return game
