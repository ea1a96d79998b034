"""The plan of an evaluation, or of one episode: the objects that its settings name, made once.

``prepare`` loads the tasks last and imports nothing else that is slow, so typos are reported at
once.
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
    """Who plays which tasks.

    Attributes:
        settings: The settings of the episodes.
        players: The model of each named player; None: a player without a model.
        frozen: The frozen models by the names that the agent calls.
        opponent: Who plays the other seats: import path of the game's own opponent, or a model.
            None: the model that is evaluated.
        tasks: The tasks to play, by split; at least one split has a task.
    """

    settings: PlayingSettings
    players: Mapping[str, ModelRef | None]
    frozen: "Mapping[str, ModelRef | FrozenModel]"
    opponent: str | ModelRef | None
    tasks: Mapping[str, Sequence[Any]]

    @cached_property
    def run(self) -> TrainSettings:
        """The run that would train evert's default base on these tasks."""
        return self.settings.run_of("")

    @property
    def models(self) -> "Mapping[str, ModelRef | FrozenModel]":
        """The frozen models, and an opponent that is a model."""
        opponent = {"opponent": self.opponent} if isinstance(self.opponent, ModelRef) else {}
        return {**opponent, **self.frozen}

    @cached_property
    def fingerprint(self) -> list[Any]:
        """Everything that determines the replies of the frozen models and of the opponent."""
        settings, name = self.settings, self.settings.opponent
        texts = {"opponent": name} if isinstance(self.opponent, ModelRef) else {}
        parts = fingerprint({**settings.frozen, **texts}, self.models)
        return [parts, name] if name else [parts]


def prepare(settings: PlayingSettings, names: Sequence[str]) -> PlayingPlan:
    """Make the plan of the named players; raise errors now that would stop them later."""
    players = {name: _model(name, settings) for name in names}
    settings.paths_by_split()
    objects = named_objects(settings)
    frozen = read_models(settings.frozen)  # the agent's module may have registered their renderers
    opponent = read_opponent("opponent", settings.env, settings.opponent)
    return PlayingPlan(settings, players, frozen, opponent, settings.tasks_by_split(objects))


def _model(name: str, settings: PlayingSettings) -> ModelRef | None:
    players = settings.players
    check_player(name, settings.name, players)
    return None if name in players else check_model(name, settings.renderer_name, players)
