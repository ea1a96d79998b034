"""A game is one file or folder with a ``GAME`` in it; nothing else has to know of it.

1. The games of ``envs/`` are found by looking; each one's paths lead somewhere.
2. A game of a user's own is found by its module's name; what is none, says why.
3. What a training run takes from a game: its recipe, and for a full-size model what is otherwise.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evert.bridge.errors import EvertError
from evert.bridge.import_paths import resolve
from evert.envs import games as module
from evert.envs.games import Game, GameError, find_game, game_of, games

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
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a module into a folder that is looked through, and gives its name."""
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


# -- 1. evert's own ----------------------------------------------------------------------------


def test_the_games_of_the_folder_are_found_by_looking() -> None:
    assert {"guess_number", "identity", "twenty_questions"} <= games().keys()
    assert not {"games", "as_gymnasium"} & games().keys()
    assert games() is games()


@pytest.mark.parametrize("game", games().values(), ids=games())
def test_every_path_of_a_game_leads_somewhere(game: Game) -> None:
    paths = [game.agent, game.train_tasks, game.test_tasks]
    paths += [*game.players.values(), *game.searching, *game.searching.values()]
    for path in paths:
        assert resolve(path, "thing", GameError) is not None


def test_a_file_beside_the_others_is_a_game_without_a_word_elsewhere(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("games_here.__init__", "")
    write("games_here.parity")
    write("games_here.no_game", "WORD = 1")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "games_here" / "games.py"))
    monkeypatch.setattr(module, "__package__", "games_here")

    assert [*games.__wrapped__()] == ["parity"]


def test_two_games_of_one_id_are_an_error(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("twins_here.__init__", "")
    write("twins_here.one")
    write("twins_here.two")
    monkeypatch.setattr(module, "__file__", str(tmp_path / "twins_here" / "games.py"))
    monkeypatch.setattr(module, "__package__", "twins_here")

    with pytest.raises(GameError, match=r"games one and two have one id, 'my/Parity-v0'\. Give"):
        games.__wrapped__()


@pytest.mark.parametrize("name", ["guess_number", "guess-number", "Guess-Number"])
def test_a_game_is_found_however_its_name_is_written(name: str) -> None:
    assert find_game(name) is games()["guess_number"]


# -- 2. a user's own ---------------------------------------------------------------------------


def test_a_file_of_the_current_folder_is_a_game(write: Write) -> None:
    game = find_game(write("My_Parity"))

    assert game is not None
    assert game.agent == "My_Parity:parity_agent"
    assert find_game("My-Parity") is game


def test_so_is_a_module_of_a_package(write: Write) -> None:
    write("my_games.__init__", "")
    game = find_game(write("my_games.parity"))

    assert game is not None
    assert game.train_tasks == "my_games.parity:TASKS"
    assert find_game("evert.envs.identity") is games()["identity"]


@pytest.mark.parametrize("name", ["", "nowhere", "no.where", "evert.nowhere", "../x", "a b", "1.2"])
def test_where_there_is_no_module_there_is_no_game(name: str) -> None:
    assert find_game(name) is None


def test_a_module_without_a_game_says_what_it_lacks(write: Write) -> None:
    with pytest.raises(GameError, match=r"no_game \(.*no_game\.py\) is no game: it has no GAME; e"):
        find_game(write("no_game", "WORD = 1"))
    with pytest.raises(GameError, match=r"its GAME is a dict; expected GAME = evert\.Game\(id, "):
        find_game(write("half_game", "GAME = {}"))
    assert issubclass(GameError, EvertError)
    with pytest.raises(GameError, match="math"):
        game_of(__import__("math"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError: "),
    ],
)
def test_a_game_that_cannot_be_imported_says_why(write: Write, text: str, message: str) -> None:
    with pytest.raises(GameError, match=f"broken_game cannot be imported: {message}") as caught:
        find_game(write("broken_game", text))
    assert caught.value.__cause__ is not None


# -- 3. recipes --------------------------------------------------------------------------------


def test_a_run_takes_agent_tasks_and_recipe_from_its_game(write: Write) -> None:
    game = find_game(write("settled_game"))

    assert game is not None
    paths = {"agent": "settled_game:parity_agent", "train_tasks": "settled_game:TASKS"}
    assert game.settings() == {**paths, "test_tasks": "", "steps": 3, "max_tokens": 4}
    assert game.settings(full_size=True)["steps"] == 30


def test_a_recipe_may_name_another_agent_for_the_shipped_bases() -> None:
    game = games()["twenty_questions"]

    assert game.settings()["agent"].endswith(":short_twenty_questions_agent")
    assert game.settings(full_size=True)["agent"] == game.agent
