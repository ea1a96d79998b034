"""Players with fixed habits of asking and guessing, whose games are determined by a seed.

``tests/bases/test_bases.py`` has a digest of the training data made from these games.
"""

import random
from itertools import product
from typing import Any, get_args

import pytest

from evert.envs.twenty_questions.answerers import KnowledgeAnswerer
from evert.envs.twenty_questions.baselines import play
from evert.envs.twenty_questions.game import QuestionGame, Rules
from evert.envs.twenty_questions.habits import Asks, Guesses, HabitPlayer
from evert.envs.twenty_questions.information import Knowledge, guess
from evert.envs.twenty_questions.nouns import shipped_nouns

KNOWN = Knowledge()
NOUNS = shipped_nouns()
HIDDEN = Rules(show_category=False)
ANSWERER = KnowledgeAnswerer()
HABITS: list[tuple[Asks, Guesses]] = [*product(get_args(Asks), get_args(Guesses))]


@pytest.mark.parametrize(("asks", "guesses"), HABITS)
def test_a_habit_player_never_repeats_itself_and_asks_only_from_its_lists(
    asks: Any, guesses: Any
) -> None:
    player = HabitPlayer(asks, guesses, KNOWN, random.Random(0))
    for game in (play(player, noun, HIDDEN) for noun in NOUNS[::20]):
        assert len({t.question for t in game.turns}) == len(game.turns), (asks, guesses)
    game = QuestionGame(NOUNS[7], HIDDEN)
    while not game.over:
        lists, question = player.lists(game), player.question(game)

        assert sum(chance for chance, _ in lists) == pytest.approx(1.0), (asks, guesses)
        assert any(question in texts for _, texts in lists), (asks, guesses)
        game.record(question, ANSWERER.answer_now(game.noun, question))


def test_a_habit_player_never_guesses_a_forbidden_noun() -> None:
    trained = KNOWN.set_of(noun for noun in NOUNS if noun.split == "train")
    held_out = {guess(noun.answer) for noun in NOUNS if noun.split == "test"}
    for guesses in {*get_args(Guesses)} - {"never"}:
        player = HabitPlayer("best", guesses, KNOWN, random.Random(0), trained)
        for noun in NOUNS[:40]:
            game = play(player, noun, HIDDEN)
            assert not held_out & {turn.question for turn in game.turns}, guesses
            assert game.won == (noun.split == "train") or guesses != "few"

    shown = play(HabitPlayer("any", "blind", KNOWN, random.Random(0)), NOUNS[0])
    foreign = {guess(noun.answer) for noun in NOUNS if noun.category != NOUNS[0].category}
    assert not foreign & {turn.question for turn in shown.turns}  # the player is shown the category

    only = HabitPlayer("any", "always", KNOWN, random.Random(0), allowed=1)
    game = QuestionGame(NOUNS[3], HIDDEN)
    assert only.lists(game) == [(1.0, [guess(noun.answer) for noun in NOUNS])]  # all nouns
    assert only.question(game) == guess(NOUNS[0].answer)
