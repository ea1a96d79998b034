"""Players without a model: ``RandomPlayer``, ``CasualPlayer`` and ``OraclePlayer``.

    game = await play(OraclePlayer(), noun, KnowledgeAnswerer())

All know all nouns and all attributes, and are told the category if the rules show it.

    random    asks and guesses anything: what it finds is a lower mark for success
    casual    knows every fact, so that its guesses fit the answers; but it asks anything, and
              hardly ever guesses: what a model is shown that is to learn how the game goes
    oracle    knows every fact and asks what tells most, the question whose answer has the highest
              entropy over the nouns still possible: a lower mark for the number of questions

The first and the last are agents too, to be evaluated beside models: ``random_agent``,
``oracle_agent``.
"""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Protocol, TypeAlias

from evert.bridge.agent import Outcome
from evert.envs.twenty_questions.answerers import Answerer
from evert.envs.twenty_questions.facts import Facts, shipped_facts
from evert.envs.twenty_questions.game import Game, Rules
from evert.envs.twenty_questions.lexicon import load_lexicon
from evert.envs.twenty_questions.nouns import Noun, shipped_nouns
from evert.envs.twenty_questions.player import Task, shipped_answerer


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


class _Knowledge:
    """What would be answered to a question about any noun."""

    def __init__(self, facts: Facts | None) -> None:
        self._facts = facts or shipped_facts()
        self.questions = {
            question: attribute
            for attribute, question in load_lexicon().questions.items()
            if attribute in self._facts.attributes
        }

    def answer(self, answer: str, question: str) -> str:
        attribute = self.questions.get(question)
        if attribute is not None:
            return self._facts.of(answer, attribute)
        return "yes" if question == guess(answer) else "no"

    def fitting(self, nouns: Sequence[Noun], game: Game) -> tuple[str, ...]:
        """Names of the nouns that would have been answered as the game was so far."""
        said = [(turn.question, turn.answer.yes_or_no) for turn in game.turns]
        return tuple(
            noun.answer
            for noun in nouns
            if all(self.answer(noun.answer, question) == yes_or_no for question, yes_or_no in said)
        )


TELLING = 0.3
"""Share of what is left that a telling question sets apart, at the least."""


class CasualPlayer:
    """Asks any attribute, none twice; now and then it guesses something that fits all answers.

    Args:
        nouns: What may be guessed; None for those that ship with evert.
        facts: What is known of them; None for the shipped facts.
        guess_rate: Share of its questions that are guesses.
        telling_rate: Share of the others that tell something: at least ``TELLING`` of what is
            left would be answered yes, and as much no. The rest is about anything.
        seed: The same seed asks the same questions in the same order of games.
    """

    def __init__(
        self,
        nouns: Sequence[Noun] | None = None,
        facts: Facts | None = None,
        *,
        guess_rate: float,
        telling_rate: float = 0.0,
        seed: int = 0,
    ) -> None:
        self._nouns = tuple(nouns or shipped_nouns())
        self._knowledge = _Knowledge(facts)
        self._guess_rate = guess_rate
        self._telling_rate = telling_rate
        self._random = random.Random(seed)

    def question(self, game: Game) -> str:
        """The next question."""
        left = self._knowledge.fitting(_possible(self._nouns, game), game)
        if left and self._random.random() < self._guess_rate:
            return guess(self._random.choice(left))
        asked = {turn.question for turn in game.turns}
        pool = [question for question in self._knowledge.questions if question not in asked]
        if self._random.random() < self._telling_rate:
            pool = [question for question in pool if self._tells(question, left)] or pool
        return self._random.choice(pool)

    def _tells(self, question: str, left: Sequence[str]) -> bool:
        answers = Counter(self._knowledge.answer(answer, question) for answer in left)
        return min(answers["yes"], answers["no"]) >= TELLING * len(left) > TELLING


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
        self._knowledge = _Knowledge(facts)
        self._all_categories = all_categories
        self._best = lru_cache(maxsize=10_000)(self._most_informative)

    def question(self, game: Game) -> str:
        """The question with the highest entropy of answers; a guess when that tells as much."""
        left = self._nouns if self._all_categories else _possible(self._nouns, game)
        return self._best(self._knowledge.fitting(left, game))

    def _most_informative(self, answers: tuple[str, ...]) -> str:
        candidates = [guess(answers[0])] if answers else []
        candidates += self._knowledge.questions
        return max(candidates, key=lambda text: self._entropy(answers, text))  # the first of equals

    def _entropy(self, answers: tuple[str, ...], question: str) -> float:
        counts = Counter(self._knowledge.answer(answer, question) for answer in answers)
        shares = [count / len(answers) for count in counts.values()]
        return -math.fsum(share * math.log2(share) for share in shares)


def _possible(nouns: Sequence[Noun], game: Game) -> Sequence[Noun]:
    """The nouns of the game's category, if the player is told it."""
    if not game.rules.show_category:
        return nouns
    return [noun for noun in nouns if noun.category == game.noun.category]


# -- as agents -----------------------------------------------------------------------------------

AgentOf: TypeAlias = Callable[[Task], Awaitable[Outcome]]


def random_agent(seed: int) -> AgentOf:
    """The random player as an agent that calls no model."""
    return _as_agent(lambda task: RandomPlayer(seed=_number(f"{seed}/{task['answer']}")))


def oracle_agent(seed: int = 0) -> AgentOf:
    """The oracle as an agent that calls no model; no seed makes a difference to it."""
    oracle = OraclePlayer()
    return _as_agent(lambda _: oracle)


def _as_agent(player_of: Callable[[Task], Player]) -> AgentOf:
    async def agent(task: Task) -> Outcome:
        game = await play(player_of(task), Noun(**task), shipped_answerer())
        logs: dict[str, str | int | float] = {
            "target": game.noun.answer,
            "transcript": game.transcript(),
        }
        return Outcome(game.score, metrics=game.summary(), logs=logs)

    return agent


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
