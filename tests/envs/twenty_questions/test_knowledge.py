"""What follows from the facts.

1. What fits the answers is what would have been answered so; a set is an int, a bit a noun.
2. A question tells as much as its answer is undecided: at the most log2(3) bits, at the least 0.
"""

import math

import pytest

from evert.envs.twenty_questions.facts import Facts
from evert.envs.twenty_questions.game import Answer, Game, Rules
from evert.envs.twenty_questions.knowledge import Knowledge, entropy, guess
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
FLIES = KNOWN.questions["can_fly"]


def left_after(*turns: tuple[str, Answer], shown: bool = False) -> list[str]:
    game = Game(ZOO[0], Rules(show_category=shown))
    for question, answer in turns:
        game.record(question, answer)
    return KNOWN.names(KNOWN.fitting(game))


# -- 1. what fits --------------------------------------------------------------------------------


def test_before_the_first_question_all_nouns_fit_or_those_of_the_category() -> None:
    assert left_after() == ["owl", "bat", "cat", "ball"]
    assert left_after(shown=True) == ["owl", "bat", "cat"]


def test_an_answer_leaves_those_that_would_have_been_answered_so() -> None:
    assert left_after((FLIES, Answer("yes"))) == ["owl", "bat"]
    assert left_after((FLIES, Answer("n/a"))) == ["ball"]
    assert left_after((FLIES, Answer("yes")), (guess("owl"), Answer("no"))) == ["bat"]
    assert left_after((guess("cat"), Answer("yes"))) == ["cat"]
    assert left_after((FLIES, Answer("yes")), (guess("cat"), Answer("yes"))) == []


def test_what_is_no_question_we_know_leaves_all() -> None:
    assert left_after(("What is it?", Answer("n/a"))) == ["owl", "bat", "cat", "ball"]


def test_a_set_is_of_nouns() -> None:
    assert KNOWN.names(KNOWN.set_of([BALL, ZOO[1]])) == ["bat", "ball"]
    assert KNOWN.names(KNOWN.category("animal")) == ["owl", "bat", "cat"]


# -- 2. what a question tells --------------------------------------------------------------------


def test_a_question_tells_what_its_answer_is_undecided_about() -> None:
    everything = KNOWN.everything
    assert KNOWN.told(everything, FLIES) == pytest.approx(1.5)
    assert KNOWN.told(everything, KNOWN.questions["has_wings"]) == pytest.approx(1.0)
    assert KNOWN.told(everything, guess("owl")) == pytest.approx(entropy((1, 3)))
    assert KNOWN.told(KNOWN.set_of(ZOO[:2]), FLIES) == 0.0
    assert KNOWN.told(KNOWN.set_of(ZOO[:2]), guess("cat")) == 0.0
    assert KNOWN.told(everything, "What is it?") == 0.0


def test_the_best_come_first_and_a_guess_may_tell_most() -> None:
    assert [name for _, name in KNOWN.best(KNOWN.everything)] == ["can_fly", "has_wings"]
    assert KNOWN.most(KNOWN.everything) == pytest.approx(1.5)
    assert KNOWN.most(KNOWN.set_of(ZOO[:2])) == pytest.approx(1.0)
    assert KNOWN.most(KNOWN.set_of([BALL])) == 0.0
    assert KNOWN.most(0) == 0.0


def test_entropy_is_of_counts() -> None:
    assert entropy((1, 1, 1)) == pytest.approx(math.log2(3))
    assert entropy((5,)) == entropy(()) == entropy((0, 0)) == 0.0
