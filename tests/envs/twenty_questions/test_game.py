"""The rules of the game, without players.

1. A game ends with the right guess, or when the questions are used up; then nothing more counts.
2. The score is 1 for the noun, else 0.
3. The player may see category, number and history; the transcript has all.
4. A reply's question is its last line that asks.
"""

import pytest

from evert.envs.twenty_questions.errors import GameStateError
from evert.envs.twenty_questions.game import Answer, Game, Rules, Search, question_of
from evert.envs.twenty_questions.nouns import Noun

ZEBRA = Noun("zebra", "animal", "train")
RIGHT = Answer("yes", correct=True)
NO = Answer("no", brief_reason="it is not")


def test_a_game_ends_with_the_right_guess() -> None:
    game = Game(ZEBRA)
    game.record("Is it a bird?", NO)
    assert (game.over, game.won, game.score) == (False, False, 0.0)
    game.record("Is it a zebra?", RIGHT)
    assert (game.over, game.won, game.score) == (True, True, 1.0)


def test_a_game_ends_when_the_questions_are_used_up() -> None:
    game = Game(ZEBRA, Rules(max_questions=2))
    game.record("Is it a bird?", NO)
    game.record("Is it a cat?", NO)
    assert (game.over, game.won, game.score) == (True, False, 0.0)


def test_the_last_question_may_win() -> None:
    game = Game(ZEBRA, Rules(max_questions=1))
    game.record("Is it a zebra?", RIGHT)
    assert game.score == 1.0


def test_nothing_counts_after_the_end() -> None:
    game = Game(ZEBRA, Rules(max_questions=1))
    game.record("Is it a zebra?", RIGHT)
    with pytest.raises(GameStateError, match="over after 1 of 1 questions \\(won\\)"):
        game.record("Is it a cat?", NO)


def test_more_searches_than_allowed_are_an_error() -> None:
    searches = (Search("a", "b"), Search("c", "d"))
    with pytest.raises(GameStateError, match="2 searches.*allow 1"):
        Game(ZEBRA).record("Is it a cat?", NO, searches)


def test_the_player_is_told_category_and_number() -> None:
    game = Game(ZEBRA)
    assert game.situation() == "Category: animal. Question 1 of 20."
    game.record("Is it a bird?", NO)
    assert game.situation() == "Category: animal. Question 2 of 20."
    assert game.history() == "1. Is it a bird? no"


def test_the_category_may_be_kept_from_the_player() -> None:
    assert Game(ZEBRA, Rules(show_category=False)).situation() == "Question 1 of 20."


def test_what_the_player_sees_has_neither_the_noun_nor_the_reasons() -> None:
    game = Game(ZEBRA)
    game.record("Is it a bird?", Answer("no", brief_reason="a zebra is a mammal"))
    assert "zebra" not in game.situation() + game.history()


def test_the_transcript_has_everything() -> None:
    game = Game(ZEBRA)
    game.record("Is it a bird?", NO, (Search("birds", "owl, eagle"),))
    assert game.transcript().endswith("in play, 1 questions")
    game.record("Is it a zebra?", RIGHT)
    assert game.transcript() == (
        "zebra (animal, train)\n"
        "    search: birds -> owl, eagle\n"
        "  1. Is it a bird?  no  (it is not)\n"
        "  2. Is it a zebra?  yes\n"
        "found, 2 questions"
    )


def test_the_summary_counts() -> None:
    game = Game(ZEBRA)
    game.record("Hm", Answer("n/a"), (Search("a", "b"),))
    game.record("Is it a zebra?", RIGHT)
    assert game.summary() == {"found": 1.0, "questions": 2, "not_told": 1, "searches": 1}


@pytest.mark.parametrize(
    ("reply", "question"),
    [
        ("Is it alive?", "Is it alive?"),
        ("  **Is it alive?**\n", "Is it alive?"),
        ("It could be a cat.\nIs it a cat?", "Is it a cat?"),
        ("Is it a cat?\nI hope so.", "Is it a cat?"),
        ("Question: Is it alive?", "Is it alive?"),
        ("Question 3: Is it alive?", "Is it alive?"),
        ("Guess: zebra", "Guess: zebra"),
        ("alive", "alive"),
        ("", ""),
        (" \n ", ""),
    ],
)
def test_the_question_of_a_reply_is_its_last_line_that_asks(reply: str, question: str) -> None:
    assert question_of(reply) == question


def test_an_endless_question_is_cut() -> None:
    assert len(question_of("is it " * 1000)) == 300
