"""Games that show how the game goes, as conversations for a supervised warm-up.

They are played by the players of ``habits.py`` on training nouns, name no held-out noun, and are
written down as the short prompts have it, with the category hidden or shown. Most of the players
are poor: one game in twenty is won, and one in two where the category is shown. That is enough to
learn what a question and a guess look like, and when the game is over; how to play well is left to
RL. The shipped base has seen such games already, and its recipe needs none.
"""

import random
from collections.abc import Iterator
from typing import Any

from evert.envs.twenty_questions.answerers import shipped_answerer
from evert.envs.twenty_questions.game import Game, Rules
from evert.envs.twenty_questions.habits import HabitPlayer, players
from evert.envs.twenty_questions.knowledge import Knowledge
from evert.envs.twenty_questions.nouns import Noun, of_split, shipped_nouns
from evert.envs.twenty_questions.player import HIDDEN, SHOWN, conversation


def demonstrations(seed: int) -> Iterator[list[dict[str, Any]]]:
    """Conversations without end; the same ones for a seed."""
    return _conversations(seed, HIDDEN)


def shown_demonstrations(seed: int) -> Iterator[list[dict[str, Any]]]:
    """Conversations of players who are told the category."""
    return _conversations(seed, SHOWN)


def _conversations(seed: int, rules: Rules) -> Iterator[list[dict[str, Any]]]:
    rng, known = random.Random(seed), Knowledge()
    nouns = of_split(shipped_nouns(), "train")
    for player in players(known, rng, named=known.set_of(nouns)):
        yield conversation(played(player, rng.choice(nouns), rules), "short")


def played(player: HabitPlayer, noun: Noun, rules: Rules = HIDDEN) -> Game:
    """One game of a player's, told no category unless the rules show it."""
    game, answerer = Game(noun, rules), shipped_answerer()
    while not game.over:
        question = player.question(game)
        game.record(question, answerer.answer_now(noun, question))
    return game
