"""The training command, end to end, with the embedded engine.

It needs no key and opens no socket, says what it does, and leaves a folder that holds the run.
Going on: ``test_resuming.py``; mistakes: ``test_refusals.py``.
"""

import asyncio
import errno
import gc
import json
import os
import signal
import struct
import warnings
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.trainers.conftest import FINISHED, SMALL
from tinker_cookbook.stores.training_store import TrainingRunStore

from evert.trainers.commands import train
from evert.trainers.engine.common.errors import CheckpointError
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.store.checkpoints import CheckpointStore
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import HELD_OUT_REWARD
from evert.trainers.system import files


@pytest.fixture(autouse=True)
def _no_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)


def rewards(folder: RunFolder) -> list[float]:
    """The training reward of each step."""
    return [row["env/all/reward/total"] for row in folder.steps()]


def run(*arguments: str) -> int:
    """The command, in this process; returns its exit status."""
    return train.main(list(arguments))


# -- a run ---------------------------------------------------------------------------------------


def test_a_run_says_its_engine_its_folder_and_its_figures_and_no_more(finished: RunFolder) -> None:
    home = finished.path.parents[1]
    shown = (home / "stdout").read_text()
    assert "engine: embedded on cpu, 1 thread (no TINKER_API_KEY is set); evert-tiny, " in shown
    assert "step 3/3  reward " in shown
    assert "24 held-out tasks" in shown
    assert f"plot: runs/{finished.path.name}/learning_curve.png" in shown
    assert "\x1b" not in shown
    assert len(shown.splitlines()) < 20
    assert (home / "stderr").read_text() == ""


def test_a_run_folder_has_a_name_and_everything_in_it(finished: RunFolder) -> None:
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


def test_the_result_says_what_was_reached_and_on_what(finished: RunFolder) -> None:
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


def test_held_out_tasks_are_scored_on_the_way_and_shown_before_and_after(
    finished: RunFolder,
) -> None:
    assert [row["step"] for row in finished.steps() if HELD_OUT_REWARD in row] == [0, 2]
    samples = files.read_jsonl(finished.path / "samples.jsonl")
    assert [sample["task"] for sample in samples] == ["1000", "1001"]
    for sample in samples:
        for when in ("before", "after"):
            (turn,) = sample[when]["dialogue"]
            assert f"Say you are {sample['task']}." in turn["told"]
    assert "## Task 1001" in (finished.path / "samples.md").read_text()


# -- going on ------------------------------------------------------------------------------------


def test_more_steps_are_those_of_the_whole_run_with_this_seed_and_no_other(
    finished: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed, other = (RunFolder(tmp_path / name, resumed=True) for name in ("resumed", "other"))
    assert run(*FINISHED, "steps=1", f"log_path={resumed.path}") == 0
    assert run(f"log_path={resumed.path}", "steps=3") == 0
    shown = capsys.readouterr().out
    assert "resuming after step 1 of 3" in shown
    assert "damaged" not in shown
    assert rewards(resumed) == rewards(finished)
    assert resumed.after == finished.after
    assert run(*FINISHED, "seed=1", "steps=1", "test_tasks=", f"log_path={other.path}") == 0
    assert rewards(other) != rewards(finished)[:1]


def test_a_rollout_that_had_not_begun_when_a_run_was_interrupted_is_no_warning() -> None:
    async def rollout() -> None: ...

    async def play(rollout: Coroutine[Any, Any, None]) -> None:
        await rollout

    async def training() -> Any:
        rollouts = [rollout() for _ in range(2)]  # as the Cookbook holds them
        signal.raise_signal(signal.SIGINT)
        await asyncio.gather(*[play(each) for each in rollouts])

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with pytest.raises(KeyboardInterrupt):
            train._run_async(training())
        gc.collect()
    messages = [str(each.message) for each in said]
    assert [message for message in messages if "never awaited" in message] == []


# -- what goes wrong -----------------------------------------------------------------------------


def test_what_cannot_be_written_is_a_clear_error_and_the_run_goes_on_later(
    copied: RunFolder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
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


def test_a_service_is_trained_on_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-dummy")
    # The embedded engine stands in for the service: it is already in place of the SDK's clients.
    service = ["engine=service", "base_url=http://service.invalid", f"log_path={tmp_path / 'run'}"]
    with embedded_engine(tmp_path / "store", device="cpu"):
        assert run(*SMALL, *service, "steps=1", "test_tasks=") == 0
    assert "engine: http://service.invalid (TINKER_API_KEY is set)" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "run.json").read_text())["engine"]["engine"] == "service"
    assert not (tmp_path / "run" / "checkpoints").exists()
