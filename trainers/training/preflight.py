"""Resolve a run's settings once, and catch errors before the run starts."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING

import chz

from evert.bridge.records.row_files import names_file
from evert.trainers.config.backend import EngineChoice, check_engine, choose_engine
from evert.trainers.config.early_checks import FILES, PATHS, named_objects
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.frozen_models import check_episodes, open_models, read_models
from evert.trainers.config.model_names import check_model, check_weights, split_step
from evert.trainers.config.opponents import held_out_opponent
from evert.trainers.config.recipes import path_of
from evert.trainers.config.train import TrainSettings, is_missing, renderer_of
from evert.trainers.rundir.folder import recorded_settings
from evert.trainers.training.workers import check_workers

if TYPE_CHECKING:
    from evert.bridge.models.frozen import FrozenModel
    from evert.trainers.training.cookbook import Draft


@dataclass(frozen=True)
class PreparedRun:
    """A run that is ready to start. All objects in its settings have been created."""

    settings: TrainSettings
    """Agent, tasks, sampler and demonstrations are already loaded, and wrapped in ``Kept``."""
    engine: EngineChoice
    models: "Mapping[str, FrozenModel]"
    draft: "Draft"
    warnings: list[str]
    """Warnings about likely mistakes, or about settings that prevent learning."""


def prepare(settings: TrainSettings) -> PreparedRun:
    """Create all objects that a run needs, so that errors are raised early."""
    _check_known(settings)
    _check_no_run(settings)
    objects = named_objects(settings)
    engine = choose_engine(settings)
    _check_model(settings, engine)
    refs, opponent = read_models(settings.models), held_out_opponent(settings)
    check_workers(settings)

    from evert.bridge.groups.curriculum import make_sampler
    from evert.bridge.groups.kept import Kept
    from evert.bridge.groups.tasks import load_tasks
    from evert.trainers.training.cookbook import draft
    from evert.trainers.training.first_steps import slips
    from evert.trainers.training.tracking import check_tracking
    from evert.trainers.training.warm_up import load_demonstrations

    _check_loss(settings)
    check_tracking(settings)
    check_engine(settings, engine)
    _check_renderer(settings)
    for name in ("train_tasks", "test_tasks"):
        if objects[name] is None and not is_missing(path := getattr(settings, name)):
            objects[name] = load_tasks(path)
    if settings.warm_up_steps:
        rows = objects["demonstrations"] or settings.demonstrations
        objects["demonstrations"] = load_demonstrations(rows, settings.warm_up_min_reward)
    objects = {name: value for name, value in objects.items() if value is not None}
    tasks, sizes = objects["train_tasks"], (settings.batch_size, settings.seed)
    if "sampler" in objects:
        objects["sampler"] = make_sampler(objects["sampler"], len(tasks), *sizes)
    models = open_models(refs, settings.base_url)
    if len(tasks):
        check_episodes(settings, models, objects["agent"], tasks[0], embedded=engine.embedded)
    named = {key: Kept(value, path_of(getattr(settings, key))) for key, value in objects.items()}
    loaded = chz.replace(settings, **named)
    drafted = draft(loaded, models, opponent, len(tasks), embedded=engine.embedded)
    drafted.config(Path(settings.log_path or "."))  # raises if a value is invalid
    listed = {key: value for key, value in objects.items() if PATHS[key][0] == "tasks"}
    return PreparedRun(loaded, engine, models, drafted, slips(settings, listed))


def _check_known(settings: TrainSettings) -> None:
    """Raise an error if a setting has only an object's name instead of the object or its path."""
    values = {name: getattr(settings, name) for name in PATHS}
    lost = [
        f"the {n} {v!r}"
        for n, v in values.items()
        if isinstance(v, str) and v and ":" not in v and not (n in FILES and names_file(v))
    ]
    if lost:
        raise RecipeError(
            f"There is no import path in {' or '.join(lost)}; expected 'package.module:name', or "
            "for tasks and demonstrations an existing file or folder. If you started this run from "
            "Python with functions or lists, pass them to evert.train again, together with "
            f"log_path={settings.log_path!r}."
        )


def _check_no_run(settings: TrainSettings) -> None:
    folder, _ = split_step(settings.model_name)  # runs/NAME@STEP is also a run
    if recorded_settings(folder, TrainSettings):
        raise RecipeError(
            f"model_name={settings.model_name} is a run; expected a model. To continue training "
            f"this run, use evert train log_path={folder} steps=N."
        )


def _check_model(settings: TrainSettings, engine: EngineChoice) -> None:
    if not engine.embedded:
        renderer_of(settings)  # raises if there is no renderer; a service's models can't be checked
        return
    model = check_model(settings.model_name, settings.renderer_name)
    check_weights(model, f"model_name={settings.model_name}", "trained")


def _check_loss(settings: TrainSettings) -> None:
    """Raise an error if a loss needs data that the installed Cookbook does not provide."""
    if settings.loss_fn != "stable_reinforce":
        return
    from tinker_cookbook.rl.data_processing import trajectory_to_data

    if "include_provenance" not in signature(trajectory_to_data).parameters:
        raise RecipeError(
            "loss_fn=stable_reinforce needs to know which tokens were sampled, but tinker-cookbook "
            f"{version('tinker-cookbook')} does not record that; expected 0.6 or later. Upgrade, "
            "or use loss_fn=importance_sampling, which has the same gradient when on-policy."
        )


def _check_renderer(settings: TrainSettings) -> None:
    from evert.bridge.tokens.bases import model_renderer
    from evert.bridge.tokens.pretrained import trusting_code

    is_chosen = settings.renderer_name or settings.chat_template
    if is_chosen or Path(settings.model_name).expanduser().is_dir():
        with trusting_code(settings.trust_remote_code):
            model_renderer(settings.model_name, renderer_of(settings))
