"""A run's settings as the Cookbook's ``rl.train.Config``, and what else of it can be set.

``chz`` builds the Config from paths (``async_config.groups_per_batch``) and values: evert's first,
then what was given as ``cookbook.PATH=value``. Which fields there are is read off the installed
Cookbook. Those that evert fills in from a setting of its own are refused with that setting's name.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz

from evert.bridge.records.files import ROLLOUTS
from evert.trainers.config.arguments import (
    UsageError,
    fields_of,
    help_line,
    in_words,
    read_settings,
)
from evert.trainers.config.episode import EpisodeSettings, env_options
from evert.trainers.config.frozen_models import frozen_models
from evert.trainers.config.opponents import held_out_opponent, league
from evert.trainers.config.train import (
    MAPPINGS,
    RecipeError,
    TrainSettings,
    is_missing,
    renderer_of,
)
from evert.trainers.system.files import SAMPLER, slug

if TYPE_CHECKING:
    from tinker_cookbook.checkpoint_utils import CheckpointRecord
    from tinker_cookbook.rl.train import Config

PREFIX = "cookbook."
ENV_OPTIONS = "dataset_builder.env_options"
RENAMED = {
    "max_steps": "steps",
    "kl_penalty_coef": "kl_penalty",
    "dataset_builder": "agent",
    "dataset_builder.epochs": "steps",
}
"""Path in the Config -> the setting that it is filled in from, where their names differ."""


def cookbook_config(
    settings: TrainSettings,
    folder: Path,
    *,
    embedded: bool,
    warm: "CheckpointRecord | None" = None,
    context_length: int | None = None,
) -> "Config":
    """The settings as ``tinker_cookbook.rl.train.main`` takes them; ``warm``: RL starts from it.

    Embedded, a checkpoint costs nothing but disk: each step saves one, and none expires.
    """
    from tinker_cookbook.rl.train import Config

    own = own_settings()
    for path in settings.cookbook:
        if found := _owner(path, own):
            raise UsageError(f"cookbook.{path} is set by evert's own {found}=; give that.")
    if warm and "load_checkpoint_path" in settings.cookbook:
        raise RecipeError(
            "Got both cookbook.load_checkpoint_path and warm_up_steps; RL starts from one of them. "
            "Leave one out."
        )
    inside = chz.chz_fields(EpisodeSettings).keys() | MAPPINGS.keys()
    values = {path: getattr(settings, name) for path, name in own.items() if name not in inside}
    values |= _dataset(settings, folder, context_length) | saving(embedded, 1)
    values |= {
        "dataset_builder.record": str(folder / ROLLOUTS) if settings.record else None,
        "recipe_name": f"evert_{slug(settings.name)}",
        "log_path": str(folder),
        "renderer_name": renderer_of(settings),
        "num_groups_to_log": 1,
    }
    if warm:
        values["load_checkpoint_path"] = warm.state_path
    if settings.kl_penalty:
        values["kl_reference_config.base_model"] = settings.model_name
        values["kl_reference_config.load_checkpoint_path"] = warm and warm.sampler_path
    return read_settings(
        Config, settings.cookbook, {"evert": values}, lambda path: own.get(path, PREFIX + path)
    )


def _owner(path: str, own: Mapping[str, str]) -> str | None:
    """The evert setting that fills in a path of the Cookbook's, or what holds it."""
    for whole, name in own.items():
        if path == whole:
            return name
        if name in MAPPINGS and path.startswith(f"{whole}."):
            return name + path.removeprefix(whole)
    return None


def own_settings() -> dict[str, str]:
    """Path in the Config -> the setting of evert's own that it is filled in from."""
    from tinker_cookbook.rl.train import Config

    from evert.bridge.env.options import EnvOptions
    from evert.bridge.groups.dataset import AgentDatasetBuilder

    own, theirs = chz.chz_fields(TrainSettings), chz.chz_fields(Config)
    inside = {
        "": theirs,
        "dataset_builder.": chz.chz_fields(AgentDatasetBuilder).keys() - {"tags"},  # not W&B's
        f"{ENV_OPTIONS}.": EnvOptions.__annotations__.keys() - theirs.keys(),
    }
    same = {f"{where}{name}": name for where, names in inside.items() for name in names}
    return {path: name for path, name in same.items() if name in own} | RENAMED


def _dataset(settings: TrainSettings, folder: Path, context_length: int | None) -> dict[str, Any]:
    from evert.bridge.groups.dataset import AgentDatasetBuilder, load_tasks

    tasks = len(load_tasks(settings.train_tasks))
    batches_per_epoch = max(1, math.ceil(tasks / settings.batch_size))
    options = env_options(settings, frozen_models(settings.models, settings.base_url))
    if context := context_length or settings.context_length:
        options["context_length"] = context
    return {
        "dataset_builder.limits": options.pop("limits", None),
        "dataset_builder.seats": settings.seats,
        ENV_OPTIONS: options,
        "dataset_builder": AgentDatasetBuilder,
        "dataset_builder.epochs": math.ceil(settings.steps / batches_per_epoch),
        "dataset_builder.renderer_name": renderer_of(settings),
        "dataset_builder.sampler_log": str(folder / SAMPLER),
        "dataset_builder.opponents": league(settings, folder),
        "dataset_builder.test_opponents": held_out_opponent(settings),
        "dataset_builder.test_tasks": (
            None if is_missing(settings.test_tasks) else settings.test_tasks
        ),
    }


def saving(embedded: bool, every: int) -> dict[str, Any]:
    """When a run is saved beside ``save_every``, and how long a service keeps that: a week."""
    return {
        "rolling_save_every": every if embedded else 0,
        "ttl_seconds": None if embedded else 7 * 24 * 3600,
    }


def cookbook_help() -> str:
    """The fields of the Config that can be set, a line each: path, default, what it takes."""
    from tinker_cookbook.rl.train import Config

    from evert.bridge.groups.dataset import AgentDatasetBuilder

    lines = _lines(fields_of(Config), "")
    return "\n".join([*lines, *_lines(fields_of(AgentDatasetBuilder), "dataset_builder.")])


def _lines(fields: Mapping[str, Any], parent: str) -> list[str]:
    own = own_settings()
    lines: list[str] = []
    for name, field in fields.items():
        path = parent + name
        if path not in own and path != ENV_OPTIONS:
            lines.append(help_line(PREFIX + path, field._default, in_words(field.x_type)))
            lines += _lines(fields_of(field.x_type), f"{path}.")
    return lines
