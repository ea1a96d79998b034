"""The games, found where they stand: one file or folder beside this one, with a ``GAME`` in it.

    GAME = Game(
        "my/Parity-v0",                         what gymnasium.make calls it
        agent="my_game:parity_agent",
        train_tasks="my_game:TRAIN_TASKS",
        test_tasks="my_game:TEST_TASKS",
        recipe={"steps": 30, "max_tokens": 8},  what evert train env=my_game does
    )

``games`` looks through this folder, so that adding a game touches nothing else; ``find_game`` also
finds a game of a user's own, in a package or in a file of the current folder. Variants of a game
here stand in its module as ``VARIANTS``, by name.
"""

import ast
import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal

from evert.bridge.errors import EvertError
from evert.bridge.import_paths import place_of


class GameError(EvertError, ValueError):
    """A module that should be a game has no ``GAME``, a wrong one, or cannot be imported."""


class EnvArgumentError(EvertError, ValueError):
    """An argument of an environment, or of its ``reset``, has no such value or name."""


@dataclass(frozen=True)
class Metric:
    """A number that a game's agent notes of an episode (``client.metric``), and how it is shown.

    Attributes:
        title: Of its figures in a report, "Bits a question".
        unit: Of its figures.
        drawn: Episodes that a report has a figure of: "train", "test" for held-out ones, or both.
        tabled: Whether an evaluation's table and CSV have its mean over the episodes.
        about: A sentence for the report, where the title does not say it all.
    """

    title: str
    unit: str
    drawn: Sequence[Literal["train", "test"]] = ("train",)
    tabled: bool = True
    about: str = ""


@dataclass(frozen=True)
class Game:
    """A game: who plays it, with which tasks, and how a model is trained on it. Data, no code.

    Attributes:
        id: Gymnasium's id, '[namespace/]Name-v0'.
        agent: Import path of the agent, 'package.module:function'.
        train_tasks: Import path of the tasks to train on.
        test_tasks: Import path of the held-out tasks; "" for none.
        recipe: Defaults of a training run that fit the shipped bases, by the names that ``evert
            train --help`` lists.
        full_size: What of the recipe is otherwise for a model that is none of the shipped bases.
        players: Players without a model, by name: import paths of functions from a seed to an
            agent.
        opponents: Players without a model for the seats of a game that has some, by name: import
            paths of functions from a seed to a function from the messages to the reply's text.
        searching: Agents that have a twin with a search tool: import path -> the twin's.
        metrics: How it was played, by name; what an evaluation's table and a report have of it.
    """

    id: str
    agent: str
    train_tasks: str
    test_tasks: str = ""
    recipe: Mapping[str, Any] = field(default_factory=dict)
    full_size: Mapping[str, Any] = field(default_factory=dict)
    players: Mapping[str, str] = field(default_factory=dict)
    opponents: Mapping[str, str] = field(default_factory=dict)
    searching: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, Metric] = field(default_factory=dict)

    def settings(self, *, full_size: bool = False) -> dict[str, Any]:
        """The settings of a training run: agent, tasks and recipe.

        Args:
            full_size: Whether the model is none of the shipped bases.
        """
        paths = {name: getattr(self, name) for name in ("agent", "train_tasks", "test_tasks")}
        return {**paths, **self.recipe, **(self.full_size if full_size else {})}


@cache
def games() -> Mapping[str, Game]:
    """The games that stand in this folder, by the names of their files; and their variants."""
    found = dict[str, Game]()
    for entry in sorted(pkgutil.iter_modules([str(Path(__file__).parent)])):
        module = importlib.import_module(f"{__package__}.{entry.name}")
        if not hasattr(module, "GAME"):
            continue
        own = {entry.name: game_of(module), **getattr(module, "VARIANTS", {})}
        for name, game in own.items():
            twin = next((other for other in found if found[other].id == game.id), None)
            if twin is not None:
                raise GameError(
                    f"The games {twin} and {name} have one id, {game.id!r}. Give one of them "
                    "another name, or the next version."
                )
            found[name] = game
    return MappingProxyType(found)


def metrics_of(game: Game | None = None) -> dict[str, Metric]:
    """The metrics of the games of this folder, and of another one."""
    told = [*games().values(), *([game] if game else [])]
    return {name: metric for each in told for name, metric in each.metrics.items()}


def find_game(name: str) -> Game | None:
    """The game of a name: one of ``games``, or that of a user's module ('package.module').

    A hyphen is as good as an underscore, and capitals do not matter in evert's own. None: there is
    neither such a game nor such a module.
    """
    name = name.replace("-", "_")
    if own := games().get(name.lower()):
        return own
    module = imported(name)
    return game_of(module) if module else None


def imported(name: str) -> ModuleType | None:
    """A user's module ('package.module'); None: there is none of that name.

    Raises:
        GameError: It cannot be imported.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return None
        raise GameError(_unimportable(name, error)) from error
    except GameError:
        raise
    except Exception as error:
        raise GameError(_unimportable(name, error)) from error


def game_of(module: ModuleType) -> Game:
    """The ``GAME`` of a module."""
    game = getattr(module, "GAME", None)
    if not isinstance(game, Game):
        given = "it has no GAME" if game is None else f"its GAME is a {type(game).__name__}"
        if hasattr(module, "taskset"):
            given += f", but a function taskset: tasks={module.__name__}:NAME"
        raise GameError(
            f"The module {module.__name__} ({getattr(module, '__file__', None)}) is no game: "
            f"{given}; expected GAME = evert.Game(id, agent, train_tasks, ...) in it."
        )
    return game


def literals(given: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments beside an ``id``; texts are read as Python's literals where they are some."""
    return {key: _literal(value) for key, value in given.items() if key != "id"}


def _literal(value: Any) -> Any:
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        return value


def _unimportable(name: str, error: Exception) -> str:
    said = f"{type(error).__name__}: {error}{place_of(error)}"
    return f"The module {name} cannot be imported: {said}. Fix the module."
