"""What a yes/no question in plain English asks: an attribute, a guess and so on, or None.

    parser = QuestionParser(load_lexicon(), shipped_facts().answers)
    parser.parse("Hasn't it got any wings?")     Asked("has_wings", positive=True)
    parser.parse("Is it smaller than a car?")    Asked("over_car", positive=False)
    parser.parse("Is it red or yellow?")         Several((Asked("red"), Asked("yellow")), any=True)
    parser.parse("Could it be a zebra?")         Guess("zebra")
    parser.parse("What colour is it?")           None

The parser uses no model and no random numbers. The first of these rules that has a result counts:

1. *Not yes/no*: a question that begins with what, where, how, ... is not understood.
2. *Guess*: nothing is left but the name of a noun, once "is it", "my guess is", articles and the
   like are taken away (``guesses.py``). "Guess: x" is a guess for any x.
3. *Comparison* with something whose size or weight is known (``comparisons.py``).
4. *Attribute*: phrases of the lexicon whose words are all in the question. Common words have weight
   0, words that say little a quarter. One attribute must explain the whole weight of the question.
   A "not" (or "unable", "lacks", "wingless", "non-") that is in no phrase negates the answer.
5. *Several*: the clauses between "and", "or", "that" are parsed one by one; "a striped animal" asks
   for stripes and for an animal.
6. *Typing errors*: rules 2 to 5 again, with unknown words replaced by similar known ones.
7. *Foreign nouns*: "is it a dragon" is a guess, and a wrong one.
8. *Best attribute*: the one that explains most of the weight, if that is at least ``ENOUGH``.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, groupby, pairwise

from evert.envs.twenty_questions.understanding import wording
from evert.envs.twenty_questions.understanding.comparisons import DOWN, UP, compared
from evert.envs.twenty_questions.understanding.guesses import (
    EXPLICIT,
    GUESS_FILLER,
    Names,
    key,
    proper,
)
from evert.envs.twenty_questions.understanding.lexicon import Lexicon, Phrase, load_lexicon, tie
from evert.envs.twenty_questions.understanding.parsed import Asked, Guess, Measured, Parsed, Several
from evert.envs.twenty_questions.understanding.wording import (
    FILLER,
    NEGATIONS,
    PARTICLES,
    WEAK,
    stem,
    stems_of,
    words,
)

ENOUGH = 0.3
"""Share of a question's weight that its best attribute must explain."""
ALL = 0.99
"""Share that counts as the whole question."""
ALIKE = 0.82
"""Similarity (``difflib``) from which an unknown word is a known one with a typing error."""
KINDS = stems_of(
    """
    animal bird insect reptile mammal fruit vegetable vehicle plant flower person instrument toy
    furniture food woman man girl boy
    """
)
"""Words that may follow another attribute: "a striped animal" asks for both."""
OF_KIND = re.compile(r"Is (?:it an? |this person |it \w+\?)")
"""Beginning of a canonical question whose words may end the name of a kind: "a wild animal"."""
HEADS = stems_of(
    """
    accessory activity area body building collection color container device equipment game gear
    group job king landscape machine material member metal movie part pet place planet product
    queen ruler season shape source sport structure substance supply surface symbol system team
    toy vessel weapon word work
    """
)
"""More words that may end the name of a kind, which is not a guess."""
JOINTS = frozenset({"and", "or", "nor", "but", "that", "which", "who"})
BESIDE = frozenset(
    {"as", "at", "by", "for", "from", "in", "like", "of", "on", "than", "to", "with"}
)
ARTICLES = frozenset({"a", "an", "the"})
QUESTION_WORDS = frozenset({"what", "where", "when", "why", "how", "which", "whose"})

AUXILIARIES = frozenset(
    {"is", "are", "was", "were", "do", "does", "did", "can", "could", "has", "have", "would"}
)


@dataclass(frozen=True, slots=True)
class _Match:
    phrases: list[Phrase]
    explained: frozenset[str]
    score: float


class QuestionParser:
    """Parses questions about the nouns of one list."""

    def __init__(self, lexicon: Lexicon, answers: Iterable[str]) -> None:
        self._lexicon = lexicon
        self._names = Names(answers, lexicon.aliases, lexicon.others)
        self._order = {name: index for index, name in enumerate(lexicon.questions)}
        self._by_stem: dict[str, list[int]] = {}
        for index, phrase in enumerate(lexicon.phrases):
            for part in phrase.stems:
                self._by_stem.setdefault(part, []).append(index)
        self._canonical = {
            tuple(wording.stems(question)): Asked(name)
            for name, question in lexicon.questions.items()
            if question
        }
        self._heads = {
            part
            for one in lexicon.phrases
            if len(one.stems) == 1 and OF_KIND.match(lexicon.questions[one.attribute])
            for part in one.stems
        } | {*FILLER, *WEAK, *KINDS, *HEADS}
        self._remembered = lru_cache(maxsize=10_000)(self._parse)
        self._known = {*self._by_stem, *FILLER, *NEGATIONS, *chain(*self._names.keys)}

    def parse(self, question: str) -> Parsed:
        """What ``question`` asks; None: it is not understood."""
        return self._remembered(question)

    def _parse(self, question: str) -> Parsed:
        found = words(question)
        if found[1:2] == ["not"] and found[0] in AUXILIARIES:
            del found[1]  # "Isn't it alive?" asks what "Is it alive?" asks
        if not found or found[0] in QUESTION_WORDS:
            return None
        explicit = EXPLICIT.match(question)
        if explicit:
            text = question[explicit.end() :].strip(" \t\n.!?\"'")
            return Guess(self._names.find(words(text)) or text) if text else None
        canonical = self._canonical.get(tuple(map(stem, found)))
        if canonical or (found.count("than") == 1 and UP & {*found} and DOWN & {*found}):
            return canonical
        spelled = [*map(self._spelled, found)]
        return (
            self._read(found)
            or self._read(spelled)
            or self._foreign(question, found)
            or self._attribute(found)
            or self._attribute(spelled)
        )

    def _foreign(self, question: str, found: list[str]) -> Guess | None:
        """A guess of a noun in no list: "is it a dragon", "is it the Brooklyn Bridge"."""
        name = proper(question)
        if name and not all(stem(word) in self._lexicon.vocabulary for word in words(name)):
            return Guess(name)
        said = _noun_phrase(found)
        strange = len(said) == 1 and not {*map(stem, said)} & self._known
        headed = len(said) == 2 and stem(said[-1]) not in self._heads and not _qualifies(said[-1])
        return Guess(" ".join(said)) if strange or headed else None

    def _read(self, found: list[str]) -> Parsed:
        named = self._names.find(found)
        if named is not None:
            return Guess(named)
        other = self._names.other(found)
        if other is not None and _noun_phrase(found):
            return Guess(other)
        return (
            compared(found, self._lexicon)
            or self._attribute(found, ALL)
            or self._several(found)
            or (None if other is None else Guess(other))
        )

    def _several(self, found: list[str]) -> Several | None:
        """What the clauses of a question ask; None if it has one, or one is not understood."""
        clauses = _clauses(found)
        parts = tuple(compared(one, self._lexicon) or self._attribute(one) for one in clauses)
        known = tuple(part for part in parts if part is not None)
        if len(known) < len(parts) or len({(type(part), _about(part)) for part in known}) < 2:
            return None
        if "neither" in found:  # it is in the first clause, and negates only that
            turned = (replace(part, positive=not part.positive) for part in known[1:])
            return Several((known[0], *turned))
        return Several(known, any="or" in found)

    def _spelled(self, word: str) -> str:
        if len(word) < 5 or stem(word) in self._known or not word.isalpha():
            return word
        begun = [known for known in self._known if known[0] == word[0]]
        return next(iter(difflib.get_close_matches(stem(word), begun, 1, ALIKE)), word)

    def parse_all(self, text: str) -> list[Asked]:
        """All attributes of a text that is not a question ("striped mammals"), surest first.

        The words that an attribute explains are removed before the next search. If the text has a
        negation, only the first attribute is returned: it is unclear what else is negated.
        """
        left, asked = words(text), list[Asked]()
        while left:
            found = compared(left, self._lexicon) or self._attribute(["it", *left])
            if not isinstance(found, Asked):
                break
            asked.append(found)
            explained = self._matches(set(map(stem, left))).get(found.attribute)
            if explained is None or NEGATIONS & set(map(stem, left)):
                break
            left = [word for word in left if stem(word) not in explained.explained]
        return asked

    def _attribute(self, found: list[str], least: float = ENOUGH) -> Asked | None:
        """The attribute that explains most of a question, at least the share ``least``."""
        parts, negations = self._parts(found)
        total = sum(map(_weight, {*parts}))
        neighbours = pairwise(part for part in parts if part not in ARTICLES)
        possible = self._matches({*parts, *(tie(*pair) for pair in neighbours)})
        matches = {name: one for name, one in possible.items() if _enough(one, total, least)}
        if not matches:
            return None
        best = max(matches, key=lambda name: (matches[name].score, self._order[name]))
        match = matches[best]
        strongest = max(
            match.phrases,
            key=lambda phrase: sum(map(_weight, phrase.stems)) + 0.01 * len(phrase.stems),
        )
        free = [part for part in negations if part not in match.explained]
        return Asked(best, strongest.positive != (len(free) % 2 == 1))

    def _parts(self, found: list[str]) -> tuple[list[str], list[str]]:
        parts, negations = [], []
        for word in found:
            part, base = stem(word), stem(word.removesuffix("less"))
            unknown = part not in self._lexicon.vocabulary
            if unknown and word.endswith("less") and base in self._lexicon.vocabulary:
                parts.append(base)
                negations.append("less")
            elif unknown and word.startswith("non") and stem(word[3:]) in self._lexicon.vocabulary:
                parts.append(stem(word[3:]))
                negations.append("non")
            elif part in NEGATIONS or not (unknown and word.endswith("ly")):
                parts.append(part)
                if part in NEGATIONS:
                    negations.append(part)
        return parts, negations

    def _matches(self, parts: set[str]) -> dict[str, _Match]:
        candidates = {index for part in parts for index in self._by_stem.get(part, ())}
        by_attribute: dict[str, list[Phrase]] = {}
        for index in sorted(candidates):  # a set's order changes from run to run
            phrase = self._lexicon.phrases[index]
            if phrase.stems <= parts:
                by_attribute.setdefault(phrase.attribute, []).append(phrase)
        return {name: _match(phrases) for name, phrases in by_attribute.items()}


def _match(phrases: list[Phrase]) -> _Match:
    explained = frozenset(part for phrase in phrases for part in phrase.stems)
    longest = max(sum(_weight(part) > 0 for part in phrase.stems) for phrase in phrases)
    return _Match(phrases, explained, sum(map(_weight, explained)) + 0.1 * longest)


def _weight(part: str) -> float:
    if "_" in part:
        return 0.2
    if part in FILLER or part in NEGATIONS or part in PARTICLES:
        return 0.0
    return 0.25 if part in WEAK else 1.0


def _enough(match: _Match, total: float, least: float) -> bool:
    share = sum(map(_weight, match.explained)) / total if total else 1.0
    return share >= (ALL if all(phrase.weak for phrase in match.phrases) else least)


def _noun_phrase(found: list[str]) -> list[str]:
    """The words "spinning top" of "is it a spinning top"; empty if the question is not so plain."""
    article = next((at for at, word in enumerate(found[:6]) if word in ("a", "an")), len(found))
    said = found[article + 1 :]
    asks = (
        {"is", "be", "was"} & {*found[:article]}
        and "there" not in found
        and not {*map(stem, found[:article])} - GUESS_FILLER
    )
    plain = not any(word in BESIDE or word in JOINTS or stem(word) in FILLER for word in said)
    return said if asks and plain and len(said) < 4 else []


def _qualifies(word: str) -> bool:
    return word.endswith(("ed", "ful", "ous", "ible", "able", "ish", "less", "ive"))


def _about(part: Asked | Measured) -> str | float:
    return part.attribute if isinstance(part, Asked) else part.limit


def _clauses(found: list[str]) -> Iterator[list[str]]:
    """The clauses of a question. In "is it a striped animal", "animal" is a clause too."""
    for joint, clause in groupby(found, JOINTS.__contains__):
        one = [*clause]
        article = next((at for at, word in enumerate(one[:4]) if word in ("a", "an")), len(one))
        between = {*one[article + 1 : -1]}
        if not joint and between and not between & BESIDE and stem(one[-1]) in KINDS:
            yield one[:-1]
            yield one[-1:]
        elif not joint:
            yield one


def mentions(question: str, answer: str) -> bool:
    """Whether a question contains a noun's name, or one of its other names."""
    found = tuple(wording.stems(question))
    names = {key(name) for name in (answer, *load_lexicon().aliases.get(answer, ()))}
    return any(
        found[start : start + len(name)] == name
        for name in names
        for start in range(len(found) - len(name) + 1)
    )
