"""What a game says of its player beside whether it won.

1. Asking first is a question about an attribute, however it is worded.
2. A repeat is the same question again, however it is worded.
3. Bits are what the answers were undecided about; the oracle has all there are.
4. Questions are counted only when the game was won; bits only where the facts have the noun.
"""

import pytest

from evert.envs.twenty_questions.answerers import KnowledgeAnswerer
from evert.envs.twenty_questions.baselines import OraclePlayer, RandomPlayer, play
from evert.envs.twenty_questions.game import Answer, Game, Rules
from evert.envs.twenty_questions.knowledge import entropy
from evert.envs.twenty_questions.measures import measures
from evert.envs.twenty_questions.nouns import Noun, shipped_nouns

ANSWERER = KnowledgeAnswerer()
HIDDEN = Rules(show_category=False)
DOG = shipped_nouns()[0]


def measured(*questions: str, noun: Noun = DOG, rules: Rules = HIDDEN) -> dict[str, float]:
    game = Game(noun, rules)
    for question in questions:
        game.record(question, ANSWERER.answer_now(noun, question))
    return measures(game)


@pytest.mark.parametrize(
    ("question", "asks"),
    [("Can it fly?", 1.0), ("Isn't it able to fly?", 1.0), ("Is it a cat?", 0.0), ("Hm", 0.0)],
)
def test_asking_first_is_asking_about_an_attribute(question: str, asks: float) -> None:
    assert measured(question)["asks_first"] == asks


def test_only_the_first_question_counts_for_that() -> None:
    assert measured("Is it a cat?", "Can it fly?")["asks_first"] == 0.0
    assert measures(Game(DOG))["asks_first"] == 0.0


def test_a_repeat_is_the_same_question_however_it_is_worded() -> None:
    assert measured("Can it fly?", "Is it a cat?", "Does it have wings?")["repeats"] == 0.0
    assert measured("Can it fly?", "Is it able to fly?")["repeats"] == 1.0
    assert measured("Is it a cat?", "Could it be a cat?", "Cat?")["repeats"] == 2.0
    assert measured("Hm", "hm", "Hm?!")["repeats"] == 1.0


def test_bits_are_what_the_answers_were_undecided_about() -> None:
    guessed = measured("Is it a cat?")

    assert guessed["bits"] == pytest.approx(entropy((1, 199)))
    assert guessed["bits_of_best"] < 0.1
    assert measured("Is it a cat?", "Is it a cat?")["bits"] == pytest.approx(guessed["bits"] / 2)
    assert measured("Hm")["bits"] == 0.0


def test_the_category_shown_is_nothing_that_a_question_tells() -> None:
    told = measured("Is it an animal?", rules=Rules(show_category=True))

    assert told["bits"] == 0.0
    assert measured("Is it an animal?")["bits"] > 0.4


async def test_the_oracle_has_all_bits_there_are_and_the_random_player_few() -> None:
    for noun in shipped_nouns()[::40]:
        oracle = measures(await play(OraclePlayer(), noun, ANSWERER, HIDDEN))
        some = measures(await play(RandomPlayer(), noun, ANSWERER, HIDDEN))

        assert oracle["bits_of_best"] == pytest.approx(1.0)
        assert oracle["bits"] > 0.9
        assert some["bits_of_best"] < 0.5


def test_questions_are_counted_when_the_game_was_won() -> None:
    assert measured("Can it fly?", "Is it a dog?")["questions_when_won"] == 2.0
    assert "questions_when_won" not in measured("Can it fly?", "Is it a cat?")


def test_a_guess_in_vain_names_another_noun() -> None:
    assert measured("Can it fly?", "Is it a cat?", "Is it a cat?")["guesses_in_vain"] == 2.0
    assert measured("Is it a cat?", "Is it a dog?")["guesses_in_vain"] == 1.0
    assert measured("Can it fly?", "Hm")["guesses_in_vain"] == 0.0


def test_of_a_noun_that_the_facts_do_not_have_there_are_no_bits() -> None:
    game = Game(Noun("axolotl", "animal", "train"), HIDDEN)
    game.record("Can it fly?", Answer("no"))

    assert measures(game) == {"asks_first": 1.0, "repeats": 0.0, "guesses_in_vain": 0.0}


def test_where_nothing_was_left_to_be_told_there_is_no_share_of_it() -> None:
    assert "bits_of_best" not in measures(Game(DOG))
