"""Conversations for a supervised warm-up, which demonstrate the format of the game.

The games are played on training nouns by the players in ``habits.py`` and never mention a held-out
noun. They use the short prompts, with the category hidden or shown. Most players are weak: they win
one game in twenty, or one in two if the category is shown. This is enough to learn what questions
and guesses look like and when the game is over; playing well is left to RL. The bundled base model
was already trained on such games, so its recipe has no warm-up.
"""

import random
from collections.abc import Iterator
from typing import Any

from evert.envs.twenty_questions.baselines import play
from evert.envs.twenty_questions.game import Rules
from evert.envs.twenty_questions.habits import players
from evert.envs.twenty_questions.information import Knowledge
from evert.envs.twenty_questions.nouns import of_split, shipped_nouns
from evert.envs.twenty_questions.player import HIDDEN, SHOWN, conversation


def demonstrations(seed: int) -> Iterator[list[dict[str, Any]]]:
    """Yield an endless stream of conversations, with the category hidden.

    The same seed gives the same conversations.
    """
    return _conversations(seed, HIDDEN)


def shown_demonstrations(seed: int) -> Iterator[list[dict[str, Any]]]:
    """Yield an endless stream of conversations, with the category shown."""
    return _conversations(seed, SHOWN)


def _conversations(seed: int, rules: Rules) -> Iterator[list[dict[str, Any]]]:
    rng, knowledge = random.Random(seed), Knowledge()
    nouns = of_split(shipped_nouns(), "train")
    for player in players(knowledge, rng, allowed=knowledge.set_of(nouns)):
        yield conversation(play(player, rng.choice(nouns), rules), "short")
