"""Conclusions from the facts: the nouns that fit the answers so far, and the bits of a question.

    known = Knowledge()
    known.fitting(game)                 the nouns that fit all answers of the game so far
    known.told(left, "Has it wings?")   the entropy of the answer over these nouns, in bits
    known.best(left)                    attributes with the bits of their questions, the most first

A set of nouns is an int with a bit for each: ``&`` rules nouns out, ``bit_count`` counts them.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import get_args

from evert.envs.twenty_questions.facts import Facts, YesNo, shipped_facts
from evert.envs.twenty_questions.game import Game
from evert.envs.twenty_questions.nouns import Noun, shipped_nouns
from evert.envs.twenty_questions.understanding.lexicon import load_lexicon

GUESS = "Is it {}?"


def guess(answer: str) -> str:
    """The question that names a noun."""
    return GUESS.format(answer)


class Knowledge:
    """Facts about some nouns, for conclusions.

    Args:
        nouns: The nouns; None: the shipped ones.
        facts: Facts about them; None: the shipped ones.
        attributes: Attributes that questions ask about; None: all attributes of the facts.

    Attributes:
        nouns: The nouns in the order of their bits; the bit of the first is 1.
        everything: The set of all nouns.
        questions: Attribute -> the question that asks about it.
    """

    def __init__(
        self,
        nouns: Sequence[Noun] | None = None,
        facts: Facts | None = None,
        attributes: Sequence[str] | None = None,
    ) -> None:
        self.nouns = tuple(nouns or shipped_nouns())
        facts = facts or shipped_facts()
        self.everything = (1 << len(self.nouns)) - 1
        asked = load_lexicon().questions
        self.questions = {
            name: asked[name] for name in attributes or facts.attributes if name in asked
        }
        self._attributes = {question: name for name, question in self.questions.items()}
        self._bits = {guess(noun.answer): 1 << i for i, noun in enumerate(self.nouns)}
        self._where = {
            name: {
                said: self.set_of(n for n in self.nouns if facts.of(n.answer, name) == said)
                for said in get_args(YesNo)
            }
            for name in self.questions
        }
        self.best = lru_cache(maxsize=10_000)(self._best)

    def set_of(self, nouns: Iterable[Noun]) -> int:
        """Some nouns as a set."""
        return sum(self._bits[guess(noun.answer)] for noun in nouns)

    def names(self, left: int) -> list[str]:
        """The nouns of a set, in their order."""
        return [noun.answer for i, noun in enumerate(self.nouns) if left >> i & 1]

    def category(self, name: str) -> int:
        """The nouns of a category."""
        return self.set_of(noun for noun in self.nouns if noun.category == name)

    def possible(self, game: Game) -> int:
        """The nouns that are possible before the first question."""
        return self.category(game.noun.category) if game.rules.show_category else self.everything

    def after(self, left: int, question: str, said: str) -> int:
        """The nouns of a set that fit an answer; all of them if the question is unknown."""
        if question in self._bits:
            return left & (self._bits[question] if said == "yes" else ~self._bits[question])
        name = self._attributes.get(question)
        return left if name is None else left & self._where[name][said]

    def fitting(self, game: Game) -> int:
        """The nouns that fit all answers of the game so far."""
        left = self.possible(game)
        for turn in game.turns:
            left = self.after(left, turn.question, turn.answer.yes_or_no)
        return left

    def row(self, attribute: str) -> list[int]:
        """An attribute's facts, noun by noun: 1 for yes, -1 for no, else 0."""
        where = self._where[attribute]
        return [(where["yes"] >> i & 1) - (where["no"] >> i & 1) for i in range(len(self.nouns))]

    def told(self, left: int, question: str) -> float:
        """The entropy of the answer over a set of nouns, in bits; 0 for an unknown question."""
        if question in self._bits:
            named = left & self._bits[question]
            return entropy((named.bit_count(), (left & ~named).bit_count()))
        where = self._where.get(self._attributes.get(question, ""), {})
        return entropy((left & nouns).bit_count() for nouns in where.values())

    def most(self, left: int) -> float:
        """The most bits that a question can give, guesses included."""
        return max(self.best(left)[0][0], entropy((1, left.bit_count() - 1)))

    def _best(self, left: int) -> list[tuple[float, str]]:
        told = [(self.told(left, text), name) for name, text in self.questions.items()]
        return sorted(told, key=lambda each: -each[0])  # equals keep their order


def telling(known: Knowledge, count: int) -> list[str]:
    """The ``count`` attributes that together distinguish the nouns best.

    They are chosen greedily: the next one distinguishes the most pairs of nouns, with "yes" for one
    and "no" for the other. A pair that n chosen ones distinguish counts 1 / (n + 1) ** 2.
    """
    import numpy as np

    facts = {name: np.array(known.row(name)) for name in known.questions}
    pairs = {name: np.multiply.outer(row, row) == -1 for name, row in facts.items()}
    apart, chosen = np.zeros((len(known.nouns), len(known.nouns))), list[str]()
    for _ in range(count):
        worth = (1 + apart) ** -2
        left = [name for name in known.questions if name not in chosen]
        chosen.append(max(left, key=lambda name: float(worth[pairs[name]].sum())))
        apart += pairs[chosen[-1]]
    return chosen


def entropy(counts: Iterable[int]) -> float:
    """The entropy of a distribution given by counts, in bits; 0 if no count is at least 1."""
    counts = [count for count in counts if count > 0]
    total = sum(counts)
    return (
        -math.fsum(count / total * math.log2(count / total) for count in counts) if total else 0.0
    )
