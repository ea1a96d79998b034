"""Models are data: loading a model folder never runs code from it, however it is loaded."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from tests.faults.model_folders import (
    LOADED,
    OWN_TOKENIZER,
    RAN,
    ROWS,
    TOKENIZER,
    Row,
    evaluating,
    to_evert_evaluate,
)
from tests.faults.scene import is_as
from tests.kit import Logs, Patch
from tinker_cookbook import tokenizer_utils

from evert.bridge.tokens import pretrained
from evert.bridge.tokens.bases import base_path


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: Patch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(tokenizer_utils, "_CUSTOM_TOKENIZER_REGISTRY", {})
    monkeypatch.delenv(pretrained.TRUST, raising=False)
    return Path(shutil.copytree(base_path(), tmp_path / "model"))


def result_of(row: Row, folder: Path) -> str:
    row.change(folder)
    try:
        row.way(str(folder))
    except Exception as error:
        return str(error).replace(str(folder), "FOLDER")
    return LOADED


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_folder_runs_no_code_and_is_loaded_or_rejected(row: Row, folder: Path) -> None:
    saw = result_of(row, folder)

    assert is_as(saw, row.says), f"\n  saw      {saw:.2000}\n  expected {row.says}"
    assert not [*folder.parent.rglob(RAN)]


def test_trusted_code_runs_and_is_logged_and_recorded(folder: Path, caplog: Logs) -> None:
    OWN_TOKENIZER(folder)
    evaluating(str(folder), f"models={folder}", "trust_remote_code=True")

    assert (folder / RAN).exists()
    assert "trust_remote_code=True: Python code that comes with a model will run" in caplog.text
    record = Path(f"{folder}-evaluation") / "evaluation.json"
    assert json.loads(record.read_text())["settings"]["trust_remote_code"] is True
    assert pretrained.TRUST not in os.environ

    (folder / RAN).unlink()
    tokenizer_utils._CUSTOM_TOKENIZER_REGISTRY.clear()
    with pytest.raises(RuntimeError, match="trust_remote_code=True"):
        evaluating(str(folder), "seeds=2")  # continues the same evaluation from its record
    assert not (folder / RAN).exists()


def test_a_command_ignores_the_shells_trust_variable(folder: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv(pretrained.TRUST, "1")
    saw = result_of(
        Row("a tokenizer of its own", OWN_TOKENIZER, to_evert_evaluate, TOKENIZER), folder
    )

    assert is_as(saw, TOKENIZER)
    assert not (folder / RAN).exists()
    assert os.environ[pretrained.TRUST] == "1"
