"""Players of a habit: how each asks, and when it guesses.

    player = HabitPlayer("best", "few", knowledge, random.Random(0))

A habit of asking goes with one of guessing, and a player keeps to both through a game. Of these 24
players most are poor, and those that guess well are rare: one game in twenty is won. Who has seen
them all knows how the game is played, and not how it is won.
"""

import random
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

from evert.envs.twenty_questions.game import Game
from evert.envs.twenty_questions.knowledge import Knowledge, guess

Asks: TypeAlias = Literal["any", "idle", "details", "best"]
"""Anything not asked yet; what is known already; what few nouns differ in; what tells most."""

Guesses: TypeAlias = Literal["never", "always", "early", "late", "blind", "few"]
"""At no turn; at each; at the first five; at the last five; at three in ten; once few nouns fit.
Who waits for few names what fits, the others anything, nobody the same twice."""

EARLY = 5
"""Questions that are early, and as many that are late."""
BLIND_RATE = 0.3
FEW = 2
"""Nouns that are few enough to guess."""
GOOD_RATE = 0.08
"""How frequent those are who wait for few nouns, where every other habit of guessing has 1."""
DETAILS = 4
"""Questions that one who asks for details chooses from, if there are so many."""


class HabitPlayer:
    """Asks and guesses by habit."""

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
        named = knowledge.everything if named is None else named
        self._unnamed = {guess(name) for name in knowledge.names(knowledge.everything & ~named)}

    def question(self, game: Game) -> str:
        """The next question."""
        lists = [
            (chance, [text for text in texts if text not in self._unnamed])
            for chance, texts in self.lists(game)
        ]
        lists = [each for each in lists if each[1]]
        lists = lists or [(1.0, self._asked(game, self._known.fitting(game)))]
        (chosen,) = self._random.choices([texts for _, texts in lists], [c for c, _ in lists])
        return self._random.choice(chosen)

    def lists(self, game: Game) -> list[tuple[float, list[str]]]:
        """What it chooses the next question from: lists, and how probable it is to take each.

        Within a list all are as probable as the others. Guesses are of all nouns that it thinks
        of, also those that it may not name.
        """
        known, left = self._known, self._known.fitting(game)
        chance = self._chance_of_a_guess(game, left)
        thought_of = left if self._guesses == "few" else known.possible(game)
        said = {turn.question for turn in game.turns}
        guesses = [text for text in map(guess, known.names(thought_of)) if text not in said]
        lists = [(chance, guesses), (1 - chance, self._asked(game, left) if chance < 1 else [])]
        return [(weight, texts) for weight, texts in lists if weight]

    def _chance_of_a_guess(self, game: Game, left: int) -> float:
        chances = {
            "never": 0.0,
            "always": 1.0,
            "early": float(game.number <= EARLY),
            "late": float(game.number > game.rules.max_questions - EARLY),
            "blind": BLIND_RATE,
            "few": float(left.bit_count() <= FEW),
        }
        return chances[self._guesses]

    def _asked(self, game: Game, left: int) -> list[str]:
        questions = self._known.questions
        said = {turn.question for turn in game.turns}
        told = [(b, questions[name]) for b, name in self._known.best(left)]
        fresh = [(bits, text) for bits, text in told if text not in said] or told
        pool = [text for _, text in fresh]
        if self._asks == "idle":
            pool = [text for bits, text in fresh if bits == 0] or pool
        elif self._asks == "details":
            telling = [text for bits, text in fresh if bits > 0] or pool
            pool = telling[-DETAILS:]
        elif self._asks == "best":
            pool = pool[:1]
        return pool


def players(
    knowledge: Knowledge, rng: random.Random, named: int | None = None
) -> Iterator[HabitPlayer]:
    """Players without end: pairs of habits are as frequent, those that guess well rarer."""
    weights = [GOOD_RATE if guesses == "few" else 1.0 for guesses in get_args(Guesses)]
    while True:
        (guesses,) = rng.choices(get_args(Guesses), weights)
        yield HabitPlayer(rng.choice(get_args(Asks)), guesses, knowledge, rng, named)
