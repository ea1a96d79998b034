"""``benchmarks/trainers.py``: one table of several trainers, and a run that fails fails it."""

import json
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from benchmarks import trainers

from evert.trainers.reporting.figures.metrics import Curve


def curve(*scores: float) -> Curve:
    return Curve([*range(len(scores))], [2.0 * (n + 1) for n in range(len(scores))], [*scores])


def test_a_quick_benchmark_saves_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = tmp_path / "docs.png"
    options = ["--quick", "--only", "cookbook", "--out", str(tmp_path), "--figure", str(figure)]

    assert trainers.main(options) == 0

    assert "cookbook" in capsys.readouterr().out
    saved = json.loads((tmp_path / "trainers.json").read_text())
    assert saved["machine"]["cpus"]
    [run] = saved["runs"]["cookbook"]
    assert len(run["scores"]) == trainers.QUICK_STEPS
    assert figure.read_bytes().startswith(b"\x89PNG")


def test_each_trainer_has_a_line_and_one_that_ends_too_low_fails(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> Curve:
        raise RuntimeError("it broke")

    monkeypatch.setitem(trainers.TRAINERS, "cookbook", lambda *_: curve(0, *[1.0] * 5))
    monkeypatch.setitem(trainers.TRAINERS, "verl", lambda *_: curve(0, *[0.94] * 5))
    monkeypatch.setitem(trainers.TRAINERS, "trl", broken)

    assert trainers.main(["--out", str(tmp_path)]) == 1

    output = capsys.readouterr()
    assert "1.000" in output.out
    assert "0.940" in output.out
    assert "2.0" in output.out  # seconds a step
    failed = [line for line in output.err.splitlines() if line.startswith("FAILED")]
    assert failed == [
        "FAILED verl, seed 0: ends at 0.940, below 0.95",
        "FAILED trl, seed 0: RuntimeError: it broke",
    ]


def test_a_log_becomes_a_curve() -> None:
    trl = [
        {"reward": 0.5, "step_time": 2.0, "loss": 1.0},
        {"reward": 0.75, "step_time": 3.0},
        {"train_runtime": 5.0},
    ]
    verl = [{"critic/score/mean": 0.25, "timing_s/step": 6.0}]

    assert trainers.curve_of(trl, *trainers.TRL) == Curve([1, 2], [2.0, 5.0], [0.5, 0.75])
    assert trainers.curve_of(verl, *trainers.VERL) == Curve([1], [6.0], [0.25])


def test_a_process_that_fails_or_has_no_environment_is_an_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "PYTHON", Path(sys.executable))
    with pytest.raises(trainers.RunError, match=r"(?s)ended with code 1.*ValueError: no GPU"):
        trainers.run(tmp_path, sys.executable, "-c", "raise ValueError('no GPU')")
    monkeypatch.setattr(trainers, "PYTHON", trainers.ROOT / "nowhere" / "python")
    with pytest.raises(trainers.RunError, match="make_environment.py trainers"):
        trainers.run(tmp_path, sys.executable, "-c", "")


def test_nothing_of_a_process_that_takes_too_long_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainers, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(trainers, "LONGEST", 3.0)
    child = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"
    code = (
        "import subprocess, sys; "
        f"print(subprocess.Popen([sys.executable, '-c', {child!r}]).pid, flush=True); "
        "sys.stdin.read(); import time; time.sleep(120)"
    )

    with pytest.raises(trainers.RunError, match="It took over 3 s"):
        trainers.run(tmp_path, sys.executable, "-c", code)

    pid, deadline = int((tmp_path / "output.log").read_text()), time.monotonic() + 30
    with suppress(psutil.NoSuchProcess):
        child_of_it = psutil.Process(pid)
        while child_of_it.status() != psutil.STATUS_ZOMBIE:  # one that nobody waits for may stay
            assert time.monotonic() < deadline
            time.sleep(0.01)
