"""Players of a habit of asking and a habit of guessing."""

import random
from collections import Counter
from itertools import islice, product
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
HABITS: list[tuple[Asks, Guesses]] = [*product(get_args(Asks), get_args(Guesses))]


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


def test_asking_habits_tell_from_nothing_to_nearly_all() -> None:
    def bits(asks: Asks) -> float:
        """What the first eight questions tell, on average."""
        told = [
            KNOWN.told(fits, turn.question)
            for game, left in games(asks, "never")
            for turn, fits in list(zip(game.turns, left, strict=True))[:8]
        ]
        return sum(told) / len(told)

    told = {asks: bits(asks) for asks in get_args(Asks)}

    assert told["best"] > max(0.75, 2 * told["any"])
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


def test_nobody_asks_the_same_twice_nor_what_its_lists_do_not_have() -> None:
    for asks, guesses in HABITS:
        for game, _ in games(asks, guesses):
            assert len({t.question for t in game.turns}) == len(game.turns), (asks, guesses)
        player, game = HabitPlayer(asks, guesses, KNOWN, random.Random(0)), Game(NOUNS[7], HIDDEN)
        while not game.over:
            lists, question = player.lists(game), player.question(game)

            assert sum(chance for chance, _ in lists) == pytest.approx(1.0), (asks, guesses)
            assert any(question in texts for _, texts in lists), (asks, guesses)
            game.record(question, ANSWERER.answer_now(game.noun, question))


def test_guessing_habits_guess_when_they_do() -> None:
    def guessed(guesses: Guesses) -> list[tuple[int, bool]]:
        """Of each question its number, and whether it was a guess."""
        played = [game.turns for game, _ in games("any", guesses) if not game.won]
        return [(n, is_guess(t.question)) for turns in played for n, t in enumerate(turns, 1)]

    def numbers(guesses: Guesses) -> set[int]:
        return {number for number, guess in guessed(guesses) if guess}

    blind = [guess for _, guess in guessed("blind")]
    most = HIDDEN.max_questions
    assert numbers("never") == set()
    assert all(guess for _, guess in guessed("always"))
    assert 0.2 < sum(blind) / len(blind) < 0.4
    assert numbers("early") == {*range(1, EARLY + 1)}
    assert numbers("late") == {*range(most - EARLY + 1, most + 1)}


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
    assert max(fitting("late"), fitting("blind")) < 0.5


def test_what_it_may_not_name_it_does_not_name() -> None:
    named = KNOWN.set_of(noun for noun in NOUNS if noun.split == "train")
    held_out = {guess(noun.answer) for noun in NOUNS if noun.split == "test"}
    for guesses in {*get_args(Guesses)} - {"never"}:
        player = HabitPlayer("best", guesses, KNOWN, random.Random(0), named)
        for noun in NOUNS[:40]:
            game, _ = play(player, noun)
            assert not held_out & {turn.question for turn in game.turns}, guesses
            assert game.won == (noun.split == "train") or guesses != "few"

    shown, _ = play(HabitPlayer("any", "blind", KNOWN, random.Random(0)), NOUNS[0], Rules())
    foreign = {guess(noun.answer) for noun in NOUNS if noun.category != NOUNS[0].category}
    assert not foreign & {turn.question for turn in shown.turns}  # where the category is shown

    only = HabitPlayer("any", "always", KNOWN, random.Random(0), named=1)
    game = Game(NOUNS[3], HIDDEN)
    assert only.lists(game) == [(1.0, [guess(noun.answer) for noun in NOUNS])]  # it thinks of all
    assert only.question(game) == guess(NOUNS[0].answer)


def test_pairs_of_habits_are_as_frequent_and_those_that_guess_well_rarer() -> None:
    drawn: list[Any] = [vars(p) for p in islice(players(KNOWN, random.Random(0)), 4200)]
    pairs = Counter((each["_asks"], each["_guesses"]) for each in drawn)
    good = [pairs[pair] for pair in HABITS if pair[1] == "few"]
    others = [pairs[pair] for pair in HABITS if pair[1] != "few"]

    assert {*pairs} == {*HABITS}
    assert 0 < min(good) <= max(good) < 40
    assert 150 < min(others) <= max(others) < 260
