"""``evert doctor`` lists packages that are installed, missing, or newer than the tested ones."""

import importlib.metadata
import re
from pathlib import Path

import torch
from tests.kit import Patch, Shown

from evert.trainers.commands import doctor


def test_the_tested_versions_come_from_the_constraints_file() -> None:
    pinned = dict(
        re.findall(r"^([\w-]+)==(.+)$", Path("constraints.txt").read_text(), re.MULTILINE)
    )
    [newest] = re.findall(r"^COOKBOOK [?:]?= (.+)$", Path("Makefile").read_text(), re.MULTILINE)
    assert {
        name: newest if name == "tinker-cookbook" else pinned[name] for name in doctor.TESTED
    } == doctor.TESTED


def test_missing_and_newer_packages_are_listed(monkeypatch: Patch, capsys: Shown) -> None:
    def version(name: str) -> str:
        if name in ("peft", "optuna"):
            raise importlib.metadata.PackageNotFoundError(name)
        return {"openai": "4.0.0", "torch": "2.13.0+cu128"}.get(name, real(name))

    real = importlib.metadata.version
    monkeypatch.setattr(doctor, "version", version)
    assert doctor.main([]) == 0
    lines = {line[:16].strip(): line[17:] for line in capsys.readouterr().out.splitlines()}
    assert lines["openai"] == "4.0.0  (newer than 3.57.0, the latest tested version)"
    assert lines["peft"] == "missing  (pip install peft)"
    assert lines["torch"] == "2.13.0+cu128"
    assert "sweep" in lines["not installed"]
    assert lines["device=auto"].startswith(("cpu", "cuda", "mps"))
    assert {"evert", "python", "sandbox", "engine=auto"} <= lines.keys()


def test_doctor_warns_that_apple_gpus_are_untested(monkeypatch: Patch, capsys: Shown) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert doctor.main([]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "device=auto" in line]
    assert line.split(maxsplit=2)[1:] == [
        "mps", "(Apple GPU; tested with a simulated device, not on real hardware)"
    ]  # fmt: skip
