"""A run stopped at any point, in any way, resumes and reproduces an uninterrupted run's curve."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from benchmarks import kill9
from tests.kit import Patch
from tests.nightly import IS_NIGHT
from tests.trainers.kit import FINISHED, Cli, environment

from evert.trainers.commands import train
from evert.trainers.rundir import metrics
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.system import files
from evert.trainers.system.command import INTERRUPTED
from evert.trainers.system.files import RunFolderError
from evert.trainers.training.resuming import open_run, prepare_folder, tidy


def resume(cli: Cli, folder: RunFolder, status: int = 0) -> str:
    return cli(f"train log_path={folder.path}", status=status)


def rewards(folder: RunFolder) -> list[float]:
    return [row[metrics.TRAIN_REWARD] for row in folder.steps()]


def steps_written(folder: RunFolder) -> list[int]:
    rows = files.read_jsonl(folder.path / files.METRICS)
    return [row["step"] for row in rows if metrics.is_step(row)]


def saved(folder: RunFolder) -> set[str]:
    """Return the names in the store, each prefixed with its type of weights."""
    paths = (folder.path / "checkpoints").glob("*/*weights/*")
    return {f"{path.parent.name}/{path.name}" for path in paths}


def list_rolling(folder: RunFolder, run_id: str, *batches: int) -> None:
    with (folder.path / files.CHECKPOINTS).open("a") as listed:
        for batch in batches:
            path = f"tinker://{run_id}/weights/{batch:06d}"
            line = {"name": f"{batch:06d}", "batch": batch, "state_path": path, "rolling": True}
            listed.write(json.dumps(line) + "\n")


def forget(folder: RunFolder, name: str) -> None:
    listed = folder.path / files.CHECKPOINTS
    files.keep_lines(listed, lambda record: record.get("name") != name)


def test_a_killed_run_resumes_with_the_same_metrics(finished: RunFolder, tmp_path: Path) -> None:
    names = ["settings", "first checkpoint", "scores after"] if IS_NIGHT else ["first checkpoint"]
    stops = [kill9.Moment(name, 0.0, kill9.APPEARS[name]) for name in names]
    wanted = kill9.state(finished.path)
    run = kill9.stop_and_go_on(tmp_path / "run", stops, signal.SIGKILL, wanted, FINISHED)
    assert run.problems == ()
    assert (run.commands, len(run.moments)) == (len(names) + 1, len(names))
    assert wanted["hidden"] == []


@pytest.mark.nightly
def test_sigterm_does_what_ctrl_c_does(tmp_path: Path, monkeypatch: Patch, cli: Cli) -> None:
    tiny = ["env=identity", "device=cpu", "batch_size=2", "group_size=2", "eval_every=0"]
    command = [sys.executable, "-m", "evert.trainers.cli", "train", *tiny, "steps=200"]
    folder = RunFolder(tmp_path / "run")
    with subprocess.Popen(
        [*command, "log_path=run"], cwd=tmp_path, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 800
        while folder.steps_done() < 2 and process.poll() is None:
            assert time.monotonic() < deadline, "no step was done"
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        shown, errors = process.communicate(timeout=800)
    assert (process.returncode, errors) == (INTERRUPTED, "")
    done = folder.steps_done()
    assert 2 <= done < 200
    assert f"Interrupted after {done} steps, which are saved in run. To resume:" in shown

    printed = shlex.split(shown.strip().splitlines()[-1])
    assert printed[:2] == ["evert", "train"]
    monkeypatch.chdir(tmp_path)
    assert f"resuming after step {done} of {done + 1}" in cli(
        "train", *printed[2:], f"steps={done + 1}"
    )
    assert steps_written(folder) == list(range(done + 1))


def test_a_finished_run_keeps_the_requested_checkpoints(finished: RunFolder) -> None:
    names = ("000002", "final")
    assert saved(finished) == {f"{k}/{n}" for k in ("weights", "sampler_weights") for n in names}
    assert not [record for record in finished.checkpoints() if record.get("rolling")]


def test_only_the_rolling_checkpoint_needed_for_resuming_is_kept(copied: RunFolder) -> None:
    (final,) = (copied.path / "checkpoints").glob("*/weights/final")
    for name in ("000004", "000005", "000007", ".draft-1", "unlisted"):
        shutil.copytree(final, final.with_name(name))
    list_rolling(copied, final.parents[1].name, 4, 5, 7)
    before = saved(copied)
    tidy(copied.path)
    gone = {f"weights/{name}" for name in ("000004", "000005", ".draft-1", "unlisted")}
    assert saved(copied) == before - gone


@pytest.mark.parametrize(
    ("lost", "rows"), [("nothing", 2), ("final", 3)], ids=["too few rows", "a step done again"]
)
def test_a_kill_between_a_checkpoint_and_its_metrics_loses_no_row(
    copied: RunFolder, finished: RunFolder, lost: str, rows: int, cli: Cli
) -> None:
    forget(copied, lost)
    files.keep_lines(copied.path / files.METRICS, lambda row: row["step"] < rows)
    for name in (files.METRICS, files.CHECKPOINTS, files.BATCHES):
        file = copied.path / name
        file.write_bytes(file.read_bytes().rstrip(b"\n"))  # without the last newline
    assert copied.steps_done() == (2 if lost == "final" else 3)
    shown = resume(cli, copied)
    assert "resuming after step 2" in shown
    assert re.search(r" s since the run was resumed, including \d+ s of training", shown)
    assert steps_written(copied) == [0, 1, 2]
    assert rewards(copied) == rewards(finished)
    assert not list(copied.path.glob("*.broken"))


def test_a_run_killed_before_its_final_checkpoint_gets_it_when_resumed(
    copied: RunFolder, finished: RunFolder, cli: Cli
) -> None:
    (final,) = (copied.path / "checkpoints").glob("*/weights/final")
    final.rename(final.with_name("000003"))
    shutil.rmtree(final.parents[1] / "sampler_weights" / "final")
    forget(copied, "final")
    list_rolling(copied, final.parents[1].name, 3)
    assert "all 3 steps are already done" in resume(cli, copied)
    assert copied.after == finished.after
    assert saved(copied) == saved(finished)


def test_a_damaged_checkpoint_falls_back_to_an_earlier_one(
    copied: RunFolder, finished: RunFolder, cli: Cli
) -> None:
    for file in copied.path.glob("checkpoints/*/weights/final/*.safetensors"):
        part = file.read_bytes()[:1000]
        file.unlink()
        file.write_bytes(part)
    text = "the latest checkpoint is damaged or missing: resuming after step 2"
    assert text in resume(cli, copied)
    assert rewards(copied) == rewards(finished)


def test_a_lost_checkpoint_list_is_an_error_but_lost_checkpoints_restart_the_run(
    copied: RunFolder, finished: RunFolder, cli: Cli
) -> None:
    listed, before = copied.path / files.CHECKPOINTS, saved(copied)
    text = listed.read_text()
    listed.unlink()
    assert "lists no checkpoints, but" in resume(cli, copied, status=1)
    assert saved(copied) == before
    listed.write_text(text)
    shutil.rmtree(copied.path / "checkpoints")
    message = "is damaged or missing: starting again from the first step instead"
    assert message in resume(cli, copied)
    assert rewards(copied) == rewards(finished)
    assert steps_written(copied) == [0, 1, 2]


def test_a_run_cannot_be_resumed_with_another_engine(copied: RunFolder) -> None:
    about = copied.read_json(files.RUN) or {}
    settings = train.parse([f"log_path={copied.path}"])
    copied.write_json(files.RUN, {**about, "engine": {"engine": "service"}})
    folder = RunFolder(copied.path, resumed=True)
    with pytest.raises(RunFolderError, match=r"trained with engine=service, .* are on a service"):
        prepare_folder(folder, settings, (), "embedded", None)  # type: ignore[arg-type]


def test_batches_of_a_run_killed_in_its_first_step_are_ignored(tmp_path: Path) -> None:
    (tmp_path / files.RUN).write_text("{}")
    (tmp_path / files.BATCHES).write_text('{"step": 0, "episodes": 8, "kinds": {"no_call": 8}}\n')
    settings = train.parse(["env=identity", f"log_path={tmp_path}"])
    with open_run(settings, str) as folder:
        assert prepare_folder(folder, settings, (), "embedded", None)  # type: ignore[arg-type]
        assert files.read_jsonl(tmp_path / files.BATCHES) == []


SETTINGS = (
    "env=identity device=cpu batch_size=1 group_size=2 eval_every=0 samples=1 save_every=2 steps=4"
)
SCRIPT = """
mount -t tmpfs -o size=$1 none $2 || exit 99
unset TINKER_API_KEY
train="$3 -m evert.trainers.cli train $4 log_path=$2/run"
$train > /dev/null 2> $5/first
echo $? >> $5/first
mount -o remount,size=400m $2
$train > $5/shown 2> $5/second
echo $? >> $5/second
cp $2/run/*.jsonl $2/run/run.json $5
ls -A $2/run > $5/left
"""


def can_mount() -> bool:
    """Return whether this user can mount a file system in a namespace of its own."""
    unshare = shutil.which("unshare")
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    return unshare is not None and subprocess.run(command, capture_output=True).returncode == 0


@pytest.mark.nightly  # test_train.py covers every type of failed write
@pytest.mark.skipif(not can_mount(), reason="mount namespaces are not available")
@pytest.mark.parametrize(
    ("size", "text"),
    [
        ("64k", "cannot be written to: No space left on device"),  # during the first step
        ("16m", "No space left on device"),  # during a checkpoint
    ],
)
def test_a_full_disk_gives_a_single_error_and_the_run_can_be_resumed(
    tmp_path: Path, size: str, text: str
) -> None:
    (disk := tmp_path / "disk").mkdir()
    arguments = [size, str(disk), sys.executable, SETTINGS, str(tmp_path)]
    subprocess.run(["unshare", "-rm", "sh", "-c", SCRIPT, "sh", *arguments], check=True)
    message, *_, status = (first := (tmp_path / "first").read_text()).splitlines()
    assert status == "1"
    assert message.startswith("error: ")
    assert text in message
    assert "Traceback" not in first
    assert "To resume: " in first
    assert (tmp_path / "second").read_text() == "0\n"
    rows = files.read_jsonl(tmp_path / files.METRICS)
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    listed = files.read_jsonl(tmp_path / files.CHECKPOINTS)
    assert [row["name"] for row in listed] == ["000002", "000004", "final"]
    assert not [name for name in (tmp_path / "left").read_text().split() if name.startswith(".")]
