"""Defines what a game is and finds games. A game is a module or package that defines ``GAME``.

    GAME = Game(
        "my/Parity-v0",                         the id for gymnasium.make
        agent="my_game:parity_agent",
        train_tasks="my_game:TRAIN_TASKS",
        test_tasks="my_game:TEST_TASKS",
        recipe={"steps": 30, "max_tokens": 8},  defaults of evert train env=my_game
    )

``games`` searches this folder, so a new game doesn't have to be registered anywhere. ``find_game``
also finds users' own games, in a package or in a file in the current folder. A module in this
folder can define variants of its game in ``VARIANTS``, which maps names to games.
"""

import ast
import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Literal, TypeVar

from evert.bridge.errors import EvertError
from evert.bridge.import_paths import place_of

T = TypeVar("T")


class GameError(EvertError, ValueError):
    """A game's module or a taskset cannot be imported, or does not define a playable game."""


class EnvArgumentError(EvertError, ValueError):
    """An argument of an environment or its ``reset`` is unknown or has an invalid value."""


@dataclass(frozen=True)
class Metric:
    """How to display a metric that an agent records for each episode (``client.metric``).

    Attributes:
        title: Title of the metric's plots on a run's page, such as "Bits per question".
        unit: Unit shown in the plots.
        drawn: Which episodes to plot: "train", "test" (held-out), or both.
        tabled: Whether evaluation tables and CSV files include the mean over episodes.
        about: A sentence that explains the metric, if the title isn't clear enough.
    """

    title: str
    unit: str
    drawn: Sequence[Literal["train", "test"]] = ("train",)
    tabled: bool = True
    about: str = ""


@dataclass(frozen=True)
class Game:
    """A game: its agent, tasks and training recipe.

    Attributes:
        id: Gymnasium id, '[namespace/]Name-v0'.
        agent: Import path of the agent, 'package.module:function'.
        train_tasks: Import path of the training tasks.
        test_tasks: Import path of the held-out tasks, or "".
        recipe: Default settings for runs with a bundled base model (see ``evert train --help``).
        full_size: Overrides of the recipe for all other models.
        players: Scripted players. Maps names to import paths of functions that take a seed and
            return an agent.
        opponents: Scripted opponents that can take a seat. Maps names to import paths of functions
            that take a seed and return a function from messages to the text of a reply.
        searching: Maps an agent's import path to the import path of the same agent with a search
            tool.
        metrics: Metrics that the agent records, by name, for evaluation tables and reports.
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
        """Return the settings for a training run: agent, tasks and recipe.

        Args:
            full_size: Whether to apply the ``full_size`` overrides. Set it for all models except
                the bundled base models.
        """
        paths = {name: getattr(self, name) for name in ("agent", "train_tasks", "test_tasks")}
        return {**paths, **self.recipe, **(self.full_size if full_size else {})}


@cache
def games() -> Mapping[str, Game]:
    """Return all games in this folder and their variants, by name."""
    by_name = dict[str, Game]()
    for entry in sorted(pkgutil.iter_modules([str(Path(__file__).parent)])):
        module = importlib.import_module(f"{__package__}.{entry.name}")
        if not hasattr(module, "GAME"):
            continue
        variants = {entry.name: game_of(module), **getattr(module, "VARIANTS", {})}
        for name, game in variants.items():
            twin = next((earlier for earlier in by_name if by_name[earlier].id == game.id), None)
            if twin is not None:
                raise GameError(
                    f"The games {twin} and {name} have the same id, {game.id!r}. Rename one of "
                    "them, or increase its version."
                )
            by_name[name] = game
    return MappingProxyType(by_name)


def metrics_of(game: Game | None = None) -> dict[str, Metric]:
    """Return the metrics of all games in this folder and of ``game``, by name."""
    all_games = [*games().values(), *([game] if game else [])]
    return {name: metric for entry in all_games for name, metric in entry.metrics.items()}


def find_game(name: str) -> Game | None:
    """Find one of evert's games, or the game in a user's module ('package.module'), by name.

    Hyphens are treated as underscores, and case is ignored for evert's games. Returns None if there
    is no such game.
    """
    name = name.replace("-", "_")
    if game := games().get(name.lower()):
        return game
    module = import_user_module(name)
    return game_of(module) if module else None


def import_user_module(name: str) -> ModuleType | None:
    """Import a user's module ('package.module'), or return None if it does not exist.

    Raises:
        GameError: The module cannot be imported.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        return importlib.import_module(name)
    except GameError:
        raise
    except Exception as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{name}.".startswith(f"{missing}."):
            return None
        cause = f"{type(error).__name__}: {error}{place_of(error)}"
        raise GameError(f"The module {name} could not be imported: {cause}. Fix it.") from error


def game_of(module: ModuleType) -> Game:
    """Return a module's ``GAME``.

    Raises:
        GameError: The module does not define ``GAME``, or it is not a ``Game``.
    """
    game = getattr(module, "GAME", None)
    if not isinstance(game, Game):
        problem = "it has no GAME" if game is None else f"its GAME is a {type(game).__name__}"
        if hasattr(module, "taskset"):
            problem += f", but it has a taskset function: use tasks={module.__name__}:NAME"
        raise GameError(
            f"The module {module.__name__} ({getattr(module, '__file__', None)}) is not a game: "
            f"{problem}; expected it to define GAME = evert.Game(id, agent, train_tasks, ...)."
        )
    return game


class MadeTasks(Sequence[T]):
    """A sequence of ``size`` tasks that are created from their index when accessed."""

    def __init__(self, size: int, make: Callable[[int], T]) -> None:
        self._places, self._make = range(size), make

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: Any) -> Any:
        """Return the task at an index, or a list of tasks for a slice."""
        if isinstance(index, slice):
            return [self._make(place) for place in self._places[index]]
        return self._make(self._places[index])


def literals(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments without ``id``, evaluating strings that are Python literals."""
    return {key: _literal(value) for key, value in arguments.items() if key != "id"}


def _literal(value: Any) -> Any:
    try:
        return ast.literal_eval(value) if isinstance(value, str) else value
    except (ValueError, SyntaxError):
        return value
