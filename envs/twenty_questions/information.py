"""Inference from the facts: which nouns match the answers, and how many bits a question gives.

    knowledge = Knowledge()
    nouns = knowledge.candidates(game)               the nouns that match all answers so far
    knowledge.answer_entropy(nouns, "Has it wings?")  the answer's entropy over ``nouns``, in bits
    knowledge.best(nouns)                            (bits, attribute), most informative first

A set of nouns is an int with one bit per noun, so ``&`` intersects sets and ``bit_count`` counts
nouns.
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
    """Return the question that guesses a noun."""
    return GUESS.format(answer)


class Knowledge:
    """Facts about nouns, and what can be inferred from them.

    Args:
        nouns: The nouns (default: the shipped nouns).
        facts: Facts about the nouns (default: the shipped facts).
        attributes: Attributes that questions can ask about (default: all attributes).

    Attributes:
        nouns: The nouns in the order of their bits. The first noun is the lowest bit.
        everything: The set of all nouns.
        questions: Maps each attribute to its canonical question.
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
        """Convert nouns to a set."""
        return sum(self._bits[guess(noun.answer)] for noun in nouns)

    def names(self, candidates: int) -> list[str]:
        """Return the names of the nouns in a set, in order."""
        return [noun.answer for i, noun in enumerate(self.nouns) if candidates >> i & 1]

    def category(self, name: str) -> int:
        """Return the set of nouns in a category."""
        return self.set_of(noun for noun in self.nouns if noun.category == name)

    def possible(self, game: QuestionGame) -> int:
        """Return the nouns that are possible before the first question."""
        return self.category(game.noun.category) if game.rules.show_category else self.everything

    def after(self, candidates: int, question: str, answer: str) -> int:
        """Return the candidates that match the answer. An unknown question excludes none."""
        if question in self._bits:
            return candidates & (self._bits[question] if answer == "yes" else ~self._bits[question])
        name = self._attributes.get(question)
        return candidates if name is None else candidates & self._where[name][answer]

    def candidates(self, game: QuestionGame) -> int:
        """Return the nouns that match all answers in the game so far."""
        candidates = self.possible(game)
        for turn in game.turns:
            candidates = self.after(candidates, turn.question, turn.answer.yes_or_no)
        return candidates

    def row(self, attribute: str) -> list[int]:
        """Return an attribute's value for each noun: 1 for yes, -1 for no, 0 for n/a."""
        where = self._where[attribute]
        return [(where["yes"] >> i & 1) - (where["no"] >> i & 1) for i in range(len(self.nouns))]

    def answer_entropy(self, candidates: int, question: str) -> float:
        """Return the answer's entropy over a set of nouns, in bits (0 for unknown questions)."""
        if question in self._bits:
            match = candidates & self._bits[question]
            return entropy((match.bit_count(), (candidates & ~match).bit_count()))
        where = self._where.get(self._attributes.get(question, ""), {})
        return entropy((candidates & nouns).bit_count() for nouns in where.values())

    def max_bits(self, candidates: int) -> float:
        """Return the maximum number of bits that a question or a guess can give."""
        return max(self.best(candidates)[0][0], entropy((1, candidates.bit_count() - 1)))

    def _best(self, candidates: int) -> list[tuple[float, str]]:
        bits = {n: self.answer_entropy(candidates, text) for n, text in self.questions.items()}
        ranked = sorted(bits, key=lambda name: -bits[name])  # stable, so ties keep their order
        return [(bits[name], name) for name in ranked]


def informative_attributes(knowledge: Knowledge, count: int) -> list[str]:
    """Return the ``count`` attributes that together best distinguish the nouns.

    They are chosen greedily: each one maximises the number of pairs of nouns that it distinguishes
    ("yes" for one and "no" for the other). A pair that n chosen attributes already distinguish has
    the weight 1 / (n + 1) ** 2.
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
    """Return the entropy in bits of the distribution given by counts (0 if all counts are 0)."""
    counts = [count for count in counts if count > 0]
    total = sum(counts)
    return (
        -math.fsum(count / total * math.log2(count / total) for count in counts) if total else 0.0
    )
