"""A player's metrics, except for the one that says whether the player won."""

from typing import Any

import pytest

from evert.envs.twenty_questions.answerers import KnowledgeAnswerer
from evert.envs.twenty_questions.baselines import OraclePlayer, RandomPlayer, play
from evert.envs.twenty_questions.game import Answer, QuestionGame, Rules
from evert.envs.twenty_questions.information import entropy
from evert.envs.twenty_questions.measures import measures
from evert.envs.twenty_questions.nouns import Noun, shipped_nouns

ANSWERER = KnowledgeAnswerer()
HIDDEN = Rules(show_category=False)
DOG = shipped_nouns()[0]


def measured(*questions: str, rules: Rules = HIDDEN) -> dict[str, float]:
    game = QuestionGame(DOG, rules)
    for question in questions:
        game.record(question, ANSWERER.answer_now(DOG, question))
    return measures(game)


@pytest.mark.parametrize(
    ("questions", "name", "value"),
    [
        (["Can it fly?"], "asks_first", 1.0),
        (["Isn't it able to fly?"], "asks_first", 1.0),
        (["Is it a cat?"], "asks_first", 0.0),
        (["Hm"], "asks_first", 0.0),
        (["Is it a cat?", "Can it fly?"], "asks_first", 0.0),
        ([], "asks_first", 0.0),
        (["Can it fly?", "Is it a cat?", "Does it have wings?"], "repeats", 0.0),
        (["Can it fly?", "Is it able to fly?"], "repeats", 1.0),
        (["Is it a cat?", "Could it be a cat?", "Cat?"], "repeats", 2.0),
        (["Hm", "hm", "Hm?!"], "repeats", 1.0),
        (["Can it fly?", "Is it a cat?", "Is it a cat?"], "guesses_in_vain", 2.0),
        (["Is it a cat?", "Is it a dog?"], "guesses_in_vain", 1.0),
        (["Can it fly?", "Hm"], "guesses_in_vain", 0.0),
        (["Can it fly?", "Is it a dog?"], "questions_when_won", 2.0),
        (["Can it fly?", "Is it a cat?"], "questions_when_won", None),
        ([], "bits_of_best", None),  # no information was available
        (["Hm"], "bits", 0.0),
        (["Is it a cat?"], "bits", pytest.approx(entropy((1, 199)))),
        (["Is it a cat?"] * 2, "bits", pytest.approx(entropy((1, 199)) / 2)),
    ],
)
def test_the_metrics_of_a_game(questions: list[str], name: str, value: object) -> None:
    assert measured(*questions).get(name) == value


def test_a_winning_question_is_not_a_wrong_guess() -> None:
    game = QuestionGame(DOG, HIDDEN)
    game.record("Does it look like a dog?", Answer("yes", correct=True))

    assert measures(game)["guesses_in_vain"] == 0.0


def test_a_question_about_the_shown_category_has_no_information() -> None:
    assert measured("Is it an animal?", rules=Rules(show_category=True))["bits"] == 0.0
    assert measured("Is it an animal?")["bits"] > 0.4
    assert measured("Is it a cat?")["bits_of_best"] < 0.1


@pytest.mark.parametrize("noun", shipped_nouns()[::40])
def test_the_oracle_gets_all_the_information_and_the_random_player_little(noun: Any) -> None:
    oracle = measures(play(OraclePlayer(), noun, HIDDEN))
    some = measures(play(RandomPlayer(), noun, HIDDEN))

    assert oracle["bits_of_best"] == pytest.approx(1.0)
    assert oracle["bits"] > 0.9
    assert some["bits_of_best"] < 0.5


def test_a_noun_without_facts_gives_no_bits() -> None:
    game = QuestionGame(Noun("axolotl", "animal", "train"), HIDDEN)
    game.record("Can it fly?", Answer("no"))

    assert measures(game) == {"asks_first": 1.0, "repeats": 0.0, "guesses_in_vain": 0.0}
