"""Convert a run's settings to the ``rl.train.Config`` of the installed Cookbook.

``cookbook.PATH=value`` overrides evert's default for a field. If a field is controlled by one of
evert's own settings, overriding it raises an error that points to that setting.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import chz

from evert.bridge.records.files import ROLLOUTS
from evert.trainers.config import arguments
from evert.trainers.config.arguments import UsageError, fields_of
from evert.trainers.config.episode import EpisodeSettings, env_options
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.frozen_models import frozen_models
from evert.trainers.config.model_names import ModelRef
from evert.trainers.config.opponents import open_opponent, read_opponent
from evert.trainers.config.train import MAPPINGS, TrainSettings, is_missing, renderer_of
from evert.trainers.system.files import SAMPLER, slug

if TYPE_CHECKING:
    from tinker_cookbook.checkpoint_utils import CheckpointRecord
    from tinker_cookbook.rl.train import Config

    from evert.bridge.models.frozen import FrozenModel

PREFIX, DATASET, KL = "cookbook.", "dataset_builder.", "kl_reference_config."
ENV_OPTIONS = f"{DATASET}env_options"
COPIED = {
    "": "model_name base_url lora_rank learning_rate loss_fn num_substeps max_tokens eval_every "
    "save_every wandb_name",
    DATASET: "agent seats train_tasks sampler model_name batch_size group_size "
    "test_group_size seed",
}
"""Settings that are copied to the Config under the same name, keyed by their path in the Config."""
CONVERTED = {
    "": "log_path renderer_name wandb_project",
    DATASET: "test_tasks limits renderer_name record",
    f"{ENV_OPTIONS}.": " ".join({"models", *chz.chz_fields(EpisodeSettings)} - {"seats"}),
}
"""Settings that keep their name but are converted first, keyed by their path in the Config."""
RENAMED = {
    "max_steps": "steps",
    "kl_penalty_coef": "kl_penalty",
    "dataset_builder": "agent",
    f"{DATASET}epochs": "steps",
    f"{DATASET}record_share": "record",
}
"""Settings that have a different name in the Config, keyed by their path in the Config."""


def _paths(names: Mapping[str, str]) -> dict[str, str]:
    return {f"{where}{name}": name for where, words in names.items() for name in words.split()}


SETTING_OF = _paths(COPIED) | _paths(CONVERTED) | RENAMED
"""Maps paths of fields in the Config to the evert settings that control them."""


@dataclass(frozen=True)
class Draft:
    """Values for the Config, except for those that depend on the run's folder and weights."""

    values: Mapping[str, Any]
    overrides: Mapping[str, Any]
    """``cookbook.PATH=value`` settings from the user, which override ``values``."""

    def config(
        self,
        folder: Path,
        warm: "CheckpointRecord | None" = None,
        context_length: int | None = None,
    ) -> "Config":
        """Create the Config. ``warm`` contains the weights from the warm-up, if there was one."""
        from tinker_cookbook.rl.train import Config

        if warm and "load_checkpoint_path" in self.overrides:
            raise RecipeError(
                "Got both cookbook.load_checkpoint_path and warm_up_steps, but RL can only start "
                "from one of them. Remove one of the settings."
            )
        values = {**self.values, "log_path": str(folder)}
        values[f"{DATASET}sampler_log"] = str(folder / SAMPLER)
        values[f"{DATASET}record"] = str(folder / ROLLOUTS) if values[f"{DATASET}record"] else None
        if past := values[f"{DATASET}opponents"]:
            values[f"{DATASET}opponents"] = replace(past, log_path=str(folder))
        if context_length:
            values[ENV_OPTIONS] = {**values[ENV_OPTIONS], "context_length": context_length}
        if warm:
            values["load_checkpoint_path"] = warm.state_path
        if warm and f"{KL}base_model" in values:
            values[f"{KL}load_checkpoint_path"] = warm.sampler_path
        return arguments.read_settings(
            Config, self.overrides, values, lambda path: SETTING_OF.get(path, PREFIX + path)
        )


def draft(
    settings: TrainSettings,
    models: "Mapping[str, FrozenModel]",
    opponent: str | ModelRef | None,
    tasks: int,
    *,
    embedded: bool,
) -> Draft:
    """Return the draft of a run's Config; ``tasks`` is the number of training tasks.

    With the embedded engine, we save a checkpoint after every step, and checkpoints never expire,
    since they only take up disk space.
    """
    from evert.bridge.groups.dataset import AgentDatasetBuilder
    from evert.bridge.groups.opponents import League

    renderer = renderer_of(settings)
    for path in settings.cookbook:
        if owner := _owner(path):
            raise UsageError(f"cookbook.{path} is set by evert's own {owner}=. Use that instead.")
    options: dict[str, Any] = {**env_options(settings, models)}
    dataset = {
        "": AgentDatasetBuilder,
        ".limits": options.pop("limits", None),
        ".env_options": options,
        ".epochs": math.ceil(settings.steps / max(1, math.ceil(tasks / settings.batch_size))),
        ".record": settings.record,
        ".record_share": float(settings.record),
        ".renderer_name": renderer,
        ".opponents": League("", settings.league, settings.max_tokens, renderer)
        if settings.league
        else None,
        ".test_opponents": open_opponent(opponent, settings.max_tokens, settings.base_url),
        ".test_tasks": None if is_missing(settings.test_tasks) else settings.test_tasks,
    }
    values = {path: getattr(settings, name) for path, name in _paths(COPIED).items()}
    values |= {f"dataset_builder{path}": value for path, value in dataset.items()}
    values |= saving_options(embedded, 1) | {
        "max_steps": settings.steps,
        "kl_penalty_coef": settings.kl_penalty,
        "recipe_name": f"evert_{slug(settings.name)}",
        "renderer_name": renderer,
        "num_groups_to_log": 1,
    }
    if settings.kl_penalty:
        values |= {f"{KL}base_model": settings.model_name, f"{KL}load_checkpoint_path": None}
    return Draft(values, settings.cookbook)


def cookbook_config(
    settings: TrainSettings,
    folder: Path,
    *,
    embedded: bool,
    warm: "CheckpointRecord | None" = None,
    context_length: int | None = None,
) -> "Config":
    """Create the Config of a run directly from its settings."""
    from evert.bridge.groups.tasks import load_tasks

    models = frozen_models(settings.models, settings.base_url)
    opponent = read_opponent("test_opponent", settings.env, settings.test_opponent)
    tasks = load_tasks(settings.train_tasks)
    drafted = draft(settings, models, opponent, len(tasks), embedded=embedded)
    return drafted.config(folder, warm, context_length)


def _owner(path: str) -> str | None:
    for field_path, name in SETTING_OF.items():
        if path == field_path:
            return name
        if name in MAPPINGS and path.startswith(f"{field_path}."):
            return name + path.removeprefix(field_path)
    return None


def saving_options(embedded: bool, every: int) -> dict[str, Any]:
    """Return options for saving checkpoints. On a service, checkpoints expire after a week."""
    return {
        "rolling_save_every": every if embedded else 0,
        "ttl_seconds": None if embedded else 7 * 24 * 3600,
    }


def cookbook_help() -> str:
    """List the fields of the Config that users can set, each with its path, default and type."""
    from tinker_cookbook.rl.train import Config

    from evert.bridge.groups.dataset import AgentDatasetBuilder

    lines = _lines(fields_of(Config), "")
    return "\n".join([*lines, *_lines(fields_of(AgentDatasetBuilder), "dataset_builder.")])


def _lines(fields: Mapping[str, Any], parent: str) -> list[str]:
    lines: list[str] = []
    for name, field in fields.items():
        path = parent + name
        if path not in SETTING_OF and path != ENV_OPTIONS:
            takes = arguments.in_words(field.x_type)
            lines.append(arguments.help_line(PREFIX + path, field._default, takes))
            lines += _lines(fields_of(field.x_type), f"{path}.")
    return lines
