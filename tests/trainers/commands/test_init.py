"""The folders created by ``evert init`` work."""

import shlex
from pathlib import Path

import pytest
from tests.kit import Shown
from tests.nightly import each
from tests.trainers.kit import Cli, run_python

from evert.trainers import cli
from evert.trainers.commands import init, play, train
from evert.trainers.config.evaluate import read_evaluate_settings

RUN, COMPILE = ["pytest", "-p", "no:cacheprovider"], ["compileall", "."]
CHECKS = {
    **dict.fromkeys(("openai", "anthropic", "command"), RUN),
    **dict.fromkeys(("openai-agents", "langgraph"), COMPILE),
}
"""Agent type -> how to check a new folder. ``tests/frameworks`` runs what is only compiled here."""


@pytest.mark.parametrize("kind", each([*CHECKS], by_day=("openai", "openai-agents", "langgraph")))
def test_the_test_of_a_new_folder_passes(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "my agent"
    assert cli.main(["init", str(folder), "--agent", kind]) == 0
    assert run_python("-m", *CHECKS[kind], cwd=folder)


def test_the_commands_of_a_new_folders_readme_work(tmp_path: Path, capsys: Shown) -> None:
    assert cli.main(["init", f"{tmp_path}/new"]) == 0
    lines = (tmp_path / "new" / "README.md").read_text().splitlines()
    assert len(lines) <= 10
    commands = [line.strip() for line in lines if line.startswith("    ")]
    shown = [*map(str.strip, capsys.readouterr().out.splitlines())]
    assert shown[-len(commands) - 1 : -1] == commands
    typed = {words[1]: words[2:] for words in map(shlex.split, commands) if words[0] == "evert"}
    assert [*typed] == ["play", "train", "evaluate", "view"]
    assert play.parse(typed["play"]).model == "me"
    assert train.parse(typed["train"])
    assert read_evaluate_settings(dict(word.split("=", 1) for word in typed["evaluate"]))
    few = ["steps=1", "batch_size=2", "group_size=2", "device=cpu", "record=0"]
    run_python("-m", "evert", "train", *typed["train"], *few, cwd=tmp_path / "new")
    assert (tmp_path / "new" / "runs" / "first" / "result.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("there", "there already exists and is not an empty folder, so nothing was changed."),
        ("there/mine", "there/mine already exists"),
        ("new --agent crewai", "agent takes openai or openai-agents or "),
        ("new --agent", "Did you mean agent=...?"),
    ],
)
def test_a_wrong_line_changes_nothing(words: str, message: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine").write_text("")
    assert message in cli(f"init {tmp_path}/{words}", status=1)
    assert [file.name for file in tmp_path.rglob("*")] == ["there", "mine"]


def test_a_new_folder_uses_the_openai_sdk_by_default() -> None:
    assert init.parse([]) == init.parse(["my-agent", "--agent=openai"])
