"""The rules of the game, without any players."""

import pytest

from evert.envs.twenty_questions.errors import GameStateError
from evert.envs.twenty_questions.game import Answer, QuestionGame, Rules, Search, question_of
from evert.envs.twenty_questions.nouns import Noun

ZEBRA = Noun("zebra", "animal", "train")
RIGHT = Answer("yes", correct=True)
NO = Answer("no", brief_reason="a zebra is none")


def game_of(*answers: Answer, most: int = 20) -> QuestionGame:
    game = QuestionGame(ZEBRA, Rules(max_questions=most))
    for answer in answers:
        game.record("Is it a zebra?" if answer.correct else "Is it a bird?", answer)
    return game


def test_a_game_ends_with_a_right_guess_or_when_no_questions_are_left() -> None:
    for game, over, won in (
        (game_of(NO), False, False),
        (game_of(NO, RIGHT), True, True),
        (game_of(NO, NO, most=2), True, False),
        (game_of(RIGHT, most=1), True, True),  # a right guess wins even on the last question
    ):
        assert (game.over, game.won, game.score) == (over, won, float(won)), game.transcript()


def test_recording_after_the_end_or_too_many_searches_is_an_error() -> None:
    with pytest.raises(GameStateError, match="over after 1 of 1 questions \\(won\\)"):
        game_of(RIGHT, NO, most=1)
    with pytest.raises(GameStateError, match="2 searches.*allow only 1"):
        QuestionGame(ZEBRA).record("Is it a cat?", NO, (Search("a", "b"), Search("c", "d")))


def test_the_prompt_has_the_category_and_the_question_number() -> None:
    game = game_of(NO)

    assert QuestionGame(ZEBRA).situation() == "Category: animal. Question 1 of 20."
    assert game.situation() == "Category: animal. Question 2 of 20."
    assert QuestionGame(ZEBRA, Rules(show_category=False)).situation() == "Question 1 of 20."


def test_the_transcript_and_the_summary_are_complete() -> None:
    game = QuestionGame(ZEBRA)
    game.record("Hm", Answer("n/a", brief_reason="what"), (Search("birds", "owl, eagle"),))
    assert game.transcript().endswith("in play, 1 questions")
    game.record("Is it a zebra?", RIGHT)

    assert game.transcript() == (
        "zebra (animal, train)\n"
        "    search: birds -> owl, eagle\n"
        "  1. Hm  n/a  (what)\n"
        "  2. Is it a zebra?  yes\n"
        "found, 2 questions"
    )
    assert game.summary() == {"found": 1.0, "questions": 2, "not_told": 1, "searches": 1}


def test_the_question_in_a_reply_is_its_last_line_that_contains_a_question() -> None:
    replies = {
        "It could be a cat.\nIs it a cat?": "Is it a cat?",
        "Is it a cat?\nI hope so.": "Is it a cat?",
        "Guess: zebra": "Guess: zebra",
        "alive": "alive",
        "": "",
        " \n ": "",
    }
    asks = ["{}", "  **{}**\n", "Question: {}", "Question 3: {}"]
    replies |= {form.format("Is it alive?"): "Is it alive?" for form in asks}

    assert {reply: question_of(reply) for reply in replies} == replies
    assert len(question_of("is it " * 1000)) == 300
