"""Players without a model, to compare with: ``RandomPlayer`` and ``OraclePlayer``.

    game = await play(OraclePlayer(), noun, KnowledgeAnswerer())

Both know all nouns and all attributes, and are told the category if the rules show it. The oracle
also knows every fact and asks what tells most: the question whose answer has the highest entropy
over the nouns still possible. What it needs is a lower mark for the number of questions, what the
random one finds a lower mark for success.
"""

import math
import random
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol

from evert.envs.twenty_questions.answerers import Answerer
from evert.envs.twenty_questions.facts import Facts, shipped_facts
from evert.envs.twenty_questions.game import Game, Rules
from evert.envs.twenty_questions.lexicon import load_lexicon
from evert.envs.twenty_questions.nouns import Noun, shipped_nouns


class Player(Protocol):
    """Asks questions without a model."""

    def question(self, game: Game) -> str:
        """The next question, from what a player may know of the game."""
        ...


async def play(player: Player, noun: Noun, answerer: Answerer, rules: Rules | None = None) -> Game:
    """One game, to its end."""
    game = Game(noun, rules or Rules())
    while not game.over:
        question = player.question(game)
        game.record(question, await answerer.answer(noun, question))
    return game


def guess(answer: str) -> str:
    """The question that names a noun."""
    return f"Is it {answer}?"


class RandomPlayer:
    """Asks attributes and guesses nouns at random, none twice in a game.

    Args:
        nouns: What may be guessed; None for those that ship with evert. Where the category is
            shown, only its nouns are guessed.
        seed: The same seed asks the same questions in the same order of games.
    """

    def __init__(self, nouns: Sequence[Noun] | None = None, *, seed: int = 0) -> None:
        self._nouns = tuple(nouns or shipped_nouns())
        self._random = random.Random(seed)

    def question(self, game: Game) -> str:
        """A question not asked yet: a guess one time in two, as long as there are both."""
        asked = {turn.question for turn in game.turns}
        guesses = [guess(noun.answer) for noun in _possible(self._nouns, game)]
        attributes = [*load_lexicon().questions.values()]
        pools = [[text for text in pool if text not in asked] for pool in (guesses, attributes)]
        pool = self._random.choice([pool for pool in pools if pool] or [attributes])
        return self._random.choice(pool)


class OraclePlayer:
    """Asks the most informative question.

    Args:
        nouns: What may be the answer; None for those that ship with evert.
        facts: What is known of them; None for the shipped facts.
        all_categories: Whether to begin with all nouns even where the category is shown.
    """

    def __init__(
        self,
        nouns: Sequence[Noun] | None = None,
        facts: Facts | None = None,
        *,
        all_categories: bool = False,
    ) -> None:
        self._nouns = tuple(nouns or shipped_nouns())
        self._facts = facts or shipped_facts()
        self._all_categories = all_categories
        self._questions = {
            question: attribute
            for attribute, question in load_lexicon().questions.items()
            if attribute in self._facts.attributes
        }
        self._best = lru_cache(maxsize=10_000)(self._most_informative)

    def question(self, game: Game) -> str:
        """The question with the highest entropy of answers; a guess when that tells as much."""
        left = self._nouns if self._all_categories else _possible(self._nouns, game)
        answers = tuple(noun.answer for noun in left)
        for turn in game.turns:
            said = turn.answer.yes_or_no
            answers = tuple(a for a in answers if self._answer(a, turn.question) == said)
        return self._best(answers)

    def _answer(self, answer: str, question: str) -> str:
        attribute = self._questions.get(question)
        if attribute is not None:
            return self._facts.of(answer, attribute)
        return "yes" if question == guess(answer) else "no"

    def _most_informative(self, answers: tuple[str, ...]) -> str:
        candidates = [guess(answers[0])] if answers else []
        candidates += self._questions
        return max(candidates, key=lambda text: self._entropy(answers, text))  # the first of equals

    def _entropy(self, answers: tuple[str, ...], question: str) -> float:
        counts = Counter(self._answer(answer, question) for answer in answers)
        shares = [count / len(answers) for count in counts.values()]
        return -math.fsum(share * math.log2(share) for share in shares)


def _possible(nouns: Sequence[Noun], game: Game) -> Sequence[Noun]:
    """The nouns of the game's category, if the player is told it."""
    if not game.rules.show_category:
        return nouns
    return [noun for noun in nouns if noun.category == game.noun.category]
