"""Scripted players with fixed habits of asking and guessing.

    player = HabitPlayer("best", "few", knowledge, random.Random(0))

There are 24 combinations of habits. Most of these players are weak, and players who guess well are
rare, so only one game in twenty is won. A model trained on their games knows how to play, but not
how to win.
"""

import random
from collections.abc import Iterator
from typing import Literal, TypeAlias, get_args

from evert.envs.twenty_questions.game import QuestionGame
from evert.envs.twenty_questions.information import Knowledge, guess

Asks: TypeAlias = Literal["any", "idle", "details", "best"]
"""How to ask: any new question ("any"), one with a known answer ("idle"), one that reveals little
("details"), or the most informative one ("best")."""

Guesses: TypeAlias = Literal["never", "always", "early", "late", "blind", "few"]
"""When to guess: never, always, in the first five turns ("early"), in the last five ("late"), in
30% of the turns ("blind"), or when few nouns match ("few"). "few" guesses a matching noun, and
the other habits guess any noun. No noun is guessed twice."""

EARLY = 5
"""The number of turns that count as "early". The same number count as "late"."""
BLIND_RATE = 0.3
FEW = 2
"""With the habit "few", the player guesses when at most this many nouns match."""
GOOD_RATE = 0.08
"""Frequency of "few" relative to each of the other guessing habits."""
DETAILS = 4
"""Maximum number of questions that "details" chooses from."""


class HabitPlayer:
    """A player with fixed habits. It only guesses ``allowed`` nouns (default: all nouns)."""

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
        """Return the lists from which the next question is drawn, with their probabilities.

        All questions in a list are equally likely. The guesses still include nouns that are not
        allowed; ``question`` removes them.
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
    """Yield an endless stream of players. All habits except "few" are equally likely."""
    weights = [GOOD_RATE if guesses == "few" else 1.0 for guesses in get_args(Guesses)]
    while True:
        (guesses,) = rng.choices(get_args(Guesses), weights)
        yield HabitPlayer(rng.choice(get_args(Asks)), guesses, knowledge, rng, allowed)
