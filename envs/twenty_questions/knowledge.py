"""What follows from the facts: which nouns fit the answers so far, and what a question would tell.

    known = Knowledge()
    known.fitting(game)                 the nouns that would have been answered as the game was
    known.told(left, "Has it wings?")   what its answer tells about them: at the least 0, in bits
    known.best(left)                    the attributes with that, the most telling first

A set of nouns is an int, a bit a noun: to rule nouns out is one "and", to count them ``bit_count``.
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
    """Facts of some nouns.

    Args:
        nouns: Which; None for those that ship with evert.
        facts: What is true of them; None for the shipped facts.
        attributes: What it can ask about; None: whatever the facts have.

    Attributes:
        nouns: All of them; the bit of the first is 1.
        everything: The set of all of them.
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
        """The nouns that a player may think of before the first question."""
        return self.category(game.noun.category) if game.rules.show_category else self.everything

    def after(self, left: int, question: str, said: str) -> int:
        """Those of a set that would have been answered so; all, if it is no question we know."""
        if question in self._bits:
            return left & (self._bits[question] if said == "yes" else ~self._bits[question])
        name = self._attributes.get(question)
        return left if name is None else left & self._where[name][said]

    def fitting(self, game: Game) -> int:
        """The nouns that would have been answered as the game was so far."""
        left = self.possible(game)
        for turn in game.turns:
            left = self.after(left, turn.question, turn.answer.yes_or_no)
        return left

    def row(self, attribute: str) -> list[int]:
        """An attribute's facts, noun by noun: 1 for yes, -1 for no, else 0."""
        where = self._where[attribute]
        return [(where["yes"] >> i & 1) - (where["no"] >> i & 1) for i in range(len(self.nouns))]

    def told(self, left: int, question: str) -> float:
        """The entropy of the answer over a set of nouns, in bits; 0 of an unknown question."""
        if question in self._bits:
            named = left & self._bits[question]
            return entropy((named.bit_count(), (left & ~named).bit_count()))
        where = self._where.get(self._attributes.get(question, ""), {})
        return entropy((left & nouns).bit_count() for nouns in where.values())

    def most(self, left: int) -> float:
        """What the most telling question tells, a guess among them."""
        return max(self.best(left)[0][0], entropy((1, left.bit_count() - 1)))

    def _best(self, left: int) -> list[tuple[float, str]]:
        told = [(self.told(left, text), name) for name, text in self.questions.items()]
        return sorted(told, key=lambda each: -each[0])  # the first of equals stays the first


def telling(known: Knowledge, count: int) -> list[str]:
    """The attributes that together set the nouns apart best.

    Chosen one after the other, each to set as many pairs of nouns apart as it can, the one "yes"
    and the other "no"; a pair that n of them set apart already counts 1 / (n + 1) ** 2.
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
    """Of a distribution given by counts, in bits; counts below 1 are left out, 0 for none."""
    counts = [count for count in counts if count > 0]
    total = sum(counts)
    return (
        -math.fsum(count / total * math.log2(count / total) for count in counts) if total else 0.0
    )
