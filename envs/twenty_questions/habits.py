"""Players with a fixed habit of asking and a fixed habit of guessing.

    player = HabitPlayer("best", "few", knowledge, random.Random(0))

There are 24 pairs of habits. Most of these players are weak, and those that guess well are rare:
one game in twenty is won. A model that has seen them all knows how to play, but not how to win.
"""

import random
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

from evert.envs.twenty_questions.game import QuestionGame
from evert.envs.twenty_questions.information import Knowledge, guess

Asks: TypeAlias = Literal["any", "idle", "details", "best"]
"""Any new question; one with a known answer; one that reveals little; the one that reveals most."""

Guesses: TypeAlias = Literal["never", "always", "early", "late", "blind", "few"]
"""When to guess: never; always; in the first five turns; in the last five; in three of ten; once
few nouns fit. "few" guesses a noun that fits, the others any noun; no noun is guessed twice."""

EARLY = 5
"""Number of early questions, and of late questions."""
BLIND_RATE = 0.3
FEW = 2
"""The habit "few" guesses once at most this many nouns fit."""
GOOD_RATE = 0.08
"""Frequency of "few", relative to every other guessing habit."""
DETAILS = 4
"""Maximum number of questions that "details" chooses from."""


class HabitPlayer:
    """Asks and guesses by habit; ``allowed`` has the nouns that it may name, None for all."""

    def __init__(
        self,
        asks: Asks,
        guesses: Guesses,
        knowledge: Knowledge,
        rng: random.Random,
        allowed: int | None = None,
    ) -> None:
        self._asks = asks
        self._guesses = guesses
        self._knowledge = knowledge
        self._random = rng
        allowed = knowledge.everything if allowed is None else allowed
        self._unnamed = {guess(name) for name in knowledge.names(knowledge.everything & ~allowed)}

    def question(self, game: QuestionGame) -> str:
        """Return the next question."""
        lists = [
            (chance, [text for text in texts if text not in self._unnamed])
            for chance, texts in self.lists(game)
        ]
        lists = [(chance, texts) for chance, texts in lists if texts]
        lists = lists or [(1.0, self._question_pool(game, self._knowledge.candidates(game)))]
        (pool,) = self._random.choices([texts for _, texts in lists], [c for c, _ in lists])
        return self._random.choice(pool)

    def lists(self, game: QuestionGame) -> list[tuple[float, list[str]]]:
        """Return the lists from which the next question is chosen, each with its probability.

        All questions in a list are equally probable. Guesses include nouns that the player may not
        name.
        """
        knowledge, candidates = self._knowledge, self._knowledge.candidates(game)
        chance = self._chance_of_a_guess(game, candidates)
        guessable = candidates if self._guesses == "few" else knowledge.possible(game)
        previous = {turn.question for turn in game.turns}
        guesses = [text for text in map(guess, knowledge.names(guessable)) if text not in previous]
        pool = self._question_pool(game, candidates) if chance < 1 else []
        lists = [(chance, guesses), (1 - chance, pool)]
        return [(weight, texts) for weight, texts in lists if weight]

    def _chance_of_a_guess(self, game: QuestionGame, candidates: int) -> float:
        chances = {
            "never": 0.0,
            "always": 1.0,
            "early": float(game.number <= EARLY),
            "late": float(game.number > game.rules.max_questions - EARLY),
            "blind": BLIND_RATE,
            "few": float(candidates.bit_count() <= FEW),
        }
        return chances[self._guesses]

    def _question_pool(self, game: QuestionGame, candidates: int) -> list[str]:
        questions = self._knowledge.questions
        previous = {turn.question for turn in game.turns}
        ranked = [(b, questions[name]) for b, name in self._knowledge.best(candidates)]
        fresh = [(bits, text) for bits, text in ranked if text not in previous] or ranked
        pool = [text for _, text in fresh]
        if self._asks == "idle":
            pool = [text for bits, text in fresh if bits == 0] or pool
        elif self._asks == "details":
            informative = [text for bits, text in fresh if bits > 0] or pool
            pool = informative[-DETAILS:]
        elif self._asks == "best":
            pool = pool[:1]
        return pool


def players(
    knowledge: Knowledge, rng: random.Random, allowed: int | None = None
) -> Iterator[HabitPlayer]:
    """Yield players forever; all pairs of habits are equally likely, but "few" is rarer."""
    weights = [GOOD_RATE if guesses == "few" else 1.0 for guesses in get_args(Guesses)]
    while True:
        (guesses,) = rng.choices(get_args(Guesses), weights)
        yield HabitPlayer(rng.choice(get_args(Asks)), guesses, knowledge, rng, allowed)
