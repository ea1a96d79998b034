"""Conclusions from the facts: the nouns that fit the answers so far, and the bits of a question.

    knowledge = Knowledge()
    nouns = knowledge.candidates(game)               the nouns that fit all answers so far
    knowledge.answer_entropy(nouns, "Has it wings?")  the entropy of the answer over them, in bits
    knowledge.best(nouns)                            attributes by their questions' bits, best first

A set of nouns is an int with a bit per noun: ``&`` rules nouns out, ``bit_count`` counts them.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import get_args

from evert.envs.twenty_questions.facts import Facts, YesNo, shipped_facts
from evert.envs.twenty_questions.game import QuestionGame
from evert.envs.twenty_questions.nouns import Noun, shipped_nouns
from evert.envs.twenty_questions.understanding.lexicon import load_lexicon

GUESS = "Is it {}?"


def guess(answer: str) -> str:
    """Return the question that names a noun."""
    return GUESS.format(answer)


class Knowledge:
    """Draws conclusions from facts about some nouns.

    Args:
        nouns: The nouns; None: the shipped ones.
        facts: Facts about them; None: the shipped ones.
        attributes: Attributes that questions ask about; None: all attributes of the facts.

    Attributes:
        nouns: The nouns in the order of their bits; the first noun's bit is 1.
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
        questions = load_lexicon().questions
        self.questions = {
            name: questions[name] for name in attributes or facts.attributes if name in questions
        }
        self._attributes = {question: name for name, question in self.questions.items()}
        self._bits = {guess(noun.answer): 1 << i for i, noun in enumerate(self.nouns)}
        self._where = {
            name: {
                answer: self.set_of(n for n in self.nouns if facts.of(n.answer, name) == answer)
                for answer in get_args(YesNo)
            }
            for name in self.questions
        }
        self.best = lru_cache(maxsize=10_000)(self._best)

    def set_of(self, nouns: Iterable[Noun]) -> int:
        """Return some nouns as a set."""
        return sum(self._bits[guess(noun.answer)] for noun in nouns)

    def names(self, candidates: int) -> list[str]:
        """Return the nouns of a set, in their order."""
        return [noun.answer for i, noun in enumerate(self.nouns) if candidates >> i & 1]

    def category(self, name: str) -> int:
        """Return the nouns of a category."""
        return self.set_of(noun for noun in self.nouns if noun.category == name)

    def possible(self, game: QuestionGame) -> int:
        """Return the nouns still possible before the first question."""
        return self.category(game.noun.category) if game.rules.show_category else self.everything

    def after(self, candidates: int, question: str, answer: str) -> int:
        """Return the nouns in a set that fit an answer; all of them if the question is unknown."""
        if question in self._bits:
            return candidates & (self._bits[question] if answer == "yes" else ~self._bits[question])
        name = self._attributes.get(question)
        return candidates if name is None else candidates & self._where[name][answer]

    def candidates(self, game: QuestionGame) -> int:
        """Return the nouns that fit all answers of the game so far."""
        candidates = self.possible(game)
        for turn in game.turns:
            candidates = self.after(candidates, turn.question, turn.answer.yes_or_no)
        return candidates

    def row(self, attribute: str) -> list[int]:
        """Return an attribute's facts by noun: 1 for yes, -1 for no, else 0."""
        where = self._where[attribute]
        return [(where["yes"] >> i & 1) - (where["no"] >> i & 1) for i in range(len(self.nouns))]

    def answer_entropy(self, candidates: int, question: str) -> float:
        """Return the answer's entropy over a set of nouns, in bits; 0 for an unknown question."""
        if question in self._bits:
            match = candidates & self._bits[question]
            return entropy((match.bit_count(), (candidates & ~match).bit_count()))
        where = self._where.get(self._attributes.get(question, ""), {})
        return entropy((candidates & nouns).bit_count() for nouns in where.values())

    def max_bits(self, candidates: int) -> float:
        """Return the maximum number of bits that a question, or a guess, can give."""
        return max(self.best(candidates)[0][0], entropy((1, candidates.bit_count() - 1)))

    def _best(self, candidates: int) -> list[tuple[float, str]]:
        bits = {n: self.answer_entropy(candidates, text) for n, text in self.questions.items()}
        ranked = sorted(bits, key=lambda name: -bits[name])  # stable: equal ones keep their order
        return [(bits[name], name) for name in ranked]


def informative_attributes(knowledge: Knowledge, count: int) -> list[str]:
    """Return the ``count`` attributes that together distinguish the nouns best.

    They are chosen greedily: each distinguishes the most pairs of nouns, with "yes" for one and
    "no" for the other. A pair that n chosen attributes already distinguish counts 1 / (n + 1) ** 2.
    """
    import numpy as np

    facts = {name: np.array(knowledge.row(name)) for name in knowledge.questions}
    pairs = {name: np.multiply.outer(row, row) == -1 for name, row in facts.items()}
    separations, chosen = np.zeros((len(knowledge.nouns), len(knowledge.nouns))), list[str]()
    for _ in range(count):
        worth = (1 + separations) ** -2
        remaining = [name for name in knowledge.questions if name not in chosen]
        chosen.append(max(remaining, key=lambda name: float(worth[pairs[name]].sum())))
        separations += pairs[chosen[-1]]
    return chosen


def entropy(counts: Iterable[int]) -> float:
    """Return the entropy of counts as a distribution, in bits; 0 if no count is at least 1."""
    counts = [count for count in counts if count > 0]
    total = sum(counts)
    return (
        -math.fsum(count / total * math.log2(count / total) for count in counts) if total else 0.0
    )
