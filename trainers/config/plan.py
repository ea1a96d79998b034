"""The objects that an evaluation or an episode needs, created from its settings.

``prepare`` loads the tasks last and avoids other slow imports, so that typos are reported
immediately.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from evert.trainers.config.early_checks import named_objects
from evert.trainers.config.evaluate import PlayingSettings
from evert.trainers.config.frozen_models import fingerprint, read_models
from evert.trainers.config.model_names import ModelRef, check_model, check_player
from evert.trainers.config.opponents import read_opponent
from evert.trainers.config.train import TrainSettings

if TYPE_CHECKING:
    from evert.bridge.models.frozen import FrozenModel


@dataclass(frozen=True)
class PlayingPlan:
    """Which players play which tasks.

    Attributes:
        settings: The episode settings.
        players: The model for each player; None for the game's scripted players.
        frozen: Frozen models, keyed by the name that the agent calls.
        opponent: The opponent in the other seats: an import path or a model. None if the
            evaluated model plays all seats.
        tasks: The tasks to play, by split. There is at least one task.
    """

    settings: PlayingSettings
    players: Mapping[str, ModelRef | None]
    frozen: "Mapping[str, ModelRef | FrozenModel]"
    opponent: str | ModelRef | None
    tasks: Mapping[str, Sequence[Any]]

    @cached_property
    def run(self) -> TrainSettings:
        """Settings of a run that would train evert's default base model on these tasks."""
        return self.settings.run_of("")

    @property
    def models(self) -> "Mapping[str, ModelRef | FrozenModel]":
        """The frozen models, and the opponent if it is a model."""
        opponent = {"opponent": self.opponent} if isinstance(self.opponent, ModelRef) else {}
        return {**opponent, **self.frozen}

    @cached_property
    def fingerprint(self) -> list[Any]:
        """Everything that affects the replies of the frozen models and the opponent."""
        settings, name = self.settings, self.settings.opponent
        texts = {"opponent": name} if isinstance(self.opponent, ModelRef) else {}
        parts = fingerprint({**settings.frozen, **texts}, self.models)
        return [parts, name] if name else [parts]


def prepare(settings: PlayingSettings, names: Sequence[str]) -> PlayingPlan:
    """Create the plan for these players, so that errors are raised early."""
    players = {name: _model(name, settings) for name in names}
    settings.paths_by_split()
    objects = named_objects(settings)
    frozen = read_models(settings.frozen)  # importing the agent may have registered renderers
    opponent = read_opponent("opponent", settings.env, settings.opponent)
    return PlayingPlan(settings, players, frozen, opponent, settings.tasks_by_split(objects))


def _model(name: str, settings: PlayingSettings) -> ModelRef | None:
    players = settings.players
    check_player(name, settings.name, players)
    return None if name in players else check_model(name, settings.renderer_name, players)
