"""``benchmarks/learning.py``: it saves what it measured, and a failed run fails it."""

import importlib.util
import json
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from evert.trainers.config.fields import RecipeError


@pytest.fixture
def learning() -> ModuleType:
    """The script, as a module."""
    script = Path(__file__).parents[2] / "benchmarks" / "learning.py"
    found = importlib.util.spec_from_file_location("learning", script)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


def result(seed: int, before: float, after: float, folder: Path) -> dict[str, Any]:
    """What a run returns."""
    scores = [
        {how: {"reward": mean} for how in ("greedy", "temperature_1")} for mean in (before, after)
    ]
    return {
        "seed": seed,
        "steps": 3,
        "held_out": {"before": scores[0], "after": scores[1]},
        "seconds": {"total": 10.0},
        "folder": str(folder),
    }


@pytest.mark.nightly
def test_a_quick_benchmark_saves_its_figures(
    learning: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--quick", "--games", "identity", "--seeds", "1", "--out", str(tmp_path)]
    assert learning.main(quick) == 0
    assert "at T = 1" in capsys.readouterr().out
    saved = json.loads((tmp_path / "learning.json").read_text())
    assert saved["machine"]["cpus"]
    assert [run["steps"] for run in saved["runs"]["identity"]] == [learning.QUICK_STEPS]
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")


def test_a_failed_run_fails_the_benchmark_and_the_others_are_saved(
    learning: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(*, seed: int, **values: Any) -> SimpleNamespace:
        if seed == 0:
            raise RecipeError("it broke")
        return SimpleNamespace(result=result(seed, 0.0, 1.0, tmp_path))

    monkeypatch.setattr(learning, "train", train)
    assert learning.main(["--games", "identity", "--seeds", "2", "--out", str(tmp_path)]) == 1
    assert "FAILED identity, seed 0: RecipeError: it broke" in capsys.readouterr().err
    assert len(json.loads((tmp_path / "learning.json").read_text())["runs"]["identity"]) == 1


def test_a_run_that_learned_nothing_fails_the_benchmark(
    learning: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def train(*, seed: int, **values: Any) -> SimpleNamespace:
        return SimpleNamespace(result=result(seed, 0.5, 0.5, tmp_path))

    monkeypatch.setattr(learning, "train", train)
    assert learning.main(["--games", "identity", "--seeds", "1", "--out", str(tmp_path)]) == 1
    assert "no better after training than before" in capsys.readouterr().err
