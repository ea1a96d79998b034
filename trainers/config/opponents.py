"""Look up opponents by name, for ``test_opponent=`` in training and ``opponent=`` in evaluation.

An opponent is either built into the game (``random``, ``perfect``) or a model.
"""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from evert.bridge.import_paths import resolve
from evert.envs.games import GameError, find_game
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.frozen_models import read_model
from evert.trainers.config.model_names import ModelRef
from evert.trainers.config.train import TrainSettings

if TYPE_CHECKING:
    from evert.bridge.groups.opponents import Against
    from evert.bridge.models.frozen import FrozenModel
    from evert.bridge.models.tinker_model import TinkerModel


def held_out_opponent(settings: TrainSettings) -> str | ModelRef | None:
    """Look up the opponent for held-out tasks.

    Raises an error if the settings ask for opponents, but the agent has no seats.
    """
    if (settings.league or settings.test_opponent) and not settings.seats:
        raise RecipeError(
            f"league={settings.league:g} and test_opponent={settings.test_opponent} require an "
            "agent with at least two seats, but seats= is empty. Pass seats=x,o, for example."
        )
    return read_opponent("test_opponent", settings.env, settings.test_opponent)


def read_opponent(setting: str, env: str, name: str) -> str | ModelRef | None:
    """Look up an opponent by name.

    If the opponent is built into the game, return its import path; otherwise, return a model. If
    the name is empty, return None, because the policy plays all seats.
    """
    game = find_game(env) if env and name else None
    path = game.opponents.get(name) if game else None
    return path or (read_model(setting, name, {}) if name else None)


def open_opponent(
    opponent: str | ModelRef | None, max_tokens: int | None = None, base_url: str | None = None
) -> "Against | None":
    """Load an opponent returned by ``read_opponent``. It plays all seats except the policy's."""
    from evert.bridge.groups.opponents import Against
    from evert.bridge.models.tinker_model import TinkerModel

    if opponent is None:
        return None
    if isinstance(opponent, str):
        return Against(resolve(opponent, "opponent", GameError))
    model = opponent.open(base_url)
    if isinstance(model, TinkerModel):
        return Against(partial(_with_seed, replace(model, max_tokens=max_tokens)))
    return Against(partial(_same_model, model))


def _same_model(model: "FrozenModel", seed: int) -> "FrozenModel":
    return model


def _with_seed(model: "TinkerModel", seed: int) -> "TinkerModel":
    return replace(model, seed=seed % 2**31)
