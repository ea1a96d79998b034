"""Opponents by name: ``test_opponent=`` of a run, ``opponent=`` of an evaluation.

A name stands for one of the game's own opponents (``random``, ``perfect``), or for a model.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from evert.bridge.import_paths import resolve
from evert.envs.games import GameError, find_game
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.frozen_models import make_model, read_model
from evert.trainers.config.train import TrainSettings

if TYPE_CHECKING:
    from evert.bridge.groups.opponents import Against
    from evert.bridge.models.frozen import FrozenModel
    from evert.bridge.models.tinker_model import TinkerModel


def check_opponents(settings: TrainSettings) -> None:
    """Refuse opponents for an agent without seats, and the name of an unknown opponent."""
    if (settings.league or settings.test_opponent) and not settings.seats:
        raise RecipeError(
            f"league={settings.league:g} and test_opponent={settings.test_opponent} with the seats "
            "(none): opponents need an agent with at least two seats (seats=x,o)."
        )
    check_opponent("test_opponent", settings.env, settings.test_opponent)


def check_opponent(setting: str, env: str, name: str) -> None:
    """Refuse the name of an unknown opponent; ``setting`` names it."""
    if name and not own_opponent(env, name):
        read_model(setting, name, {})


def own_opponent(env: str, name: str) -> str | None:
    """Import path of a game's own opponent; None: the game has none of that name."""
    game = find_game(env) if env else None
    return game.opponents.get(name) if game else None


def opponent(
    env: str, name: str, max_tokens: int | None = None, base_url: str | None = None
) -> "Against | None":
    """The named opponent, which plays every seat but one; None for an empty name."""
    from evert.bridge.groups.opponents import Against
    from evert.bridge.models.tinker_model import TinkerModel

    if not name:
        return None
    path = own_opponent(env, name)
    if path is not None:
        return Against(resolve(path, "opponent", GameError))
    model = make_model(*read_model("opponent", name, {}), base_url)
    if isinstance(model, TinkerModel):
        return Against(partial(_with_seed, replace(model, max_tokens=max_tokens)))
    return Against(partial(_same_model, model))


def _same_model(model: "FrozenModel", seed: int) -> "FrozenModel":
    return model


def _with_seed(model: "TinkerModel", seed: int) -> "TinkerModel":
    return replace(model, seed=seed % 2**31)
