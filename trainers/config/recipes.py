"""Look up the game (``env=``, ``tasks=``) and its recipe, which provides default settings."""

import pkgutil
from collections.abc import Mapping
from typing import Any

from evert.bridge.errors import did_you_mean
from evert.bridge.tokens.bases import BASES
from evert.envs.games import Game, find_game, games
from evert.envs.tasksets import task_game
from evert.trainers.config.fields import RecipeError


def choose_recipe(
    settings: Mapping[str, object], game: Game | None = None
) -> tuple[str, Mapping[str, Any]]:
    """Return the recipe's name and values. If the game is already loaded, pass it as ``game``."""
    taskset = taskset_of(settings)
    names = {"env": str(settings.get("env") or ""), "tasks": str(taskset.get("id", ""))}
    sources = [f"{key}={name}" for key, name in names.items() if name]
    agent = settings.get("agent")
    choices = [*sources, *([f"agent={path_of(agent)}"] if agent else [])]
    if not sources:
        return "defaults", {}
    if len(choices) > 1:
        raise RecipeError(
            f"Got both {choices[0]} and {choices[1]}; expected only one of them. Leave out "
            f"{choices[0].partition('=')[0]}= to train your own agent."
        )
    game, model = game or game_of(settings), str(settings.get("model_name") or "")
    defaults = game.settings(full_size=bool(model) and model not in BASES)
    if taskset:
        return f"recipe {names['tasks']}", {**defaults, "tasks": taskset}
    name = game_name(names["env"])
    return f"recipe {name}", {**defaults, "env": name}


def game_of(settings: Mapping[str, object]) -> Game:
    """Look up the game given by ``env`` or ``tasks``."""
    if taskset := taskset_of(settings):
        return task_game(taskset)
    env = str(settings.get("env") or "")
    if game := find_game(env):
        return game
    hint = did_you_mean(game_name(env), games(), "env={}")
    raise RecipeError(
        f"There is no game {env!r}.{hint} Games: {', '.join(games())}. You can also pass your own "
        "module that defines GAME: env=my_package.my_game. To train an agent that is not a game, "
        "pass agent=package.module:function train_tasks=package.module:TASKS."
    )


def taskset_of(settings: Mapping[str, object]) -> dict[str, Any]:
    """Return the taskset's ``id`` and arguments, or {} if the settings have no taskset.

    A taskset is given as ``tasks=ID tasks.KEY=VALUE`` or, from Python, as a mapping.
    """
    taskset: dict[str, Any] = {}
    for name, value in settings.items():
        if name == "tasks" and value:
            taskset |= value if isinstance(value, Mapping) else {"id": value}
        elif name.startswith("tasks."):
            taskset[name.removeprefix("tasks.")] = value
    return taskset


def game_name(text: str) -> str:
    """Normalize a game's name: ``Guess-Number`` becomes ``guess_number``."""
    name = text.replace("-", "_")
    return name.lower() if name.lower() in games() else name


def path_of(value: Any) -> str:
    """Return an object's import path, or just its name if it is not importable.

    Strings are returned unchanged.
    """
    if isinstance(value, str):
        return value
    if not callable(value):
        return f"{len(value)} tasks" if hasattr(value, "__len__") else repr(value)
    inner = getattr(value, "func", value)  # the function of a partial
    name = getattr(inner, "__qualname__", type(inner).__qualname__)
    path = f"{getattr(inner, '__module__', '')}:{name}"
    try:
        importable = pkgutil.resolve_name(path) is value and not path.startswith("__main__")
    except (ImportError, AttributeError, ValueError):
        importable = False
    return path if importable else name.rpartition(".")[2]
