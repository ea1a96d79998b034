"""The players without a model.

1. The oracle finds every noun, with and without the category.
2. The random player never asks the same twice, and a seed repeats it.
"""

import pytest

from evert.envs.twenty_questions.answerers import KnowledgeAnswerer
from evert.envs.twenty_questions.baselines import OraclePlayer, RandomPlayer, guess, play
from evert.envs.twenty_questions.game import Game, Rules
from evert.envs.twenty_questions.nouns import shipped_nouns

NOUNS = shipped_nouns()
BLIND = Rules(show_category=False)


@pytest.mark.parametrize(("rules", "most"), [(Rules(), 8), (BLIND, 13)], ids=["told", "blind"])
async def test_the_oracle_finds_every_noun(rules: Rules, most: int) -> None:
    oracle, answerer = OraclePlayer(), KnowledgeAnswerer()
    games = [await play(oracle, noun, answerer, rules) for noun in NOUNS]

    assert [game.noun.answer for game in games if not game.won] == []
    assert max(len(game.turns) for game in games) <= most
    assert answerer.counts["not_understood"] == 0


async def test_the_oracle_may_disregard_the_category() -> None:
    told = await play(OraclePlayer(all_categories=True), NOUNS[0], KnowledgeAnswerer())
    blind = await play(OraclePlayer(), NOUNS[0], KnowledgeAnswerer(), BLIND)

    assert told.turns == blind.turns


def test_the_oracle_guesses_what_is_left() -> None:
    assert OraclePlayer(NOUNS[:1]).question(Game(NOUNS[0])) == guess(NOUNS[0].answer)


async def test_the_oracle_asks_on_when_nothing_is_possible_any_more() -> None:
    stranger = await play(OraclePlayer(NOUNS[20:30]), NOUNS[0], KnowledgeAnswerer())

    assert not stranger.won
    assert len(stranger.turns) == 20


async def test_the_random_player_asks_nothing_twice_and_guesses_within_the_category() -> None:
    game = await play(RandomPlayer(seed=1), NOUNS[0], KnowledgeAnswerer())
    questions = [turn.question for turn in game.turns]
    foreign = {guess(noun.answer) for noun in NOUNS if noun.category != NOUNS[0].category}

    assert len(set(questions)) == len(questions)
    assert not foreign & set(questions)


async def test_a_seed_repeats_the_random_player() -> None:
    first = await play(RandomPlayer(seed=1), NOUNS[0], KnowledgeAnswerer(), BLIND)
    again = await play(RandomPlayer(seed=1), NOUNS[0], KnowledgeAnswerer(), BLIND)
    other = await play(RandomPlayer(seed=2), NOUNS[0], KnowledgeAnswerer(), BLIND)

    assert first.turns == again.turns != other.turns
