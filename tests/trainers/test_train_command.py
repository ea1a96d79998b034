"""The training command, end to end, with the embedded engine.

1. It needs no key and opens no socket, prints no colours into a pipe, and says what it does.
2. Its folder holds the run: settings, figures, curves, samples, checkpoints, logs.
3. Ctrl-C leaves a run that the printed command goes on with; no step is missing or done in vain.
4. Another configuration is refused; a damaged checkpoint falls back to the one before it.
5. What goes wrong is said in a line, and what was written stays.
6. An agent of one's own is trained by its import path; the same seed gives the same run.
"""

import asyncio
import errno
import gc
import json
import os
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import time
import warnings
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tinker_cookbook.stores.training_store import TrainingRunStore

from evert.envs.games import games
from evert.trainers.commands import train
from evert.trainers.engine.common.errors import CheckpointError
from evert.trainers.engine.embedded import embedded_engine
from evert.trainers.engine.store.checkpoints import CheckpointStore
from evert.trainers.rundir import folder as run_folder
from evert.trainers.rundir.folder import RunFolder
from evert.trainers.rundir.metrics import HELD_OUT_REWARD
from evert.trainers.system import files
from evert.trainers.system.command import INTERRUPTED

SMALL = ["env=identity", "device=cpu", "batch_size=4", "group_size=4", "samples=2"]
"""A run of the shipped base that takes seconds."""

NO_SOCKETS = """
import runpy, socket, sys

def refuse(self, address, *rest):
    raise SystemExit(f"a socket was opened to {address}")

socket.socket.connect = socket.socket.connect_ex = refuse
sys.argv = ["train", *sys.argv[1:]]
runpy.run_module("evert.trainers.commands.train", run_name="__main__", alter_sys=True)
"""


def environment() -> dict[str, str]:
    """This process's, without anything that would change the command's course."""
    dropped = ("TINKER_", "FORCE_COLOR", "COLUMNS", "PYTHONWARNINGS")
    return {key: value for key, value in os.environ.items() if not key.startswith(dropped)}


@dataclass
class Finished:
    """A run that went through, in a process of its own."""

    done: "subprocess.CompletedProcess[str]"
    folder: RunFolder

    @property
    def result(self) -> dict[str, Any]:
        return self.folder.read_json(files.RESULT) or {}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Three steps, checkpoints kept at every one, sockets forbidden."""
    home = tmp_path_factory.mktemp("finished")
    arguments = [*SMALL, "steps=3", "save_every=1", "eval_every=2"]
    done = subprocess.run(
        [sys.executable, "-c", NO_SOCKETS, *arguments],
        cwd=home,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (folder,) = (home / "runs").iterdir()
    return Finished(done, RunFolder(folder, resumed=True))


@pytest.fixture
def copied(finished: Finished, tmp_path: Path) -> RunFolder:
    """A copy of the finished run, to do things to."""
    return RunFolder(shutil.copytree(finished.folder.path, tmp_path / "copy"), resumed=True)


def png_size(file: Path) -> tuple[int, ...]:
    """Width and height, from the header."""
    content = file.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def rewards(folder: RunFolder) -> list[float]:
    """The training reward of each step."""
    return [row["env/all/reward/total"] for row in folder.steps()]


def run(*arguments: str) -> int:
    """The command, in this process; returns its exit status."""
    return train.main(list(arguments))


# -- a run ---------------------------------------------------------------------------------------


def test_a_run_says_its_engine_its_folder_and_its_figures(finished: Finished) -> None:
    shown = finished.done.stdout
    assert "engine: embedded on cpu, 1 thread (no TINKER_API_KEY is set); evert-tiny, " in shown
    assert "step 3/3  reward " in shown
    assert "24 held-out tasks" in shown
    assert f"plot: runs/{finished.folder.path.name}/learning_curve.png" in shown


def test_nothing_but_that_is_printed_and_no_colours(finished: Finished) -> None:
    assert finished.done.stderr == ""
    assert "\x1b" not in finished.done.stdout
    assert len(finished.done.stdout.splitlines()) < 20


def test_a_run_folder_has_a_name_and_everything_in_it(finished: Finished) -> None:
    folder = finished.folder.path
    assert folder.name.startswith("identity-evert-tiny-2")
    names = {file.name for file in folder.iterdir()}
    assert names >= {
        "run.json", "config.json", "metrics.jsonl", "checkpoints.jsonl", "checkpoints",
        "before.json", "result.json", "learning_curve.png", "samples.md", "samples.jsonl",
        "logs.log",
    }  # fmt: skip
    assert not [name for name in names if name.startswith(".")]
    assert png_size(folder / "learning_curve.png") >= (600, 400)
    assert "tinker_cookbook" in (folder / "logs.log").read_text()


def test_the_result_says_what_was_reached_and_on_what(finished: Finished) -> None:
    result = finished.result
    assert (result["name"], result["steps"], result["seed"]) == ("identity", 3, 0)
    for when in ("before", "after"):
        for how in ("greedy", "temperature_1"):
            score = result["held_out"][when][how]
            assert score["episodes"] == (24 if how == "greedy" else 96)
            assert 0 <= score["low"] <= score["success"] <= score["high"] <= 1
            assert -1 <= score["reward"] <= 1
    assert result["seconds"]["total"] > result["seconds"]["training"] > 0
    assert {"evert", "tinker-cookbook", "torch", "python"} <= set(result["versions"])
    recorded = finished.folder.read_json(files.RUN) or {}
    assert recorded["settings"]["batch_size"] == 4
    assert recorded["engine"]["parameters"] > 0


def test_the_same_held_out_tasks_are_shown_before_and_after(finished: Finished) -> None:
    lines = (finished.folder.path / "samples.jsonl").read_text().splitlines()
    samples = [json.loads(line) for line in lines]
    assert [sample["task"] for sample in samples] == ["1000", "1001"]
    for sample in samples:
        for when in ("before", "after"):
            (turn,) = sample[when]["dialogue"]
            assert f"Say you are {sample['task']}." in turn["told"]
    assert "## Task 1001" in (finished.folder.path / "samples.md").read_text()


def test_held_out_scores_are_taken_when_eval_every_says(finished: Finished) -> None:
    scored = [r["step"] for r in finished.folder.steps() if HELD_OUT_REWARD in r]
    assert scored == [0, 2]


# -- going on ------------------------------------------------------------------------------------


def test_ctrl_c_leaves_a_run_that_the_printed_command_finishes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = ["env=identity", "device=cpu", "batch_size=2", "group_size=2", "eval_every=0"]
    command = [
        sys.executable,
        "-m",
        "evert.trainers.commands.train",
        *tiny,
        "steps=25",
        "log_path=run",
    ]
    folder = RunFolder(tmp_path / "run", resumed=True)
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        wait_for_steps(folder, 2, process)
        process.send_signal(signal.SIGINT)
        shown, errors = process.communicate(timeout=280)
    assert process.returncode == INTERRUPTED, errors
    assert errors == ""
    done = folder.steps_done()
    assert 0 < done < 25
    assert f"Interrupted after {done} step" in shown

    printed = shlex.split(shown.strip().splitlines()[-1])
    assert printed[:3] == list(train.PROGRAM)
    monkeypatch.chdir(tmp_path)
    assert run(*printed[3:]) == 0
    assert f"resuming after step {done} of 25" in capsys.readouterr().out
    assert [row["step"] for row in folder.steps()] == list(range(25))
    assert folder.steps_done() == 25


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
    assert [str(each.message) for each in said] == []


def wait_for_steps(folder: RunFolder, count: int, process: "subprocess.Popen[str]") -> None:
    """Until that many steps are saved."""
    deadline = time.monotonic() + 60
    while folder.steps_done() < count and process.poll() is None:
        assert time.monotonic() < deadline, "no step was done"
        time.sleep(0.02)


def test_a_finished_run_goes_on_with_more_steps(
    copied: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(f"log_path={copied.path}", "steps=4") == 0
    shown = capsys.readouterr().out
    assert "resuming after step 3 of 4" in shown
    assert "damaged" not in shown
    assert len(copied.steps()) == 4


def test_a_resumed_run_draws_what_the_whole_run_would_have_drawn(
    copied: RunFolder, tmp_path: Path
) -> None:
    schedule = ["save_every=1", "eval_every=2"]
    assert run(f"log_path={copied.path}", "steps=5") == 0
    assert run(*SMALL, "steps=5", *schedule, f"log_path={tmp_path / 'whole'}") == 0
    assert rewards(copied) == rewards(RunFolder(tmp_path / "whole", resumed=True))


def test_a_folder_in_which_another_process_trains_is_refused(
    copied: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in copied.path.iterdir()}
    with run_folder.alone_in(copied.path, "training", "log_path"):
        assert run(f"log_path={copied.path}", "steps=4") == 1
    assert "Another process is training in" in capsys.readouterr().err
    after = {file.name: file.stat().st_mtime_ns for file in copied.path.iterdir()}
    assert before.items() <= after.items()
    assert run(f"log_path={copied.path}", "steps=4") == 0


def test_another_configuration_is_refused_and_nothing_changed(
    finished: Finished, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(finished.folder.path.rglob("*"))
    path = f"log_path={finished.folder.path}"
    assert run(*SMALL, path, "learning_rate=0.5", "batch_size=8") == 1
    message = capsys.readouterr().err
    assert "batch_size: 4 -> 8" in message
    assert f"learning_rate: {games()['identity'].recipe['learning_rate']} -> 0.5" in message
    assert "choose another log_path" in message
    assert sorted(finished.folder.path.rglob("*")) == before


def test_a_damaged_checkpoint_falls_back_to_the_one_before(
    copied: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in copied.path.glob("checkpoints/*/weights/final/*.safetensors"):
        file.write_bytes(file.read_bytes()[:1000])
    for file in copied.path.glob("checkpoints/*/weights/000003/*.safetensors"):
        file.write_bytes(b"")
    assert run(f"log_path={copied.path}", "steps=4") == 0
    said = "the newest checkpoint is damaged or gone: resuming after step 2"
    assert said in capsys.readouterr().out
    assert len(copied.steps()) == 4


def test_a_list_of_checkpoints_cut_off_by_a_crash_is_used_up_to_there(
    copied: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = copied.path / "checkpoints.jsonl"
    lines = listed.read_text().splitlines()
    cut = next(number for number, line in enumerate(lines) if '"batch": 3' in line)
    listed.write_text("\n".join(lines[:cut]) + "\n" + lines[cut][:40])
    assert run(f"log_path={copied.path}") == 0
    assert "damaged or gone: resuming after step 2" in capsys.readouterr().out
    assert listed.with_suffix(".jsonl.broken").exists()


# -- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["env=identiy"], "Did you mean env=identity?"),
        (["env=identity", "stepz=3"], "Did you mean 'steps'?"),
        (["env=identity", "steps=many"], "steps takes a whole number, got 'many'"),
        (["env=identity", "learning_rate=fast"], "learning_rate takes a number, got 'fast'"),
        (["env=identity", "seed=9999999999999"], "seed must be between -2**32 and 2**32"),
        (["env=identity", "renderer_name=nope"], "renderer_name=nope is none of the Cookbook's"),
        (["env=identity", "limits.max_turns=-3"], "limits.max_turns must be a positive value"),
        (["env=identity", "learning_rate=nan"], "learning_rate takes a finite number, got nan"),
        (["env=identity", "learning_rate=-1"], "learning_rate must be above 0, got -1.0"),
        (["env=identity", "loss_fn=mse"], "loss_fn takes cross_entropy or importance_sampling"),
        (
            ["identity"],
            "Got 'identity'; settings are given as key=value. Did you mean env=identity",
        ),
        (["--env", "identity"], "Got '--env'; settings are given as key=value. Did you mean env="),
        (["env=identity", "device=gpu"], "device takes auto, cpu, cuda"),
        (["env=identity", "device=cuda:99"], "device=cuda:99: PyTorch sees"),
        (["env=identity", "model_name=/nowhere"], "No folder '/nowhere' exists"),
        (["env=identity", "cookbook.temperature=hot"], "cookbook.temperature takes a number"),
        (["env=identity", "cookbook.temprature=1"], "no setting 'cookbook.temprature'. Did you"),
        (
            ["env=identity", "cookbook.max_steps=1"],
            "cookbook.max_steps is set by evert's own steps=",
        ),
        (["env=identity", "log_path=nowhere", "model_name=runs/nope"], "model_name=runs/nope is"),
        (["log_path=nowhere"], "No agent to train. log_path=nowhere holds no run to go on with."),
        (["env=identity", "engine=service"], "TINKER_API_KEY is not set"),
        (["env=identity", "model_name=./nowhere"], "./nowhere"),
        (["agent=nowhere:a", "train_tasks=nowhere:T"], "No agent at 'nowhere:a'"),
    ],
)
def test_a_mistake_is_a_line_and_leaves_no_folder(
    arguments: Sequence[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    assert run(*arguments) == 1
    shown = capsys.readouterr().err
    assert shown.startswith("error: ")
    assert message in shown
    assert "Traceback" not in shown
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_to_is_a_clear_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("kept")
    assert run(*SMALL, f"log_path={tmp_path / 'file' / 'run'}") == 1
    assert "cannot be written to: Not a directory" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "kept"


def test_a_full_disk_is_a_clear_error_and_the_run_goes_on_later(
    copied: RunFolder, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRunStore, "write_metrics", full)
        assert run(f"log_path={copied.path}", "steps=4") == 1
    message = capsys.readouterr().err
    assert "cannot be written to: No space left on device" in message
    assert "To resume: python -m evert.trainers.commands.train" in message
    assert len(copied.steps()) == 3
    assert run(f"log_path={copied.path}", "steps=5") == 0
    assert copied.steps_done() == 5


def test_a_checkpoint_that_cannot_be_written_is_an_error_without_a_traceback(
    copied: RunFolder, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: CheckpointStore, run_id: str, kind: str, name: str, *_: Any, **__: Any) -> str:
        raise CheckpointError(f"Could not write {kind}/{name}: No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "save", full)
        assert run(f"log_path={copied.path}", "steps=6", "save_every=5") == 1
    gc.collect()
    message = capfd.readouterr().err
    assert "error: Could not write" in message
    assert "To resume: python -m evert.trainers.commands.train" in message
    assert "Traceback" not in message


# -- agents of one's own -------------------------------------------------------------------------

OWN_AGENT = '''
"""Say a word with an e in it."""

TASKS = ["tree", "river", "sea"]


def agent(client, task):
    """Blocking, as most agents are."""
    answer = client.chat.completions.create(messages=[{"role": "user", "content": task}])
    return "e" in (answer.choices[0].message.content or "")


async def broken(client, task):
    """Asks, and falls over."""
    await client.chat.completions.create(messages=[{"role": "user", "content": task}])
    raise KeyError("the mistake")
'''


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A module of the user's in the working directory, and arguments to train on it."""
    (tmp_path / "words_game.py").write_text(OWN_AGENT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("TINKER_API_KEY", raising=False)
    monkeypatch.delitem(sys.modules, "words_game", raising=False)
    sizes = ["device=cpu", "steps=2", "batch_size=2", "group_size=2", "max_tokens=8"]
    return ["train_tasks=words_game:TASKS", "log_path=run", *sizes]


def test_an_agent_of_ones_own_is_trained_by_its_import_path(
    own: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("agent=words_game:agent", *own) == 0
    folder = RunFolder(Path("run"), resumed=True)
    assert len(folder.steps()) == 2
    result = folder.read_json(files.RESULT) or {}
    assert result["name"] == "agent"
    assert result["held_out"] == {"before": None, "after": None}
    assert "held-out" not in capsys.readouterr().out


def test_an_agent_that_raises_shows_its_own_traceback(
    own: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("agent=words_game:broken", *own) == 1
    shown, message = capsys.readouterr()
    assert 'words_game.py", line ' in shown
    assert "KeyError: 'the mistake'" in message


def test_a_service_is_trained_on_in_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TINKER_API_KEY", "tml-dummy")
    # The embedded engine stands in for the service: it is already in place of the SDK's clients.
    service = ["engine=service", "base_url=http://service.invalid", f"log_path={tmp_path / 'run'}"]
    with embedded_engine(tmp_path / "store", device="cpu"):
        assert run(*SMALL, *service, "steps=1") == 0
    assert "engine: http://service.invalid (TINKER_API_KEY is set)" in capsys.readouterr().out
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_the_same_seed_gives_the_same_run_and_another_does_not(tmp_path: Path) -> None:
    folders = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert run(*SMALL, "steps=2", f"seed={seed}", f"log_path={tmp_path / name}") == 0
        folders.append(RunFolder(tmp_path / name, resumed=True))
    first, again, other = folders
    assert rewards(first) == rewards(again)
    assert rewards(first) != rewards(other)
    scores = [(folder.read_json(files.RESULT) or {})["held_out"] for folder in folders]
    assert scores[0] == scores[1]
