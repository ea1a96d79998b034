"""Players of a habit.

1. Each keeps to its habit of asking, and to its habit of guessing.
2. What it may not name it does not name.
3. Pairs of habits are as frequent as one another, those that guess well rarer.
"""

import random
from collections import Counter
from itertools import islice
from typing import Any, get_args

import pytest

from evert.envs.twenty_questions.answerers import KnowledgeAnswerer
from evert.envs.twenty_questions.game import Game, Rules
from evert.envs.twenty_questions.habits import EARLY, FEW, Asks, Guesses, HabitPlayer, players
from evert.envs.twenty_questions.knowledge import Knowledge, guess
from evert.envs.twenty_questions.nouns import Noun, shipped_nouns

KNOWN = Knowledge()
NOUNS = shipped_nouns()
HIDDEN = Rules(show_category=False)
ANSWERER = KnowledgeAnswerer()


def play(player: HabitPlayer, noun: Noun, rules: Rules = HIDDEN) -> tuple[Game, list[int]]:
    """A game, and the nouns that fitted before each of its questions."""
    game, left = Game(noun, rules), list[int]()
    while not game.over:
        left.append(KNOWN.fitting(game))
        question = player.question(game)
        game.record(question, ANSWERER.answer_now(noun, question))
    return game, left


def games(asks: Asks, guesses: Guesses) -> list[tuple[Game, list[int]]]:
    rng = random.Random(0)
    return [play(HabitPlayer(asks, guesses, KNOWN, rng), noun) for noun in NOUNS[::20]]


def is_guess(question: str) -> bool:
    return question not in KNOWN.questions.values()


# -- 1. habits -----------------------------------------------------------------------------------


def bits(asks: Asks) -> float:
    """What the first eight questions of a habit tell, on average."""
    told = [
        KNOWN.told(fits, turn.question)
        for game, left in games(asks, "never")
        for turn, fits in list(zip(game.turns, left, strict=True))[:8]
    ]
    return sum(told) / len(told)


def test_asking_habits_tell_from_nothing_to_nearly_all() -> None:
    told = {asks: bits(asks) for asks in get_args(Asks)}

    assert told["best"] > 0.75
    assert told["best"] > 2 * told["any"]
    assert told["details"] < 0.3
    assert told["idle"] < 0.2


def test_the_best_player_asks_what_tells_most() -> None:
    for game, left in games("best", "few"):
        for turn, fits in zip(game.turns, left, strict=True):
            if is_guess(turn.question):
                assert fits.bit_count() <= FEW
                continue
            said = {each.question for each in game.turns[: game.turns.index(turn)]}
            names = [name for _, name in KNOWN.best(fits) if KNOWN.questions[name] not in said]
            assert turn.question == KNOWN.questions[names[0]]


@pytest.mark.parametrize("guesses", get_args(Guesses))
def test_nobody_asks_the_same_twice(guesses: Guesses) -> None:
    for asks in get_args(Asks):
        for game, _ in games(asks, guesses):
            assert len({turn.question for turn in game.turns}) == len(game.turns)


def test_guessing_habits_guess_when_they_do() -> None:
    def guessed(guesses: Guesses) -> float:
        asked = [is_guess(t.question) for game, _ in games("any", guesses) for t in game.turns]
        return sum(asked) / len(asked)

    assert guessed("never") == 0.0
    assert guessed("always") == 1.0
    assert 0.2 < guessed("blind") < 0.4


def test_who_guesses_early_or_late_guesses_then_and_at_no_other_time() -> None:
    def numbers(guesses: Guesses) -> set[int]:
        played = [game.turns for game, _ in games("any", guesses) if not game.won]
        return {n for turns in played for n, t in enumerate(turns, 1) if is_guess(t.question)}

    assert numbers("early") == {*range(1, EARLY + 1)}
    assert numbers("late") == {*range(HIDDEN.max_questions - EARLY + 1, HIDDEN.max_questions + 1)}


def test_who_waits_for_few_names_what_fits_and_the_others_anything() -> None:
    def fitting(guesses: Guesses) -> float:
        fits = [
            turn.question in map(guess, KNOWN.names(fits))
            for game, left in games("best", guesses)
            for turn, fits in zip(game.turns, left, strict=True)
            if is_guess(turn.question)
        ]
        return sum(fits) / len(fits)

    assert fitting("few") == 1.0
    for guesses in ("late", "blind"):
        assert fitting(guesses) < 0.5


async def test_within_the_category_where_it_is_shown() -> None:
    player = HabitPlayer("any", "blind", KNOWN, random.Random(0))
    game, _ = play(player, NOUNS[0], Rules(show_category=True))
    foreign = {guess(noun.answer) for noun in NOUNS if noun.category != NOUNS[0].category}

    assert not foreign & {turn.question for turn in game.turns}


@pytest.mark.parametrize("asks", get_args(Asks))
@pytest.mark.parametrize("guesses", get_args(Guesses))
def test_what_it_asks_is_drawn_from_its_lists(asks: Asks, guesses: Guesses) -> None:
    player, game = HabitPlayer(asks, guesses, KNOWN, random.Random(0)), Game(NOUNS[7], HIDDEN)
    while not game.over:
        lists = player.lists(game)
        question = player.question(game)

        assert sum(chance for chance, _ in lists) == pytest.approx(1.0)
        assert any(question in texts for _, texts in lists)
        game.record(question, ANSWERER.answer_now(game.noun, question))


# -- 2. names ------------------------------------------------------------------------------------


@pytest.mark.parametrize("guesses", ["always", "early", "late", "blind", "few"])
def test_what_it_may_not_name_it_does_not_name(guesses: Guesses) -> None:
    named = KNOWN.set_of(noun for noun in NOUNS if noun.split == "train")
    player = HabitPlayer("best", guesses, KNOWN, random.Random(0), named)
    held_out = {guess(noun.answer) for noun in NOUNS if noun.split == "test"}
    for noun in NOUNS[:40]:
        game, _ = play(player, noun)
        assert not held_out & {turn.question for turn in game.turns}
        assert game.won == (noun.split == "train") or guesses != "few"


def test_it_thinks_of_them_all_the_same() -> None:
    player = HabitPlayer("any", "always", KNOWN, random.Random(0), named=1)
    game = Game(NOUNS[3], HIDDEN)

    assert player.lists(game) == [(1.0, [guess(noun.answer) for noun in NOUNS])]
    assert player.question(game) == guess(NOUNS[0].answer)


# -- 3. all players ------------------------------------------------------------------------------


def test_pairs_of_habits_are_as_frequent_and_those_that_guess_well_rarer() -> None:
    drawn: list[Any] = [vars(p) for p in islice(players(KNOWN, random.Random(0)), 4200)]
    pairs = Counter((each["_asks"], each["_guesses"]) for each in drawn)
    good = {pair: count for pair, count in pairs.items() if pair[1] == "few"}
    others = {pair: count for pair, count in pairs.items() if pair not in good}

    assert len(pairs) == len(get_args(Asks)) * len(get_args(Guesses)) == 24
    assert 0 < min(good.values()) <= max(good.values()) < 40
    assert 150 < min(others.values()) <= max(others.values()) < 260
