"""``benchmarks/learning.py``: it saves what it measured, and a failed run fails it."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks import learning

from evert.trainers.config.fields import RecipeError


def result(seed: int, before: float, after: float) -> dict[str, Any]:
    """What a run returns."""
    held_out = {
        when: {how: {"reward": mean} for how in ("greedy", "temperature_1")}
        for when, mean in (("before", before), ("after", after))
    }
    seconds = {"total": 10.0}
    return {"seed": seed, "steps": 3, "held_out": held_out, "seconds": seconds, "folder": ""}


@pytest.mark.nightly
def test_a_quick_benchmark_saves_its_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = ["--quick", "--games", "identity", "--seeds", "1", "--out", str(tmp_path)]
    assert learning.main(quick) == 0
    assert "at T = 1" in capsys.readouterr().out
    saved = json.loads((tmp_path / "learning.json").read_text())
    assert saved["machine"]["cpus"]
    assert [run["steps"] for run in saved["runs"]["identity"]] == [learning.QUICK_STEPS]
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")


def test_a_run_that_failed_or_learned_nothing_fails_the_benchmark_and_the_others_are_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def train(*, seed: int, **values: Any) -> SimpleNamespace:
        if seed == 0:
            raise RecipeError("it broke")
        return SimpleNamespace(result=result(seed, 0.5, 1.0 if seed == 1 else 0.5))

    monkeypatch.setattr(learning, "train", train)
    assert learning.main(["--games", "identity", "--seeds", "3", "--out", str(tmp_path)]) == 1
    failed = [line for line in capsys.readouterr().err.splitlines() if line.startswith("FAILED")]
    assert failed == [
        "FAILED identity, seed 0: RecipeError: it broke",
        "FAILED identity, seed 2: no better after training than before",
    ]
    assert len(json.loads((tmp_path / "learning.json").read_text())["runs"]["identity"]) == 2
