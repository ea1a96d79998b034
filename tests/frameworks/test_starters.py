"""Folders created by ``evert init`` for SDKs that are in these environments."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from evert.trainers import cli


@pytest.mark.parametrize(
    ("kind", "module"), [("openai-agents", "agents"), ("langgraph", "langgraph")]
)
def test_the_test_of_a_new_folder_passes(kind: str, module: str, tmp_path: Path) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is in another environment")
    assert cli.main(["init", f"{tmp_path}/new", "--agent", kind]) == 0
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path / "new", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout
