"""``evert init``: the folders that it makes work."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from tests.trainers.conftest import Shown

from evert.trainers import cli
from evert.trainers.commands import init, play, train
from evert.trainers.config.evaluate import read_evaluate_settings


def python(folder: Path, *arguments: str) -> str:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


RUN, COMPILE = ["pytest", "-p", "no:cacheprovider"], ["compileall", "."]
"""What is done with a folder's test; tests/frameworks runs those that need another environment."""


@pytest.mark.parametrize(
    ("kind", "done"),
    [
        ("openai", RUN),
        ("anthropic", RUN),
        ("command", RUN),
        ("openai-agents", COMPILE),
        ("langgraph", COMPILE),
    ],
)
def test_the_test_of_a_new_folder_passes(kind: str, done: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "my agent"
    assert cli.main(["init", str(folder), "--agent", kind]) == 0
    assert python(folder, "-m", *done)


def test_the_commands_of_the_readme_are_read_and_train(tmp_path: Path, capsys: Shown) -> None:
    assert cli.main(["init", f"{tmp_path}/new"]) == 0
    lines = (tmp_path / "new" / "README.md").read_text().splitlines()
    assert len(lines) <= 10
    commands = [line.strip() for line in lines if line.startswith("    ")]
    assert [*map(str.strip, capsys.readouterr().out.splitlines())][-len(commands) - 1 : -1] == (
        commands
    )
    typed = {words[1]: words[2:] for words in map(shlex.split, commands) if words[0] == "evert"}
    assert [*typed] == ["play", "train", "evaluate", "view"]
    assert play.parse(typed["play"]).model == "me"
    assert train.parse(typed["train"])
    assert read_evaluate_settings(dict(word.split("=", 1) for word in typed["evaluate"]))
    few = ["steps=1", "batch_size=2", "group_size=2", "device=cpu", "record=0"]
    python(tmp_path / "new", "-m", "evert", "train", *typed["train"], *few)
    assert (tmp_path / "new" / "runs" / "first" / "result.json").exists()


def test_a_folder_with_files_and_an_unknown_kind_are_refused(tmp_path: Path, capsys: Shown) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("")
    for arguments, message in (
        (["there"], "there exists already, and is not an empty folder. Nothing was changed."),
        (["there/mine"], "there/mine exists already"),
        (["new", "--agent", "crewai"], "agent takes openai or openai-agents or "),
        (["new", "--agent"], "Did you mean agent=...?"),
    ):
        path = [f"{tmp_path}/{arguments[0]}", *arguments[1:]]
        assert cli.main(["init", *path]) == 1
        assert message in capsys.readouterr().err
    assert [file.name for file in tmp_path.rglob("*")] == ["there", "mine"]
    assert init.parse([]) == init.parse(["my-agent", "--agent=openai"])
