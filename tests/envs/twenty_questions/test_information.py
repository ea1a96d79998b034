"""Inference from facts: which nouns fit the answers, and how much a question reveals."""

import math

import pytest

from evert.envs.twenty_questions.facts import Facts
from evert.envs.twenty_questions.game import Answer, QuestionGame, Rules
from evert.envs.twenty_questions.information import Knowledge, entropy, guess
from evert.envs.twenty_questions.nouns import Noun

ZOO = [Noun(name, "animal", "train") for name in ("owl", "bat", "cat")]
BALL = Noun("ball", "toy", "test")
FACTS = Facts(
    {
        "owl": {"can_fly": "yes", "has_wings": "yes"},
        "bat": {"can_fly": "yes", "has_wings": "yes"},
        "cat": {"can_fly": "no", "has_wings": "no"},
        "ball": {"can_fly": "n/a", "has_wings": "no"},
    }
)
KNOWN = Knowledge([*ZOO, BALL], FACTS)
FLIES, WINGS = KNOWN.questions["can_fly"], KNOWN.questions["has_wings"]
ALL = ["owl", "bat", "cat", "ball"]
YES, NO, NOT_TOLD = Answer("yes"), Answer("no"), Answer("n/a")


def left_after(*turns: tuple[str, Answer], shown: bool = False) -> list[str]:
    game = QuestionGame(ZOO[0], Rules(show_category=shown))
    for question, answer in turns:
        game.record(question, answer)
    return KNOWN.names(KNOWN.candidates(game))


def test_an_answer_keeps_the_nouns_that_are_consistent_with_it() -> None:
    assert left_after() == left_after(("What is it?", NOT_TOLD)) == ALL
    assert left_after(shown=True) == ["owl", "bat", "cat"]
    assert left_after((FLIES, YES)) == ["owl", "bat"]
    assert left_after((FLIES, NOT_TOLD)) == ["ball"]
    assert left_after((FLIES, YES), (guess("owl"), NO)) == ["bat"]
    assert left_after((guess("cat"), YES)) == ["cat"]
    assert left_after((FLIES, YES), (guess("cat"), YES)) == []
    assert KNOWN.names(KNOWN.set_of([BALL, ZOO[1]])) == ["bat", "ball"]
    assert KNOWN.names(KNOWN.category("animal")) == ["owl", "bat", "cat"]


def test_the_information_of_a_question_is_the_entropy_of_its_answer() -> None:
    everything, fliers = KNOWN.everything, KNOWN.set_of(ZOO[:2])

    assert KNOWN.answer_entropy(everything, FLIES) == pytest.approx(1.5)
    assert KNOWN.answer_entropy(everything, WINGS) == pytest.approx(1.0)
    assert KNOWN.answer_entropy(everything, guess("owl")) == pytest.approx(entropy((1, 3)))
    assert KNOWN.answer_entropy(fliers, FLIES) == KNOWN.answer_entropy(fliers, guess("cat")) == 0.0
    assert KNOWN.answer_entropy(everything, "What is it?") == 0.0
    assert [name for _, name in KNOWN.best(everything)] == ["can_fly", "has_wings"]
    assert KNOWN.max_bits(everything) == pytest.approx(1.5)
    assert KNOWN.max_bits(fliers) == pytest.approx(1.0)  # from guessing one of the two nouns
    assert KNOWN.max_bits(KNOWN.set_of([BALL])) == KNOWN.max_bits(0) == 0.0
    assert entropy((1, 1, 1)) == pytest.approx(math.log2(3))
    assert entropy((5,)) == entropy(()) == entropy((0, 0)) == 0.0
