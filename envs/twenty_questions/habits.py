"""Players of a habit: how each asks, and when it guesses.

    player = HabitPlayer("best", "few", knowledge, random.Random(0))

A habit of asking goes with one of guessing, and a player keeps to both through a game. Twenty
players, most of them poor: all as frequent as one another, they win one game in seven. Who has seen
them all knows how the game is played, and not how it is won.
"""

import random
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

from evert.envs.twenty_questions.game import Game
from evert.envs.twenty_questions.knowledge import Knowledge, guess

Asks: TypeAlias = Literal["any", "repeats", "idle", "details", "best"]
"""Anything not asked yet; now and then the same again; what is known already; what few nouns differ
in; one of the four that tell most."""

Guesses: TypeAlias = Literal["never", "always", "blind", "few"]
"""Never; at every turn, what fits; three times in ten, whatever was answered; once few fit."""

REPEAT_RATE = 0.5
BLIND_RATE = 0.3
BEST = 4
"""Questions that the best player chooses from."""
FEW = 4
"""Nouns that are few enough to guess."""


class HabitPlayer:
    """Asks and guesses by habit.

    Args:
        asks: How it asks.
        guesses: When it guesses.
        knowledge: What it knows.
        rng: What it draws from.
        named: The nouns it may name; None: all that it knows.
    """

    def __init__(
        self,
        asks: Asks,
        guesses: Guesses,
        knowledge: Knowledge,
        rng: random.Random,
        named: int | None = None,
    ) -> None:
        self._asks = asks
        self._guesses = guesses
        self._known = knowledge
        self._random = rng
        self._named = knowledge.everything if named is None else named

    def question(self, game: Game) -> str:
        """The next question."""
        left = self._known.fitting(game)
        names = self._known.names(self.thinks_of(game) & self._named)
        if names and self._wants_to_guess(left):
            return guess(self._random.choice(names))
        return self._known.questions[self._attribute(game, left)]

    def thinks_of(self, game: Game) -> int:
        """The nouns that it would guess one of, those among them that it may not name."""
        blind = self._guesses == "blind"
        return self._known.possible(game) if blind else self._known.fitting(game)

    def _wants_to_guess(self, left: int) -> bool:
        if self._guesses == "blind":
            return self._random.random() < BLIND_RATE
        return self._guesses == "always" or (self._guesses == "few" and left.bit_count() <= FEW)

    def _attribute(self, game: Game, left: int) -> str:
        said = {turn.question for turn in game.turns}
        asked = [name for name, text in self._known.questions.items() if text in said]
        if self._asks == "repeats" and asked and self._random.random() < REPEAT_RATE:
            return self._random.choice(asked)
        told = [each for each in self._known.best(left) if each[1] not in asked]
        pool = told
        if self._asks == "idle":
            pool = [each for each in told if each[0] == 0]
        elif self._asks in ("details", "best"):
            pool = [each for each in told if each[0] > 0]
            pool = pool[:BEST] if self._asks == "best" else pool[-max(BEST, len(pool) // 4) :]
        return self._random.choice(pool or told)[1]


def players(
    knowledge: Knowledge, rng: random.Random, named: int | None = None
) -> Iterator[HabitPlayer]:
    """Players without end, every pair of habits as frequent as any other."""
    while True:
        asks, guesses = rng.choice(get_args(Asks)), rng.choice(get_args(Guesses))
        yield HabitPlayer(asks, guesses, knowledge, rng, named)
