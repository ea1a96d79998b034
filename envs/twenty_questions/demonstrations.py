"""Games that show how the game goes, as conversations for a supervised warm-up.

They are played by the ``CasualPlayer``, on training nouns, and written down as the short prompts
have it. Its questions are legal, and poor: it finds one noun in eight. That is enough to learn what
a question and a guess look like, and when the game is over; how to play well is left to RL.
"""

import random
from collections.abc import Iterator
from typing import Any

from evert.envs.twenty_questions.baselines import CasualPlayer
from evert.envs.twenty_questions.game import Game
from evert.envs.twenty_questions.nouns import Noun, of_split, shipped_nouns
from evert.envs.twenty_questions.player import conversation, shipped_answerer

GUESS_RATE = 0.02
"""Share of guesses among the questions that are shown."""

TELLING_RATE = 0.25
"""Share of questions that tell much among those that are no guesses."""


def casual_player(seed: int) -> CasualPlayer:
    """The player that is shown: legal, and poor."""
    return CasualPlayer(guess_rate=GUESS_RATE, telling_rate=TELLING_RATE, seed=seed)


def demonstrations(seed: int) -> Iterator[list[dict[str, Any]]]:
    """Conversations without end; the same ones for a seed."""
    rng = random.Random(seed)
    player = casual_player(rng.getrandbits(64))
    nouns = of_split(shipped_nouns(), "train")
    while True:
        yield demonstration(player, rng.choice(nouns))


def demonstration(player: CasualPlayer, noun: Noun) -> list[dict[str, Any]]:
    """One game of a player's, as a conversation."""
    game, answerer = Game(noun), shipped_answerer()
    while not game.over:
        question = player.question(game)
        game.record(question, answerer.answer_now(noun, question))
    return conversation(game, "short")
