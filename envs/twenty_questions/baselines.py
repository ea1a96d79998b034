"""Scripted players: ``RandomPlayer`` and ``OraclePlayer``. See ``habits.py`` for weaker players.

    game = play(OraclePlayer(), noun)

Both know all nouns and all attributes, and they see the category if the rules show it.

    random    asks and guesses at random, as a lower bound for the success rate
    oracle    knows every fact and asks the question whose answer has the highest entropy over the
              nouns that are still possible, so it needs close to the minimum number of questions

To evaluate them alongside models, use the agents ``random_agent`` and ``oracle_agent``.
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
    """A scripted player."""

    def question(self, game: QuestionGame) -> str:
        """Return the next question, using only what a player may know about the game."""
        ...


def play(player: QuestionPlayer, noun: Noun, rules: Rules = SHOWN) -> QuestionGame:
    """Play a game to the end, with answers from the shipped facts."""
    game, answerer = QuestionGame(noun, rules), shipped_answerer()
    while not game.over:
        question = player.question(game)
        game.record(question, answerer.answer_now(noun, question))
    return game


class RandomPlayer:
    """Asks about random attributes and guesses random nouns, without repeating any in a game.

    If the category is shown, it only guesses nouns from that category.

    Args:
        seed: Random seed. The questions are reproducible if the games are played in the same order.
    """

    def __init__(self, *, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def question(self, game: QuestionGame) -> str:
        """Return a question that has not been asked yet.

        If both guesses and other questions are left, it chooses a guess half of the time.
        """
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
        """Return the question whose answer has the highest entropy, preferring a guess on ties."""
        candidates = self._knowledge.candidates(game)
        bits, attribute = self._knowledge.best(candidates)[0]
        if candidates and entropy((1, candidates.bit_count() - 1)) >= bits:
            return guess(self._knowledge.names(candidates)[0])
        return self._knowledge.questions[attribute]


# -- as agents -----------------------------------------------------------------------------------

AgentOf: TypeAlias = Callable[[Task], Awaitable[Outcome]]


def random_agent(seed: int) -> AgentOf:
    """Return the random player as an agent (without a model), with the category hidden."""
    return _random(seed, HIDDEN)


def shown_random_agent(seed: int) -> AgentOf:
    """Return the random player as an agent, with the category shown."""
    return _random(seed, SHOWN)


def oracle_agent(seed: int = 0) -> AgentOf:
    """Return the oracle as an agent without a model, with the category hidden. Ignores the seed."""
    oracle = OraclePlayer()
    return _as_agent(lambda _: oracle, HIDDEN)


def shown_oracle_agent(seed: int = 0) -> AgentOf:
    """Return the oracle as an agent, with the category shown."""
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
