"""Runs in Weights & Biases (offline) and TensorBoard, read back from the files that they write."""

import io
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import (  # type: ignore[import-untyped]
    EventAccumulator,
)
from tests.kit import Patch
from tests.trainers.kit import Cli

from evert.trainers.commands import train
from evert.trainers.config.backend import wandb_hosts
from evert.trainers.config.train import TrainSettings
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import FAILED, HELD_OUT_REWARD, TRAIN_REWARD
from evert.trainers.system.files import RESULT
from evert.trainers.training.tracking import run_name, run_tags, tracking

SMALL = [
    "env=identity", "device=cpu", "batch_size=2", "group_size=2", "samples=0", "eval_every=1",
    "test_group_size=1",
]  # fmt: skip
QUIET = Console(quiet=True)


@pytest.fixture(autouse=True, scope="module")
def _offline() -> Iterator[None]:
    """Keep W&B offline, and stop its processes and threads."""
    import wandb

    with pytest.MonkeyPatch.context() as patch:
        for name in ("WANDB_NAME", "WANDB_TAGS", "WANDB_RUN_ID"):
            patch.delenv(name, raising=False)
        patch.setenv("WANDB_MODE", "offline")
        yield
        wandb.teardown()


@pytest.fixture(scope="module")
def tracked(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """Train two steps with both trackers and resume for a third."""
    folder = tmp_path_factory.mktemp("tracked") / "identity-evert-tiny-today"
    trackers = ["wandb_project=games", "tags=night,try", "tensorboard=True"]
    with redirect_stderr(io.StringIO()) as errors:
        assert train.main([*SMALL, *trackers, "steps=2", f"log_path={folder}"]) == 0
        shutil.copytree(folder, folder.with_name("first"))
        assert train.main([f"log_path={folder}", "steps=3"]) == 0
    assert "wandb" not in errors.getvalue()  # it would print a lot
    return RunFolder(folder)


@pytest.fixture
def first(tracked: RunFolder) -> RunFolder:
    """Return the run as it was before it was resumed."""
    return RunFolder(tracked.path.with_name("first"))


def wandb_records(folder: RunFolder) -> list[Any]:
    """Return all W&B records of a run, in writing order."""
    from wandb.proto import wandb_internal_pb2

    messages: Any = wandb_internal_pb2
    files = sorted(folder.path.glob("wandb/offline-run-*/*.wandb"), key=lambda file: file.parent)
    logs = [leveldb_records(file.read_bytes()) for file in files]
    return [messages.Record.FromString(content) for log in logs for content in log]


def leveldb_records(log: bytes) -> Iterator[bytes]:
    """Yield the records of a log. Each has a header (checksum, length, type) and content."""
    content, place = b"", 7  # skip the file header
    while place + 7 <= len(log):
        if 0 < (left := -place % 2**15) < 7:  # too little room for a header in this block
            place += left
        length = int.from_bytes(log[place + 4 : place + 6], "little")
        whole_or_last = log[place + 6] in (1, 4)
        content += log[place + 7 : place + 7 + length]
        place += 7 + length
        if whole_or_last:
            yield content
            content = b""


def wandb_runs(folder: RunFolder) -> list[Any]:
    return [record.run for record in wandb_records(folder) if record.HasField("run")]


def wandb_history(folder: RunFolder) -> list[dict[str, Any]]:
    return [values(r.history.item) for r in wandb_records(folder) if r.HasField("history")]


def values(items: Any) -> dict[str, Any]:
    return {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in items}


def test_a_wandb_run_has_its_name_tags_configuration_and_final_scores(tracked: RunFolder) -> None:
    run = wandb_runs(tracked)[0]
    assert (run.project, run.display_name) == ("games", "identity-evert-tiny-today")
    assert list(run.tags) == ["identity", "evert-tiny", "night", "try"]
    config: dict[str, Any] = {}
    summary: dict[str, Any] = {}
    for record in wandb_records(tracked):
        config |= values(record.run.config.update) | values(record.config.update)
        summary |= values(record.summary.update)
    about = config["evert"]
    assert about["settings"]["batch_size"] == 2
    assert about["engine"]["engine"] == "embedded"
    assert about["engine"]["parameters"] > 0
    assert {"evert", "torch", "tinker-cookbook"} <= set(about["versions"])
    assert {"git", "machine", "command"} <= set(about)
    assert config["learning_rate"] == about["settings"]["learning_rate"]  # from the Cookbook
    assert config["max_steps"] == 3
    for when, scores in (tracked.read_json(RESULT) or {})["held_out"].items():
        for how in ("greedy", "temperature_1"):
            assert summary[f"held_out/{when}/{how}"] == scores[how]["reward"]


def test_a_resumed_run_logs_each_step_once(first: RunFolder, tracked: RunFolder) -> None:
    history, rows = wandb_history(first), first.steps()
    assert len(rows) == 2
    for row, logged in zip(rows, history[:2], strict=True):  # Cookbook 0.6 logs more rows
        assert logged[TRAIN_REWARD] == row[TRAIN_REWARD]
        assert logged["_step"] == row["step"]
        assert logged[FAILED] == row[FAILED] == 0  # logged by evert
    known = tracked.read_json("wandb.json") or {}
    assert known["project"] == "games"
    assert {run.run_id for run in wandb_runs(tracked)} == {known["id"]}
    trained = [logged["_step"] for logged in wandb_history(tracked) if TRAIN_REWARD in logged]
    assert trained == [0, 1, 2]


def test_a_failed_run_is_marked_as_failed_in_wandb(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    with (
        pytest.raises(RuntimeError, match="the mistake"),
        tracking(settings(wandb_project="p"), folder, {"steps": 1}, QUIET),
    ):
        raise RuntimeError("the mistake")
    assert [r.exit.exit_code for r in wandb_records(folder) if r.HasField("exit")] == [1]


def settings(**values: Any) -> TrainSettings:
    return train.parse(["env=identity", *(f"{key}={value}" for key, value in values.items())])


def test_a_wandb_run_is_named_and_tagged_after_its_game_unless_set(monkeypatch: Patch) -> None:
    assert run_name(settings(), Path("runs/identity-evert-tiny-2026")) == "identity-evert-tiny-2026"
    assert run_name(settings(), Path("runs/007")) == "identity-evert-tiny-007"
    assert run_name(settings(wandb_name="mine"), Path("x")) == "mine"
    monkeypatch.setenv("WANDB_NAME", "theirs")
    assert run_name(settings(), Path("x")) == "theirs"
    monkeypatch.setenv("WANDB_TAGS", "identity, late")
    assert run_tags(settings(tags="a")) == ["identity", "evert-tiny", "a", "late"]


def test_only_online_wandb_may_access_its_host(monkeypatch: Patch) -> None:
    import wandb

    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example:8080/x")
    for mode, hosts in (("online", ("wandb.example",)), ("offline", ()), ("disabled", ())):
        monkeypatch.setenv("WANDB_MODE", mode)
        wandb.teardown()  # W&B reads its environment only once
        assert wandb_hosts(settings(wandb_project="p")) == hosts
        assert wandb_hosts(settings()) == ()
    wandb.teardown()


def test_wandb_without_login_says_what_to_do(tmp_path: Path, monkeypatch: Patch, cli: Cli) -> None:
    import wandb

    wandb.teardown()
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    path = tmp_path / "run"
    message = cli("train", *SMALL, "steps=1", "wandb_project=p", f"log_path={path}", status=1)
    assert "could not be started for wandb_project=p: No API key configured" in message
    assert "WANDB_MODE=offline" in message
    assert not path.exists()
    wandb.teardown()


def events(folder: Path) -> Any:
    everything = {"scalars": 0, "tensors": 0}
    return EventAccumulator(str(folder / "tensorboard"), size_guidance=everything).Reload()


def scalars(folder: Path, name: str) -> dict[int, float]:
    points = [(scalar.step, scalar.value) for scalar in events(folder).Scalars(name)]
    assert len({step for step, _ in points}) == len(points)
    return dict(points)


def test_event_files_contain_every_number_and_setting(first: RunFolder, tracked: RunFolder) -> None:
    rows, logged = tracked.steps(), events(tracked.path)
    assert [row["step"] for row in rows] == [0, 1, 2]
    for name in (TRAIN_REWARD, "time/total", "optim/lr"):
        wanted = {row["step"]: row[name] for row in rows}
        assert scalars(tracked.path, name) == pytest.approx(wanted)
    numbers = {k for row in rows for k, v in row.items() if isinstance(v, int | float)} - {"step"}
    assert numbers <= set(logged.Tags()["scalars"])
    curve, result = scalars(first.path, HELD_OUT_REWARD), first.read_json(RESULT) or {}
    assert sorted(curve) == [0, 1, 2]
    assert curve[2] == pytest.approx(result["held_out"]["after"]["temperature_1"]["reward"])
    (text,) = logged.Tensors("settings/text_summary")[0].tensor_proto.string_val
    assert "| batch_size | 2 |" in text.decode()
    session = logged.PluginTagToContent("hparams")["_hparams_/session_start_info"]
    assert b"learning_rate" in session


ABOUT = {"settings": {"steps": 9}, "engine": {"engine": "none"}, "versions": {}}


def log_rows(folder: RunFolder, rows: list[dict[str, Any]]) -> None:
    with tracking(settings(tensorboard=True), folder, ABOUT, QUIET) as logger:
        for row in rows:
            logger.log_metrics(row, row["step"])


def checkpoint(folder: RunFolder, step: int) -> None:
    """Record a checkpoint after this many steps."""
    record = {"name": "x", "state_path": "tinker://x", "batch": step}
    (folder.path / "checkpoints.jsonl").write_text(json.dumps(record) + "\n")


def step_row(step: int, reward: float) -> dict[str, Any]:
    return {"step": step, "progress": 0.5, TRAIN_REWARD: reward, "note": "text is left out"}


@pytest.mark.parametrize("written", [1, 4], ids=["nobody wrote down", "done again"])
@pytest.mark.parametrize("done", [2, 3])
def test_a_resumed_run_replaces_repeated_steps_and_adds_missing_ones(
    tmp_path: Path, written: int, done: int
) -> None:
    folder = RunFolder(tmp_path)
    log_rows(folder, [step_row(step, 0.0) for step in range(written)])
    lines = [json.dumps(step_row(step, 0.5)) + "\n" for step in range(4)]
    (tmp_path / "metrics.jsonl").write_text("".join(lines))
    checkpoint(folder, done)
    log_rows(folder, [step_row(step, 1.0) for step in range(done, 4)])
    wanted = {step: 0.5 if step < done else 1.0 for step in range(4)}
    assert scalars(tmp_path, TRAIN_REWARD) == wanted


def test_the_final_score_is_tracked_after_the_last_step(tmp_path: Path) -> None:
    (bare := tmp_path / "bare").mkdir()
    with tracking(settings(), RunFolder(bare), {}, QUIET) as logger:
        logger.log_metrics({"step": 0}, 0)
        logger.log_metrics({})
    assert list(bare.iterdir()) == []
    folder = RunFolder(tmp_path)
    checkpoint(folder, 3)
    with tracking(settings(tensorboard=True), folder, ABOUT, QUIET) as logger:
        logger.log_metrics({HELD_OUT_REWARD: 0.5})
    assert scalars(tmp_path, HELD_OUT_REWARD) == {3: 0.5}


@pytest.mark.parametrize(
    ("package", "setting"), [("wandb", "wandb_project=p"), ("tensorboard", "tensorboard=True")]
)
def test_an_error_names_a_missing_package(
    package: str, setting: str, tmp_path: Path, monkeypatch: Patch, cli: Cli
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    error = cli("train", *SMALL, setting, f"log_path={tmp_path / 'run'}", status=1)
    assert f"error: {setting} requires the {package} package" in error
    assert f"pip install {package}, or leave out {setting.partition('=')[0]}" in error
    assert not (tmp_path / "run").exists()
