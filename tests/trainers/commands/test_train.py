"""The training command, end to end. See also ``test_resuming.py`` and ``test_refusals.py``."""

import errno
import gc
import os
import struct
from pathlib import Path
from typing import Any

from tests.kit import Patch, Shown
from tinker_cookbook.stores.training_store import TrainingRunStore

from evert.trainers.commands import train
from evert.trainers.engine.common.errors import CheckpointError
from evert.trainers.engine.store.checkpoints import CheckpointStore
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import HELD_OUT_REWARD
from evert.trainers.system import files


def run(*arguments: str) -> int:
    """Run the command in this process and return its exit status."""
    return train.main(list(arguments))


def test_a_run_prints_only_its_engine_its_folder_and_its_metrics(finished: RunFolder) -> None:
    home = finished.path.parents[1]
    shown = (home / "stdout").read_text()
    for part in (
        "engine: embedded on cpu, 1 thread (TINKER_API_KEY is not set); evert-tiny, ",
        "step 3/3  reward ", "24 held-out tasks", f"plot: runs/{finished.path.name}/learning_curve",
        f"view it with: evert view runs/{finished.path.name}",
    ):  # fmt: skip
        assert part in shown
    assert "\x1b" not in shown
    assert len(shown.splitlines()) < 20
    assert (home / "stderr").read_text() == ""


def test_a_run_folder_has_a_descriptive_name_and_all_files(finished: RunFolder) -> None:
    folder = finished.path
    assert folder.name.startswith("identity-evert-tiny-2")
    names = {file.name for file in folder.iterdir()}
    assert names >= {
        "run.json", "config.json", "metrics.jsonl", "checkpoints.jsonl", "checkpoints",
        "before.json", "result.json", "learning_curve.png", "samples.md", "samples.jsonl",
        "logs.log",
    }  # fmt: skip
    assert not [name for name in names if name.startswith(".")]
    plot = (folder / "learning_curve.png").read_bytes()
    assert plot.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", plot[16:24]) >= (600, 400)
    assert "tinker_cookbook" in (folder / "logs.log").read_text()
    assert "the working folder" in (folder / "code.diff").read_text()


def test_the_result_has_the_scores_and_the_versions(finished: RunFolder) -> None:
    result = finished.read_json(files.RESULT) or {}
    assert (result["name"], result["steps"], result["seed"]) == ("identity", 3, 0)
    for when in ("before", "after"):
        for how in ("greedy", "temperature_1"):
            score = result["held_out"][when][how]
            assert score["episodes"] == (24 if how == "greedy" else 96)
            assert 0 <= score["low"] <= score["success"] <= score["high"] <= 1
            assert -1 <= score["reward"] <= 1
    assert result["seconds"]["total"] > result["seconds"]["training"] > 0
    assert {"evert", "tinker-cookbook", "torch", "python"} <= set(result["versions"])
    recorded = finished.read_json(files.RUN) or {}
    assert recorded["settings"]["batch_size"] == 4
    assert recorded["engine"]["parameters"] > 0


def test_held_out_tasks_are_scored_before_during_and_after_training(finished: RunFolder) -> None:
    assert [row["step"] for row in finished.steps() if HELD_OUT_REWARD in row] == [0, 2]
    samples = files.read_jsonl(finished.path / "samples.jsonl")
    assert [sample["task"] for sample in samples] == ["1000", "1001"]
    for sample in samples:
        for when in ("before", "after"):
            (turn,) = sample[when]["dialogue"]
            assert f"Say you are {sample['task']}." in turn["told"]
    assert "## Task 1001" in (finished.path / "samples.md").read_text()


def test_a_failed_write_is_a_clear_error_and_the_run_can_be_resumed(
    copied: RunFolder, capfd: Shown, monkeypatch: Patch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def no_checkpoint(store: CheckpointStore, run_id: str, kind: str, name: str, *_: Any) -> str:
        raise CheckpointError(f"Could not write {kind}/{name}: No space left on device")

    broken: list[tuple[type, str, Any, str]] = [
        (TrainingRunStore, "write_metrics", full, "cannot be written to: No space left on device"),
        (CheckpointStore, "save", no_checkpoint, "error: Could not write"),
    ]
    for owner, name, failing, said in broken:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, lambda *given, f=failing, **_: f(*given))
            assert run(f"log_path={copied.path}", "steps=4") == 1
        gc.collect()
        message = capfd.readouterr().err
        assert said in message
        assert "To resume: evert train" in message
        assert "Traceback" not in message
        assert len(copied.steps()) == 3
    assert run(f"log_path={copied.path}", "steps=4") == 0
    assert copied.steps_done() == 4


def test_a_checkpoint_that_could_not_be_saved_is_reported(
    tmp_path: Path, capfd: Shown, monkeypatch: Patch
) -> None:
    save = CheckpointStore.save

    def fails(store: CheckpointStore, run_id: str, kind: Any, name: str, *a: Any, **k: Any) -> str:
        if kind == "weights" and name != "final":
            raise CheckpointError(f"Could not write {name}: No space left on device")
        return save(store, run_id, kind, name, *a, **k)

    monkeypatch.setattr(CheckpointStore, "save", fails)
    small = "steps=3", "batch_size=2", "group_size=2", "max_tokens=8", "eval_every=0", "samples=0"
    assert run("env=identity", *small, "test_tasks=", f"log_path={tmp_path / 'run'}") == 0
    shown = capfd.readouterr().out
    assert shown.count("a checkpoint was not saved: Could not write 000001: No space left") == 1
    assert "a checkpoint was not saved: Could not write 000002" not in shown
    assert "you can resume from the last checkpoint" in shown
