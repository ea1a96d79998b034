"""The game of ``docs/add-a-game.md``, word for word: trained, scored, reported as the page says."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evert.envs.games import find_game
from evert.trainers import cli

PAGE = (Path(__file__).parents[2] / "docs" / "add-a-game.md").read_text()
NAME = "round_number"
SMALL = ["steps=2", "batch_size=4", "group_size=4", "eval_every=0", "samples=1", "device=cpu"]


def commands() -> list[list[str]]:
    """The page's ``evert`` lines, as arguments."""
    return [shlex.split(line)[1:] for line in re.findall(r"^evert .*$", PAGE, re.MULTILINE)]


@pytest.fixture(autouse=True)
def _in_a_folder_with_the_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    [game] = re.findall(r"^```python\n(.*?GAME = .*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / f"{NAME}.py").write_text(game)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop(NAME, None)


def test_the_pages_game_is_found_by_the_name_of_its_file() -> None:
    game = find_game(NAME)

    assert game is not None
    assert game.id in PAGE
    assert "model_name" not in game.settings()  # the shipped base, as the page says


def test_the_pages_commands_train_score_and_report_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train, evaluate, report = commands()

    assert cli.main([*train, *SMALL]) == 0
    trained = capsys.readouterr().out
    assert "round_number: mean reward, 2 steps" in trained
    assert "25 held-out tasks" in trained
    assert "Pick a number between" in (tmp_path / "runs/round/samples.md").read_text()

    assert cli.main([*evaluate, "seeds=1", "max_tasks=5", "device=cpu", "out=scores"]) == 0
    rows = (tmp_path / "scores/scores.csv").read_text()
    assert {"evert-tiny", "runs/round"} <= set(re.findall(r"evert-tiny|runs/round", rows))

    assert cli.main(report) == 0
    assert "round_number" in (tmp_path / "runs/round/report/index.html").read_text()
