"""Players without a model: ``RandomPlayer`` and ``OraclePlayer``; ``habits.py`` has weaker ones.

    game = play(OraclePlayer(), noun)

Both know all nouns and all attributes, and are told the category if the rules show it.

    random    asks and guesses at random: a lower bound for success
    oracle    knows every fact, and asks the question whose answer has the highest entropy over the
              nouns still possible: close to the minimum number of questions

Both are agents too, for evaluations alongside models: ``random_agent``, ``oracle_agent``.
"""

import hashlib
import random
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

from evert.bridge.episode.agent import Outcome
from evert.envs.twenty_questions.answerers import shipped_answerer
from evert.envs.twenty_questions.game import QuestionGame, Rules
from evert.envs.twenty_questions.information import Knowledge, entropy, guess
from evert.envs.twenty_questions.nouns import Noun, shipped_nouns
from evert.envs.twenty_questions.player import HIDDEN, SHOWN, Task, noun_of, outcome_of
from evert.envs.twenty_questions.understanding.lexicon import load_lexicon


class QuestionPlayer(Protocol):
    """Asks questions without a model."""

    def question(self, game: QuestionGame) -> str:
        """Return the next question, based on what a player may know about the game."""
        ...


def play(player: QuestionPlayer, noun: Noun, rules: Rules = SHOWN) -> QuestionGame:
    """Play a game to its end; the answers come from the shipped facts."""
    game, answerer = QuestionGame(noun, rules), shipped_answerer()
    while not game.over:
        question = player.question(game)
        game.record(question, answerer.answer_now(noun, question))
    return game


class RandomPlayer:
    """Asks about random attributes and guesses random nouns, never repeating one in a game.

    If the category is shown, it guesses only nouns of the category.

    Args:
        seed: The same seed gives the same questions for the same games in the same order.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def question(self, game: QuestionGame) -> str:
        """Return a new question: a guess half of the time, as long as both kinds are left."""
        previous = {turn.question for turn in game.turns}
        guesses = [guess(noun.answer) for noun in shipped_nouns() if _is_possible(noun, game)]
        attributes = [*load_lexicon().questions.values()]
        pools = [[text for text in pool if text not in previous] for pool in (guesses, attributes)]
        pool = self._random.choice([pool for pool in pools if pool] or [attributes])
        return self._random.choice(pool)


def _is_possible(noun: Noun, game: QuestionGame) -> bool:
    return not game.rules.show_category or noun.category == game.noun.category


class OraclePlayer:
    """Asks the most informative question."""

    def __init__(self) -> None:
        self._knowledge = Knowledge()

    def question(self, game: QuestionGame) -> str:
        """Return the question whose answer has the highest entropy; among equals, a guess."""
        candidates = self._knowledge.candidates(game)
        bits, attribute = self._knowledge.best(candidates)[0]
        if candidates and entropy((1, candidates.bit_count() - 1)) >= bits:
            return guess(self._knowledge.names(candidates)[0])
        return self._knowledge.questions[attribute]


# -- as agents -----------------------------------------------------------------------------------

AgentOf: TypeAlias = Callable[[Task], Awaitable[Outcome]]


def random_agent(seed: int) -> AgentOf:
    """Return the random player as an agent that calls no model; the category is hidden."""
    return _random(seed, HIDDEN)


def shown_random_agent(seed: int) -> AgentOf:
    """Return the random player as an agent; the category is shown."""
    return _random(seed, SHOWN)


def oracle_agent(seed: int = 0) -> AgentOf:
    """Return the oracle as an agent without a model; the category is hidden, the seed unused."""
    oracle = OraclePlayer()
    return _as_agent(lambda _: oracle, HIDDEN)


def shown_oracle_agent(seed: int = 0) -> AgentOf:
    """Return the oracle as an agent; the category is shown."""
    oracle = OraclePlayer()
    return _as_agent(lambda _: oracle, SHOWN)


def _random(seed: int, rules: Rules) -> AgentOf:
    return _as_agent(lambda task: RandomPlayer(seed=_seed_from(f"{seed}/{task['answer']}")), rules)


def _as_agent(player_of: Callable[[Task], QuestionPlayer], rules: Rules) -> AgentOf:
    async def agent(task: Task) -> Outcome:
        return outcome_of(play(player_of(task), noun_of(task), rules))

    return agent


def _seed_from(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")
