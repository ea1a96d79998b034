"""Sweeps with real runs that are killed, resumed, interrupted or refused."""

import csv
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import chdir, contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import optuna
import psutil
import pytest
from optuna.storages.journal import JournalFileBackend
from tests.kit import Patch, Shown
from tests.trainers.kit import environment

from evert.trainers import cli
from evert.trainers.commands import sweep, train
from evert.trainers.commands.sweep import open_sweep
from evert.trainers.rundir.folder import RunFolder, alone_in
from evert.trainers.system.command import INTERRUPTED
from evert.trainers.system.files import RESULT

TASKS = '''
TEST = [1001, 1002]


async def broken(client, task):
    """Asks, and falls over."""
    await client.chat.completions.create(messages=[{"role": "user", "content": str(task)}])
    raise KeyError("the mistake")
'''
"""A user's module in the working directory."""

SMALL = [
    "env=identity", "test_tasks=few:TEST", "device=cpu", "batch_size=2", "eval_every=0",
    "samples=0",
]  # fmt: skip
KILLED = (1, 3)
"""The first of these runs is killed before it starts, the second after its first step."""
RUNS = 4


@contextmanager
def sweeping(home: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    """Run the sweep in a subprocess, and kill it and its runs at the end of the block."""
    (home / "few.py").write_text(TASKS)
    with subprocess.Popen(
        [sys.executable, "-m", "evert.trainers.cli", "sweep", *arguments],
        cwd=home, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def process_of(run: int, process: "subprocess.Popen[str]") -> psutil.Process | None:
    """Find the process of a run by its output file. Returns None if there is no such process."""
    with suppress(psutil.Error):
        for child in psutil.Process(process.pid).children(recursive=True):
            with suppress(psutil.Error):
                if any(f"output/{run:03}.txt" in file.path for file in child.open_files()):
                    return child
    return None


def wait_until(ready: Callable[[], object], process: "subprocess.Popen[str] | None" = None) -> None:
    """Wait until ``ready()`` is true. Fails on a timeout, or if the process exits first."""
    deadline = time.monotonic() + 800
    while not ready():
        assert time.monotonic() < deadline, "it never came"
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.01)


def folder_of(run: int, folder: Path) -> RunFolder:
    """Return a run's folder, which may not exist yet."""
    found = list((folder / "runs").glob(f"{run:03}-*"))
    return RunFolder(found[0] if found else folder / "none")


def rows_of(folder: Path) -> dict[int, dict[str, str]]:
    """Return the rows of ``results.csv``, keyed by run."""
    with (folder / "results.csv").open(newline="") as file:
        return {int(row["run"]): row for row in csv.DictReader(file)}


@dataclass
class Swept:
    """A finished sweep of four runs, two of which were killed."""

    folder: Path
    status: int
    shown: str
    errors: str
    rows: dict[int, dict[str, str]]


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Swept:
    """Run a sweep to its end."""
    home = tmp_path_factory.mktemp("swept")
    searched = ["learning_rate=1e-4,1e-3", "seed=0,1"]
    with sweeping(
        home, *SMALL, "group_size=2", "steps=2", *searched, "parallel=2", "out=s"
    ) as process:
        wait_until(lambda: process_of(KILLED[0], process), process)
        first = process_of(KILLED[0], process)
        assert first is not None
        first.kill()
        wait_until(lambda: folder_of(KILLED[1], home / "s").steps_done() == 1, process)
        second = process_of(KILLED[1], process)
        assert second is not None
        second.kill()
        shown, errors = process.communicate(timeout=800)
    return Swept(home / "s", process.returncode, shown, errors, rows_of(home / "s"))


@pytest.fixture(scope="module")
def resumed(swept: Swept) -> Swept:
    """Resume the sweep with the command that it printed."""
    assert swept.status == 1
    printed = shlex.split(swept.shown.strip().splitlines()[-1])
    assert printed[:2] == ["evert", "sweep"]
    shown, errors = io.StringIO(), io.StringIO()
    with chdir(swept.folder.parent), redirect_stdout(shown), redirect_stderr(errors):
        before = [*sys.path]
        try:
            status = sweep.main(printed[2:])
        finally:
            sys.path[:] = before
            sys.modules.pop("few", None)
    text = shown.getvalue()
    return Swept(swept.folder, status, text, errors.getvalue(), rows_of(swept.folder))


def test_killed_runs_are_marked_and_the_sweep_continues_with_other_values(swept: Swept) -> None:
    assert swept.errors == ""
    assert sorted(swept.rows) == list(range(RUNS))
    for number, row in swept.rows.items():
        killed = number in KILLED
        assert row["status"] == ("failed" if killed else "completed"), row
        assert (row["objective"] == "") is killed
        assert row["error"].startswith("killed by SIGKILL") is killed
    keys = ("learning_rate", "seed")
    assert len({tuple(row[key] for key in keys) for row in swept.rows.values()}) == RUNS
    settings = (folder_of(0, swept.folder).read_json("run.json") or {})["settings"]
    assert [str(settings[key]) for key in keys] == [swept.rows[0][key] for key in keys]
    assert "\x1b" not in swept.shown
    assert f"run {KILLED[0]} failed in " in swept.shown
    assert "┃ run ┃ learning_rate ┃ seed ┃ objective ┃" in swept.shown
    assert swept.shown.strip().endswith("evert sweep out=s")


def test_resuming_completes_only_the_failed_runs_from_their_checkpoints(
    swept: Swept, resumed: Swept
) -> None:
    assert (resumed.status, resumed.errors) == (0, "")
    assert sorted(resumed.rows) == list(range(RUNS))
    for number, row in resumed.rows.items():
        if number in KILLED:
            assert (row["status"], row["attempts"]) == ("completed", "2")
            assert row["history"] == "failed > completed"
            assert row["objective"] != ""
        else:
            same = row.keys() - {
                "mean",
                "low",
                "high",
            }  # they summarize all runs with these values, and one of the runs is new
            assert [row[key] for key in same] == [swept.rows[number][key] for key in same]
    assert resumed.shown.count(" completed ") >= 2
    assert "run 0 completed" not in resumed.shown
    printed = (resumed.folder / "output" / f"{KILLED[1]:03}.txt").read_text()
    assert "resuming after step 1 of 2" in printed
    assert [row["step"] for row in folder_of(KILLED[1], resumed.folder).steps()] == [0, 1]


def test_the_best_values_are_printed_as_a_command_that_trains(resumed: Swept) -> None:
    content = json.loads((resumed.folder / "results.json").read_text())
    best = content["best"]
    first = resumed.rows[best["runs"][0]]
    assert float(first["low"]) == max(float(row["low"]) for row in resumed.rows.values())
    scores = [float(resumed.rows[number]["objective"]) for number in best["runs"]]
    assert best["mean"] == pytest.approx(sum(scores) / 2)
    result = folder_of(best["runs"][0], resumed.folder).read_json(RESULT) or {}
    assert result["held_out"]["after"]["temperature_1"]["reward"] == scores[0]
    chosen = train.parse(shlex.split(best["command"])[2:])
    assert (chosen.learning_rate, chosen.steps) == (float(first["learning_rate"]), 2)
    assert "┃ run ┃ learning_rate ┃ seed ┃ objective ┃ mean " in resumed.shown
    assert "over 2 seeds (ranked by the lower bound" in resumed.shown
    assert resumed.shown.strip().endswith(best["command"])
    assert (resumed.folder / "parallel_coordinates.png").stat().st_size > 10_000


def test_the_folder_documents_the_sweep_and_optuna_can_read_its_journal(resumed: Swept) -> None:
    about = json.loads((resumed.folder / "sweep.json").read_text())
    assert about["arguments"]["learning_rate"] == "1e-4,1e-3"
    assert "parallel" not in about["arguments"]
    assert {"command", "versions", "git", "machine"} <= about.keys()
    backend = JournalFileBackend(str(resumed.folder / "journal.log"))
    study = optuna.load_study(study_name="sweep", storage=optuna.storages.JournalStorage(backend))
    assert len(study.trials) == RUNS + len(KILLED)
    assert study.best_value == max(float(row["objective"]) for row in resumed.rows.values())


def test_no_run_outlives_a_killed_sweep_and_ctrl_c_says_how_to_resume(
    tmp_path: Path, monkeypatch: Patch, capfd: pytest.CaptureFixture[str]
) -> None:
    long = [*SMALL, "group_size=2", "steps=500", "seed=0,1", "parallel=1", "out=s"]
    with sweeping(tmp_path, *long) as process:
        wait_until(lambda: folder_of(0, tmp_path / "s").steps_done() >= 1, process)
        orphan = process_of(0, process)
        process.kill()
    assert orphan is not None
    wait_until(lambda: not orphan.is_running())
    done = folder_of(0, tmp_path / "s").steps_done()
    assert done >= 1

    def interrupt() -> None:
        wait_until(lambda: folder_of(0, tmp_path / "s").steps_done() > done)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "few", raising=False)
    waiting = threading.Thread(target=interrupt, daemon=True)
    waiting.start()
    assert sweep.main(["out=s"]) == INTERRUPTED
    waiting.join()
    shown, errors = capfd.readouterr()
    assert errors == ""
    assert "Interrupted after 0 of 2 runs. To resume:" in shown
    assert shown.strip().endswith("evert sweep out=s")
    row = rows_of(tmp_path / "s")[0]
    assert (row["status"], row["history"]) == ("interrupted", "interrupted > interrupted")
    assert float(row["seconds"]) > 0
    printed = (tmp_path / "s" / "output" / "000.txt").read_text()
    assert printed.count("which are saved in") == 2
    assert f"resuming after step {done} of 500" in printed


@pytest.mark.nightly
def test_a_sweep_that_is_stopped_while_its_runs_start_says_how_to_resume(tmp_path: Path) -> None:
    with sweeping(tmp_path, *SMALL, "steps=500", "seed=0,1", "parallel=2", "out=s") as process:
        wait_until((tmp_path / "s" / "output" / "001.txt").exists, process)
        process.terminate()
        shown, errors = process.communicate(timeout=800)
    assert (process.returncode, errors) == (INTERRUPTED, "")
    assert "Interrupted after 0 of 2 runs. To resume:" in shown
    assert {row["history"] for row in rows_of(tmp_path / "s").values()} == {"interrupted"}


def test_a_failed_run_appears_in_the_results(
    tmp_path: Path, monkeypatch: Patch, capsys: Shown
) -> None:
    (tmp_path / "few.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "few", raising=False)
    sizes = ["device=cpu", "steps=1", "batch_size=2", "group_size=2", "max_tokens=8", "samples=0"]
    # With failed_steps=0 the run completes, but does not have this metric.
    searched = ["failed_steps=3,0", "objective=charm", "parallel=2", "out=s"]
    agent = ["agent=few:broken", "train_tasks=few:TEST"]
    assert sweep.main([*agent, *sizes, *searched]) == 1
    errors = {row["failed_steps"]: row["error"] for row in rows_of(Path("s")).values()}
    assert "nearly all episodes failed" in errors["3"]
    assert "The most common failure: KeyError: 'the mistake'" in errors["3"]
    assert "the run's 'charm' is None, not a finite number; available: step, " in errors["0"]
    shown = capsys.readouterr().out
    assert shown.count(" failed in ") == 2
    assert "(error: In one step, nearly all episodes failed" in shown
    assert "(To resume: " not in shown
    assert "best:" not in shown
    assert "To retry the failed runs:" in shown


WHOLE = {"env": "identity", "steps": "1", "learning_rate": "1e-4..1e-2", "trials": "3"}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: Patch) -> Path:
    """Create a working directory with a sweep that has not started."""
    monkeypatch.chdir(tmp_path)
    open_sweep({**WHOLE, "out": "s", "parallel": "3"}, ["evert", "sweep"])
    return tmp_path


def test_a_folder_that_is_in_use_or_holds_another_sweep_is_refused(
    home: Path, capsys: Shown
) -> None:
    before = sorted(home.rglob("*"))
    for searched in ("seed=0,1", "steps=2 learning_rate=1e-4..1e-2"):
        assert sweep.main(["env=identity", *searched.split(), "out=s"]) == 1
        assert "s contains a different sweep:\n  env=identity steps=1" in capsys.readouterr().err
    assert sorted(home.rglob("*")) == before
    with alone_in(home / "s", "sweeping", "out"):
        assert sweep.main(["out=s"]) == 1
    assert "Another process is sweeping in s" in capsys.readouterr().err


def test_a_sweep_is_resumed_by_its_folder_and_may_get_more_trials(home: Path) -> None:
    for given in ({}, WHOLE, {"parallel": "1"}):
        _, plan = open_sweep({**given, "out": "s"}, ())
        assert plan.trials == 3
    for given in ({"trials": "5"}, {}):
        assert open_sweep({**given, "out": "s"}, ())[1].trials == 5


def test_a_new_sweep_ignores_a_folder_named_none(home: Path) -> None:
    (home / "s").rename("none")
    folder, plan = open_sweep({**WHOLE, "steps": "2"}, ())
    assert (folder.path.parent.name, plan.fixed["steps"]) == ("sweeps", "2")


def test_a_sweep_without_any_run_writes_no_table(home: Path) -> None:
    sweep.Sweep(*open_sweep({"out": "s"}, ())).report()
    assert json.loads((home / "s" / "results.json").read_text())["runs"] == []
    assert not (home / "s" / "results.csv").exists()


def test_without_optuna_a_sweep_says_what_to_install(monkeypatch: Patch, capsys: Shown) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in [name for name in sys.modules if "evert.trainers" in name and "sweep" in name]:
        monkeypatch.delitem(sys.modules, name)
    assert cli.main(["sweep", "env=identity", "seed=0,1"]) == 1
    assert "Install it with pip install optuna" in capsys.readouterr().err
