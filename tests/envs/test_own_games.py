"""A game is a single file or folder with a ``GAME``. It need not be listed anywhere."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.kit import Patch

from evert.envs import games as module
from evert.envs.games import GameError, find_game, game_of, games

PARITY = """
from evert.envs.games import Game

GAME = Game(
    "my/Parity-v0",
    agent="{name}:parity_agent",
    train_tasks="{name}:TASKS",
    recipe={{"steps": 3, "max_tokens": 4}},
    full_size={{"steps": 30}},
)
TASKS = range(10)


async def parity_agent(client, task):
    completion = await client.chat.completions.create(
        messages=[{{"role": "user", "content": f"Is {{task}} even?"}}]
    )
    return float((completion.choices[0].message.content == "Yes") == (task % 2 == 0))
"""

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: Patch) -> Iterator[Write]:
    """Yield a function that writes an importable module and returns its name."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def written(name: str, text: str = PARITY) -> str:
        path = tmp_path.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text.format(name=name) if text is PARITY else text)
        return name

    yield written
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.fixture
def folder(write: Write, tmp_path: Path, monkeypatch: Patch) -> Write:
    """Return a function that writes files to a folder in which evert looks for games."""
    write("games_here.__init__", "")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "games_here" / "games.py"))
    monkeypatch.setattr(module, "__package__", "games_here")
    return write


def test_a_file_in_the_games_folder_is_a_game_but_two_games_may_not_share_an_id(
    folder: Write,
) -> None:
    assert {"guess_number", "identity", "twenty_questions"} <= games().keys()
    assert not {"games", "as_gymnasium"} & games().keys()
    assert games() is games()
    folder("games_here.one")
    folder("games_here.no_game", "WORD = 1")

    assert [*games.__wrapped__()] == ["one"]
    folder("games_here.two")
    with pytest.raises(GameError, match=r"games one and two have the same id, 'my/Parity-v0'\. R"):
        games.__wrapped__()


def test_a_game_is_found_by_any_spelling_of_its_modules_name(write: Write) -> None:
    game = find_game(write("My_Parity"))
    write("my_games.__init__", "")
    inner = find_game(write("my_games.parity"))

    assert game is not None
    assert game.agent == "My_Parity:parity_agent"
    assert find_game("My-Parity") is game
    assert inner is not None
    assert inner.train_tasks == "my_games.parity:TASKS"
    for name in ("evert.envs.guess_number", "guess_number", "guess-number", "Guess-Number"):
        assert find_game(name) is games()["guess_number"], name
    for name in ("", "nowhere", "no.where", "evert.nowhere", "../x", "a b", "1.2"):
        assert find_game(name) is None, name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("WORD = 1", r"a_game \(.*a_game\.py\) is not a game: it has no GAME; e"),
        ("GAME = {}", r"its GAME is a dict; expected it to define GAME = evert\.Game\(id, "),
        ("import no_such_package", "a_game could not be imported: ModuleNotFoundError: No modul"),
        ("1 / 0", "a_game could not be imported: ZeroDivisionError: division by zero"),
        ("def", "a_game could not be imported: SyntaxError: "),
    ],
)
def test_a_module_without_a_game_is_explained(write: Write, text: str, message: str) -> None:
    with pytest.raises(GameError, match=message) as caught:
        find_game(write("a_game", text))
    assert ("could not be imported" in message) == (caught.value.__cause__ is not None)
    with pytest.raises(GameError, match="math"):
        game_of(__import__("math"))


def test_a_run_gets_its_agent_tasks_and_recipe_from_its_game(write: Write) -> None:
    game, shipped = find_game(write("settled_game")), games()["twenty_questions"]

    assert game is not None
    paths = {"agent": "settled_game:parity_agent", "train_tasks": "settled_game:TASKS"}
    assert game.settings() == {**paths, "test_tasks": "", "steps": 3, "max_tokens": 4}
    assert game.settings(full_size=True)["steps"] == 30
    # a recipe may use another agent for the bundled base models
    assert shipped.settings()["agent"].endswith(":short_twenty_questions_agent")
    assert shipped.settings(full_size=True)["agent"] == shipped.agent
