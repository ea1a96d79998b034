"""Games that show how the game goes, as conversations for a supervised warm-up.

They are played by the players of ``habits.py`` on training nouns, name no held-out noun, and are
written down as the short prompts have it. Most of the players are poor: one game in twenty is won.
That is enough to learn what a question and a guess look like, and when the game is over; how to
play well is left to RL. The shipped base has seen such games already, and its recipe needs none.
"""

import random
from collections.abc import Iterator
from typing import Any

from evert.envs.twenty_questions.game import Game
from evert.envs.twenty_questions.habits import HabitPlayer, players
from evert.envs.twenty_questions.knowledge import Knowledge
from evert.envs.twenty_questions.nouns import Noun, of_split, shipped_nouns
from evert.envs.twenty_questions.player import HIDDEN, conversation, shipped_answerer


def demonstrations(seed: int) -> Iterator[list[dict[str, Any]]]:
    """Conversations without end; the same ones for a seed."""
    rng, known = random.Random(seed), Knowledge()
    nouns = of_split(shipped_nouns(), "train")
    for player in players(known, rng, named=known.set_of(nouns)):
        yield conversation(played(player, rng.choice(nouns)), "short")


def played(player: HabitPlayer, noun: Noun) -> Game:
    """One game of a player's, told no category."""
    game, answerer = Game(noun, HIDDEN), shipped_answerer()
    while not game.over:
        question = player.question(game)
        game.record(question, answerer.answer_now(noun, question))
    return game
