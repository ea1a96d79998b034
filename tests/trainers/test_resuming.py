"""A run that was stopped goes on, wherever and however it was stopped.

1. SIGTERM does what Ctrl-C does, and a kill at any moment loses at most a step: the curve of the
   resumed run is that of a run that nobody stopped.
2. No step stands twice in the metrics, and no checkpoint without a use stays on the disk.
3. Damaged, deleted and odd files are gone back behind, or refused with what to do.
"""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evert.trainers.commands import train
from evert.trainers.rundir import metrics
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system import files
from evert.trainers.system.command import INTERRUPTED
from evert.trainers.system.files import RunFolderError
from evert.trainers.training.resuming import take_up, tidy

TINY = ["env=identity", "device=cpu", "batch_size=2", "group_size=2", "eval_every=0", "samples=0"]
STEPS = ["steps=8", "save_every=3"]


def run(*arguments: str) -> int:
    """The command, in this process; returns its exit status."""
    return train.main(list(arguments))


@pytest.fixture(scope="module", autouse=True)
def _no_service() -> Any:
    key = os.environ.pop("TINKER_API_KEY", None)
    yield
    if key is not None:
        os.environ["TINKER_API_KEY"] = key


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that nobody stopped."""
    path = tmp_path_factory.mktemp("whole") / "run"
    assert run(*TINY, *STEPS, f"log_path={path}") == 0
    return RunFolder(path, resumed=True)


@pytest.fixture
def copied(whole: RunFolder, tmp_path: Path) -> RunFolder:
    """A copy of it, to do things to."""
    return RunFolder(shutil.copytree(whole.path, tmp_path / "copy"), resumed=True)


def start(path: Path) -> "subprocess.Popen[str]":
    """The same run in a process of its own."""
    command = [
        sys.executable,
        "-m",
        "evert.trainers.commands.train",
        *TINY,
        *STEPS,
        f"log_path={path}",
    ]
    return subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def wait_for(count: int, folder: RunFolder, process: "subprocess.Popen[str]") -> None:
    """Until that many steps are saved."""
    deadline = time.monotonic() + 120
    while folder.steps_done() < count and process.poll() is None:
        assert time.monotonic() < deadline, "no step was done"
        time.sleep(0.01)


def rewards(folder: RunFolder) -> list[float]:
    return [row[metrics.TRAIN_REWARD] for row in folder.steps()]


def steps_written(folder: RunFolder) -> list[int]:
    rows = files.read_jsonl(folder.path / files.METRICS)
    return [row["step"] for row in rows if metrics.is_step(row)]


def saved(folder: RunFolder) -> set[str]:
    """Names of what is in the store, by kind."""
    found = (folder.path / "checkpoints").glob("*/*weights/*")
    return {f"{path.parent.name}/{path.name}" for path in found}


# -- 1. stopped ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def driver() -> ModuleType:
    """``benchmarks/kill9.py``, as a module."""
    script = Path(__file__).parents[2] / "benchmarks" / "kill9.py"
    found = importlib.util.spec_from_file_location("kill9", script)
    assert found is not None
    assert found.loader is not None
    module = sys.modules["kill9"] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def test_a_killed_run_goes_on_to_the_same_figures_and_leaves_nothing_behind(
    whole: RunFolder, tmp_path: Path, driver: ModuleType
) -> None:
    names = ("settings", "kept checkpoint", "scores after")
    stops = [driver.Moment(name, 0.0, driver.APPEARS[name]) for name in names]
    wanted, settings = driver.state(whole.path), [*TINY, *STEPS]
    run = driver.stop_and_go_on(tmp_path / "run", stops, signal.SIGKILL, wanted, settings)

    assert run.problems == ()
    assert (run.commands, len(run.moments)) == (4, 3)
    assert wanted["hidden"] == []


def test_sigterm_does_what_ctrl_c_does(whole: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run", resumed=True)
    with start(folder.path) as process:
        wait_for(2, folder, process)
        process.send_signal(signal.SIGTERM)
        shown, errors = process.communicate(timeout=280)
    assert process.returncode == INTERRUPTED, errors
    assert errors == ""
    done = folder.steps_done()
    assert 2 <= done < 8
    assert f"Interrupted after {done} steps; they are saved in {folder.path}. To go on:" in shown
    assert run(f"log_path={folder.path}") == 0
    assert rewards(folder) == rewards(whole)


def test_a_run_stopped_before_it_began_leaves_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with start(path) as process:
        deadline = time.monotonic() + 120
        while not (path / files.RUN).exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=280)
    assert (process.returncode, errors) == (INTERRUPTED, "")
    assert "Interrupted" in shown
    assert not path.exists() or RunFolder(path, True).begun


# -- 2. tidy -------------------------------------------------------------------------------------


def test_a_finished_run_keeps_the_checkpoints_that_were_asked_for(whole: RunFolder) -> None:
    names = ("000003", "000006", "final")
    assert saved(whole) == {f"{k}/{n}" for k in ("weights", "sampler_weights") for n in names}
    assert not [record for record in whole.checkpoints() if record.get("rolling")]


def test_of_rolling_checkpoints_the_one_to_resume_from_is_kept(copied: RunFolder) -> None:
    (final,) = (copied.path / "checkpoints").glob("*/weights/final")
    for name in ("000004", "000005", "000007", ".draft-1", "unlisted"):
        shutil.copytree(final, final.with_name(name))
    run_id = final.parents[1].name
    with (copied.path / files.CHECKPOINTS).open("a") as listed:
        for batch in (4, 5, 7):
            path = f"tinker://{run_id}/weights/{batch:06d}"
            line = {"name": f"{batch:06d}", "batch": batch, "state_path": path, "rolling": True}
            listed.write(json.dumps(line) + "\n")
    before = saved(copied)
    tidy(copied.path)
    gone = {f"weights/{name}" for name in ("000004", "000005", ".draft-1", "unlisted")}
    assert saved(copied) == before - gone


def test_steps_that_are_done_again_do_not_stand_twice(
    copied: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = copied.path / files.CHECKPOINTS
    files.keep_lines(listed, lambda record: record.get("name") == "000003")
    assert run(f"log_path={copied.path}") == 0
    assert "resuming after step 3 of 8" in capsys.readouterr().out
    assert steps_written(copied) == list(range(8))


def forget(folder: RunFolder, *names: str) -> None:
    """Strike checkpoints off the list."""
    listed = folder.path / files.CHECKPOINTS
    files.keep_lines(listed, lambda record: record.get("name") not in names)


def test_a_kill_between_a_kept_checkpoint_and_its_metrics_costs_no_row(
    copied: RunFolder, whole: RunFolder
) -> None:
    forget(copied, "final")
    files.keep_lines(copied.path / files.METRICS, lambda row: row["step"] < 5)
    assert copied.steps_done() == 6
    assert run(f"log_path={copied.path}") == 0
    assert steps_written(copied) == list(range(8))
    assert rewards(copied) == rewards(whole)


def test_a_run_killed_before_its_last_checkpoint_has_one_all_the_same(
    copied: RunFolder, whole: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (final,) = (copied.path / "checkpoints").glob("*/weights/final")
    final.rename(final.with_name("000008"))
    shutil.rmtree(final.parents[1] / "sampler_weights" / "final")
    forget(copied, "final")
    path = f"tinker://{final.parents[1].name}/weights/000008"
    with (copied.path / files.CHECKPOINTS).open("a") as listed:
        rolling = {"name": "000008", "batch": 8, "state_path": path, "rolling": True}
        listed.write(json.dumps(rolling) + "\n")
    assert run(f"log_path={copied.path}") == 0
    assert "all 8 steps are done" in capsys.readouterr().out
    assert copied.after == whole.after
    assert saved(copied) == saved(whole)


def test_a_line_without_its_end_is_no_trap_for_the_next(copied: RunFolder) -> None:
    forget(copied, "final")
    files.keep_lines(copied.path / files.METRICS, lambda row: row["step"] < 6)
    for name in (files.METRICS, files.CHECKPOINTS, files.BATCHES):
        file = copied.path / name
        file.write_bytes(file.read_bytes().rstrip(b"\n"))
    assert run(f"log_path={copied.path}") == 0
    assert steps_written(copied) == list(range(8))
    assert not list(copied.path.glob("*.broken"))


# -- 3. damaged ----------------------------------------------------------------------------------


def test_deleted_checkpoints_make_a_run_start_again(
    copied: RunFolder, whole: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(copied.path / "checkpoints")
    assert run(f"log_path={copied.path}") == 0
    assert (
        "is damaged or gone: starting again from the first step instead" in capsys.readouterr().out
    )
    assert rewards(copied) == rewards(whole)
    assert steps_written(copied) == list(range(8))


def test_a_lost_list_of_checkpoints_does_not_cost_the_checkpoints(
    copied: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied.path / files.CHECKPOINTS).unlink()
    before = saved(copied)
    assert run(f"log_path={copied.path}") == 1
    assert "lists no checkpoint, and" in capsys.readouterr().err
    assert saved(copied) == before
    shutil.rmtree(copied.path / "checkpoints")
    assert run(f"log_path={copied.path}") == 0


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"scores": {}}', '{"scores": 3}'])
def test_odd_scores_of_the_untrained_weights_are_an_error_or_taken_again(
    copied: RunFolder, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (copied.path / files.BEFORE).write_text(content)
    status = run(f"log_path={copied.path}")
    message = capsys.readouterr().err
    assert status == 0 or "Delete before.json to have the untrained weights scored again" in message
    assert "Traceback" not in message


def test_a_run_does_not_go_on_with_another_engine(copied: RunFolder) -> None:
    about = copied.read_json(files.RUN) or {}
    settings = train.parse([f"log_path={copied.path}"])
    copied.write_json(files.RUN, {**about, "engine": {"engine": "service"}})
    with pytest.raises(RunFolderError, match=r"trained with engine=service, .* are on a service"):
        take_up(copied, settings, (), "embedded", None)  # type: ignore[arg-type]
