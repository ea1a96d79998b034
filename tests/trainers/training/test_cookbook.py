"""A run's settings converted to the Cookbook's ``rl.train.Config``."""

from operator import attrgetter
from pathlib import Path
from typing import Any

import chz
import pytest
from tinker_cookbook.checkpoint_utils import CheckpointRecord
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.train import AsyncConfig, Config

from evert.trainers.commands.train import parse, usage
from evert.trainers.config.arguments import UsageError
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.train import TrainSettings, as_record, read_train_settings
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system.files import BEFORE, RUN
from evert.trainers.training.cookbook import SETTING_OF, cookbook_config, cookbook_help


def config(*arguments: str, warm: CheckpointRecord | None = None) -> Any:
    """Return the Config for a command line of the game identity."""
    settings = parse(["env=identity", *arguments])
    return cookbook_config(settings, Path("run"), embedded=True, warm=warm)


LATE = AsyncConfig(max_steps_off_policy=2, groups_per_batch=4)
CLIPPED = {"clip_low_threshold": 0.9}
RETRY = RetryOnFailure(max_retries=5)


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("temperature", "=0.8", 0.8),
        ("ttl_seconds", "=None", None),
        ("loss_fn_config", ".clip_low_threshold=0.9", CLIPPED),
        ("async_config", ".max_steps_off_policy=2 .groups_per_batch=4", LATE),
        ("rollout_error_tolerance", "=RetryOnFailure .max_retries=5", RETRY),
        ("rollout_error_tolerance", "=True", True),
        ("dataset_builder.shuffle", "=False", False),
    ],
)
def test_a_field_is_set_by_its_dotted_path(name: str, given: str, value: object) -> None:
    made = config("loss_fn=ppo", *(f"cookbook.{name}{each}" for each in given.split()))
    assert attrgetter(name)(made) == value


def test_values_from_python_are_passed_unchanged() -> None:
    cookbook = {"async_config": LATE, "loss_fn_config": CLIPPED}
    settings = read_train_settings({"env": "identity", "cookbook": cookbook}, {})
    made = cookbook_config(settings, Path("run"), embedded=True)
    assert (made.async_config, made.loss_fn_config) == (LATE, CLIPPED)


def test_a_resumed_run_keeps_its_cookbook_fields_and_accepts_more(tmp_path: Path) -> None:
    first = parse(["env=identity", "cookbook.temperature=0.8"])
    assert as_record(first)["cookbook"] == {"temperature": "0.8"}
    folder = RunFolder(tmp_path)
    folder.write_json(RUN, {"settings": as_record(first)})
    folder.write_json(BEFORE, {})
    again = parse([f"log_path={tmp_path}", "cookbook.compute_post_kl=True"])
    made = cookbook_config(again, tmp_path, embedded=True)
    assert (made.temperature, made.compute_post_kl) == (0.8, True)


def test_the_kl_reference_is_the_starting_weights_by_default() -> None:
    assert config("kl_penalty=0.1").kl_reference_config.base_model == "evert-tiny"
    other = "cookbook.kl_reference_config.base_model=Qwen/Qwen3-8B"
    assert config("kl_penalty=0.1", other).kl_reference_config.base_model == "Qwen/Qwen3-8B"
    assert config().kl_reference_config is None


def test_rl_cannot_start_from_two_checkpoints() -> None:
    path = "tinker://run/weights/x"
    assert config(f"cookbook.load_checkpoint_path={path}").load_checkpoint_path == path
    warm = CheckpointRecord("final", state_path=path)
    assert config(warm=warm).load_checkpoint_path == path
    with pytest.raises(RecipeError, match=r"load_checkpoint_path and warm_up_steps"):
        config(f"cookbook.load_checkpoint_path={path}", warm=warm)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("cookbook.learning_rate=1", "cookbook.learning_rate is set by evert's own learning_rate="),
        ("cookbook.max_steps=1", "cookbook.max_steps is set by evert's own steps="),
        ("cookbook.kl_penalty_coef=1", "set by evert's own kl_penalty="),
        ("cookbook.dataset_builder=x", "set by evert's own agent="),
        ("cookbook.dataset_builder.train_tasks=x", "set by evert's own train_tasks="),
        ("cookbook.dataset_builder.env_options.agent_timeout=1", "evert's own agent_timeout="),
        ("cookbook.dataset_builder.limits.max_turns=1", "set by evert's own limits.max_turns="),
        ("cookbook.dataset_builder.env_options.models.judge=x", "set by evert's own models.judge="),
        ("cookbook.dataset_builder.seats=a,b", "set by evert's own seats="),
        ("cookbook.temperature=hot", "cookbook.temperature takes a number, got 'hot'"),
        ("cookbook.temperature=nan", "cookbook.temperature must be a finite number"),
        ("cookbook.temprature=1", "Did you mean 'cookbook.temperature'?"),
        ("cookbook.async_config.groups_per_batch=1", "cookbook.async_config.max_steps_off_policy"),
        ("cookbook.async_config.groups=1", "no setting 'cookbook.async_config.groups'"),
        ("loss_fn=mse", "loss_fn takes importance_sampling or ppo"),
        ("cookbook=1", "cookbook needs a key after a dot, for example cookbook.temperature=0.8; g"),
    ],
)
def test_an_error_names_an_invalid_field_as_it_was_typed(argument: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        config(argument)
    assert said in str(refused.value)


def test_every_field_of_the_config_can_be_set() -> None:
    listed = cookbook_help()
    for name in chz.chz_fields(Config):
        assert (name in SETTING_OF) != (f"cookbook.{name}=" in listed), name
    assert set(SETTING_OF.values()) <= set(chz.chz_fields(TrainSettings))


def test_help_lists_the_fields_with_their_defaults_and_types() -> None:
    shown = " ".join(usage(["cookbook"]).split())
    assert "cookbook.temperature=1.0 a number" in shown
    assert "cookbook.async_config.groups_per_batch= an integer" in shown
    assert "cookbook.dataset_builder.shuffle=True True or False" in shown
    assert "env_options" not in shown
    assert "--help cookbook" in " ".join(usage([]).split())
