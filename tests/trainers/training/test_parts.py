"""Parts of the training command, without any training."""

import io
import json
import math
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import chz
import pytest
import tinker
import torch
from rich.console import Console
from tests.kit import Patch, Shown
from tinker_cookbook.rl import data_processing
from tinker_cookbook.utils import ml_log

from evert.bridge.tokens.bases import BASE_MODEL
from evert.envs.games import games
from evert.trainers.commands.train import parse
from evert.trainers.config.arguments import UsageError
from evert.trainers.config.backend import (
    EngineChoice,
    choose_engine,
    running_engine,
    say,
    threads_of,
)
from evert.trainers.config.fields import RecipeError
from evert.trainers.config.train import TrainSettings, as_record, differences
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import FAILED, HELD_OUT_REWARD, TRAIN_REWARD
from evert.trainers.system import files
from evert.trainers.system.files import BATCHES, BEFORE, METRICS, RUN, RunFolderError, slug
from evert.trainers.training.preflight import prepare as check_settings
from evert.trainers.training.progress import display, logging_to
from evert.trainers.training.redaction import redacting
from evert.trainers.training.resuming import open_run
from evert.trainers.training.tracking import follow

OWN = {"agent": "my.module:my_agent", "train_tasks": "my.module:TASKS"}


def settings(**values: Any) -> TrainSettings:
    """Return settings, by default with a user's own agent."""
    return TrainSettings(**{**OWN, **values})


def test_every_recipe_is_complete_and_its_import_paths_work() -> None:
    for env in games():
        chosen = parse([f"env={env}"])
        assert check_settings(chosen).warnings == []
        assert (chosen.env, bool(chosen.test_tasks)) == (env, True)


def test_a_loss_that_needs_inputs_the_cookbook_does_not_send_is_refused(monkeypatch: Patch) -> None:
    chosen = parse(["env=identity", "loss_fn=stable_reinforce"])
    monkeypatch.setattr(data_processing, "trajectory_to_data", lambda *_, include_provenance=1: [])
    assert check_settings(chosen).settings.loss_fn == "stable_reinforce"
    monkeypatch.setattr(data_processing, "trajectory_to_data", lambda *_: [])
    with pytest.raises(RecipeError, match="does not record .* expected 0.6 .*importance_sampling"):
        check_settings(chosen)


def test_the_command_line_overrides_every_value_of_a_recipe() -> None:
    chosen = parse(["env=identity", "steps=3", "batch_size=2", "learning_rate=0.5", "loss_fn=ppo"])
    assert (chosen.steps, chosen.batch_size, chosen.learning_rate) == (3, 2, 0.5)
    assert (chosen.loss_fn, chosen.max_tokens) == ("ppo", games()["identity"].recipe["max_tokens"])
    assert parse(["env=guess-number"]).env == "guess_number"  # another spelling of the name
    assert parse(["env=identity", "wandb_name=inf"]).wandb_name == "inf"  # here, inf is text


def test_an_impossible_size_rate_time_or_device_is_refused() -> None:
    for name in ("steps", "batch_size", "group_size", "max_tokens", "threads"):
        with pytest.raises(RecipeError, match=f"{name} must be at least 1, got 0"):
            settings(**{name: 0})
    for name in ("learning_rate", "warm_up_learning_rate", "agent_timeout"):
        for value in (-1.0, 0.0, math.nan, math.inf):
            with pytest.raises(RecipeError, match=f"{name} must be above 0, got {value}"):
                settings(**{name: value})
    for device in ("gpu", "cuda:", "CPU", ""):
        with pytest.raises(RecipeError, match=f"device must be auto, cpu, .*got '{device}'"):
            settings(device=device)


def test_only_settings_that_affect_learning_count_as_differences() -> None:
    before = as_record(settings(allow_hosts=("a", "b")))
    again = settings(allow_hosts=("a", "b"), steps=99, log_path="elsewhere", eval_every=1)
    assert not differences(before, again)
    assert differences(before, settings(seed=3, learning_rate=1.0)) == [
        "allow_hosts: ['a', 'b'] -> []",
        "learning_rate: 0.0001 -> 1.0",
        "seed: 0 -> 3",
    ]
    older = as_record(settings())
    del older["league"], older["test_opponent"]  # settings added after that run
    assert not differences(older, settings())
    assert differences(older, settings(test_opponent="perfect")) == [
        "test_opponent: '' -> 'perfect'"
    ]


def test_the_engine_depends_on_the_api_key_and_the_model(
    monkeypatch: Patch, tmp_path: Path
) -> None:
    qwen, is_set = {"model_name": "Qwen/Qwen3-8B"}, "TINKER_API_KEY is set"
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    for values in ({}, qwen):
        chosen = choose_engine(settings(**values))
        assert chosen == EngineChoice("embedded", "TINKER_API_KEY is not set")
    for values in ({"engine": "service"}, {**qwen, "base_url": "http://x"}):
        with pytest.raises(RecipeError, match="TINKER_API_KEY is not set"):
            choose_engine(settings(**values))
    monkeypatch.setenv("TINKER_API_KEY", "k")
    chosen = choose_engine(settings())
    assert chosen == EngineChoice("embedded", f"{is_set}, but {BASE_MODEL} is not on any service")
    chosen = choose_engine(settings(engine="embedded", **qwen))
    assert chosen == EngineChoice("embedded", "engine=embedded")
    assert choose_engine(settings(model_name=str(tmp_path))).kind == "embedded"
    for values in (qwen, {"engine": "service", "base_url": "http://x"}):
        assert choose_engine(settings(**values)) == EngineChoice("service", is_set)
    with pytest.raises(RecipeError, match="ships with evert and is not available on any service"):
        choose_engine(settings(engine="service"))
    tiny = settings().model_name  # one thread by default
    assert (threads_of(None, tiny), threads_of(4, tiny), threads_of(None, "Q")) == (1, 4, None)


def test_the_engine_describes_itself_and_uses_the_requested_dtype(
    tiny_model: str, tmp_path: Path
) -> None:
    chosen = settings(
        model_name=tiny_model, device="cpu", threads=1, full_parameter=False, dtype="bfloat16"
    )
    with running_engine(EngineChoice("embedded", "a reason"), chosen, tmp_path, {}) as facts:
        client: Any = tinker.ServiceClient().create_lora_training_client(tiny_model).result()
        weights = client._run.trainer.model.named_parameters()
        assert {w.dtype for name, w in weights if "lora" not in name} == {torch.bfloat16}
        line = say(facts)
    assert line.startswith("engine: embedded on cpu, 1 thread (a reason); ")
    assert line.endswith(" M parameters, training LoRA of rank 32")
    with running_engine(
        EngineChoice("service", "a key"), settings(base_url="u"), tmp_path, {}
    ) as facts:
        assert say(facts) == f"engine: u (a key); {BASE_MODEL}, LoRA of rank 32"


@pytest.mark.parametrize("base_url", [None, "http://127.0.0.1:9"])
def test_the_sdk_is_patched_only_for_a_self_hosted_service(
    base_url: str | None, monkeypatch: Patch, tmp_path: Path
) -> None:
    named: list[str | None] = []
    monkeypatch.setattr("evert.trainers.config.backend.complete_client", named.append)
    with running_engine(
        EngineChoice("service", "a key"), settings(base_url=base_url), tmp_path, {}
    ):
        assert named == [base_url]


def open_and_leave(made: TrainSettings) -> RunFolder:
    """Open a run that got only as far as its scores before training; return its folder."""
    with open_run(made, str) as folder:
        folder.write_json(RUN, {"settings": as_record(made)})
        folder.write_json(BEFORE, {})
    return folder


def test_a_new_run_gets_its_own_folder(monkeypatch: Patch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = open_and_leave(settings()), open_and_leave(settings())
    assert first.path != second.path
    assert first.path.name.startswith("my_agent-evert-tiny-2")
    assert not first.resumed
    assert [slug("Qwen/Qwen3 8B?"), slug("///")] == ["Qwen-Qwen3-8B", "run"]


def test_the_same_run_is_opened_again_and_a_different_one_is_refused(tmp_path: Path) -> None:
    mine = settings(log_path=str(tmp_path), allow_hosts=("a",), cookbook={"temperature": 0.5})
    folder = open_and_leave(mine)
    folder.write_json(RUN, {"settings": {**as_record(mine), "of_old": 1}})
    with open_run(mine, str) as again:
        assert again.resumed
    assert as_record(parse([f"log_path={tmp_path}"])) == as_record(mine)
    before = sorted(tmp_path.rglob("*"))
    said = r"seed: 0 -> 1\nTo resume it, leave these set.*choose a different log_path"
    with pytest.raises(RunFolderError, match=said):
        open_and_leave(chz.replace(mine, seed=1))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_run_that_fails_before_its_first_scores_leaves_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with suppress(KeyError), open_run(settings(log_path=str(path)), str) as folder:
        folder.write_json(RUN, {})
        (path / "checkpoints" / "run-1").mkdir(parents=True)
        raise KeyError
    assert not path.exists()
    path.mkdir()
    RunFolder(path).write_json(RUN, {"settings": as_record(settings())})
    (path / "logs.log").write_text("begun, and killed")
    with open_run(settings(log_path=str(path), seed=1), str) as folder:
        assert not folder.resumed


def test_a_second_process_cannot_change_anything_in_a_run_folder(tmp_path: Path) -> None:
    mine, log = settings(log_path=str(tmp_path)), tmp_path / "logs.log"
    with open_run(mine, str) as folder:
        log.write_text("at work")
        with pytest.raises(RunFolderError, match="Another process is training in"):
            open_and_leave(mine)
        assert log.read_text() == "at work"
        folder.write_json(RUN, {})
    assert sorted(file.name for file in tmp_path.iterdir()) == ["logs.log", RUN]


def test_a_record_with_invalid_values_is_refused_with_the_value(tmp_path: Path) -> None:
    mine = settings(log_path=str(tmp_path))
    open_and_leave(mine).write_json(RUN, {"settings": {**as_record(mine), "steps": [3]}})
    with pytest.raises(UsageError, match=r"steps takes an integer, got \(3,\)"):
        parse([f"log_path={tmp_path}"])


def test_the_rows_of_a_step_are_merged_and_later_summaries_are_not_steps(tmp_path: Path) -> None:
    def of(step: int, **more: Any) -> dict[str, Any]:
        return {"step": step, "progress/done_frac": 0.5, **more}

    rows = [
        of(0, x=1),
        {"step": 0, HELD_OUT_REWARD: 0.25},  # written separately when steps overlap
        of(1, x=2),
        of(1, x=3),  # step 1 repeated
        {"tokens/cumulative/sampled": 3},  # since Cookbook 0.6, written after the last step
        {"step": 2, HELD_OUT_REWARD: 0.25},
        {"step": 2, "tokens/cumulative/sampled": 5},
    ]
    assert steps_of(tmp_path, rows) == [rows[0] | rows[1], rows[3]]
    record = {"step": 1, "metrics": {FAILED: 0.25}}  # from the batch records
    (tmp_path / BATCHES).write_text(f'{json.dumps(record)}\n{{"odd": 1}}\n{{"step": 7}}\n')
    assert steps_of(tmp_path, rows)[1] == rows[3] | {FAILED: 0.25}


def steps_of(path: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    (path / METRICS).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return RunFolder(path).steps()


def step_row(step: int, held_out: float | None = None) -> dict[str, Any]:
    row = {"step": step, "progress/done_frac": 0.5, TRAIN_REWARD: 0.5}
    return row if held_out is None else row | {HELD_OUT_REWARD: held_out}


def shown(path: Path, steps: int, *rows: Mapping[str, Any], **console: Any) -> str:
    """Return what a run prints for these rows."""
    written = io.StringIO()
    with display(Console(file=written, **console), path, steps) as show:
        for row in rows:
            show(row)
    return written.getvalue()


def test_a_long_run_prints_a_few_lines_with_each_held_out_score_once(tmp_path: Path) -> None:
    text = shown(tmp_path, 100, *map(step_row, range(100)))
    assert len(text.splitlines()) == 10
    assert "\x1b" not in text
    assert text.splitlines()[-1].startswith("training: step 100/100  reward 0.50  ")
    rows = [step_row(*each) for each in enumerate((0.25, None, 0.75, None))]
    ends = [line.partition("reward 0.50")[2] for line in shown(tmp_path, 4, *rows).splitlines()]
    found = [end.rpartition("  ")[0].strip() for end in ends]
    assert found == ["held-out 0.25 before", "", "held-out 0.75 after 2", ""]
    bar = shown(tmp_path, 2, step_row(1, 0.25), force_terminal=True)
    assert "\x1b[" in bar
    assert "held-out 0.25" in bar


def test_the_progress_display_advances_only_on_steps(tmp_path: Path, capsys: Shown) -> None:
    rows: list[Mapping[str, Any]] = [
        {"tokens/cumulative/sampled": 3},
        {"step": 0, "progress/done_frac": 1.0, TRAIN_REWARD: 0.5},
        {"step": 1, HELD_OUT_REWARD: 0.25},
    ]
    taken: list[Mapping[str, Any]] = []
    with logging_to(tmp_path), follow(taken.append):
        logger = ml_log.setup_logging(str(tmp_path))
        for row in rows:
            logger.log_metrics({k: v for k, v in row.items() if k != "step"}, row.get("step"))
    assert taken == rows == files.read_jsonl(tmp_path / METRICS)
    assert capsys.readouterr().err == ""
    text = shown(tmp_path, 1, *rows)
    assert text.startswith("training: step 1/1  reward 0.50  ")
    assert len(text.splitlines()) == 1


def test_a_failing_display_or_tracker_stops_the_training_immediately(tmp_path: Path) -> None:
    def take(row: Mapping[str, Any]) -> None:
        raise OSError("no space")

    with logging_to(tmp_path), follow(take):
        logger = ml_log.setup_logging(str(tmp_path))
        with pytest.raises(OSError, match="no space"):
            logger.log_metrics({TRAIN_REWARD: 0.5}, 0)


def test_training_works_without_git(monkeypatch: Patch) -> None:
    monkeypatch.setenv("PATH", "")
    cookbook: Any = ml_log
    with redacting():
        assert cookbook.code_state() == ""


def test_changes_that_are_not_utf_8_are_left_out_of_code_diff(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_bytes(b"caf\xe9\n")
    person = ["-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    for command in (["init", "-q"], ["add", "."], [*person, "commit", "-qm", "a"]):
        subprocess.run(["git", *command], check=True)
    (tmp_path / "a.csv").write_bytes(b"th\xe9\n")
    cookbook: Any = ml_log
    with redacting():
        assert "its changes are not included" in cookbook.code_state()


def test_a_run_has_one_score_of_its_untrained_weights(tmp_path: Path) -> None:
    """The table's score replaces the Cookbook's score of step 0, which is from other episodes."""
    rows = [step_row(0, -0.27), step_row(1, 0.1)]
    assert steps_of(tmp_path, rows) == rows
    scores = {"greedy": {"reward": -1.0}, "temperature_1": {"reward": -0.17}}
    (tmp_path / BEFORE).write_text(json.dumps({"scores": scores}))
    assert [row[HELD_OUT_REWARD] for row in steps_of(tmp_path, rows)] == [-0.17, 0.1]
