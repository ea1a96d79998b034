"""Parses yes/no questions in plain English. The result is an attribute, a guess, ... or None.

    parser = QuestionParser(load_lexicon(), shipped_facts().answers)
    parser.parse("Hasn't it got any wings?")   Attribute("has_wings", positive=True)
    parser.parse("Is it smaller than a car?")  Attribute("over_car", positive=False)
    parser.parse("Is it red or yellow?")       Compound((Attribute("red"), ...), any=True)
    parser.parse("Could it be a zebra?")       Guess("zebra")
    parser.parse("What colour is it?")         None

The parser is deterministic and doesn't use a model. It applies these rules until one has a result:

1. *Not yes/no*: a question that starts with what, where, how, ... is not understood.
2. *Guess*: nothing but the name of a noun remains after removing "is it", "my guess is", articles
   and so on (``guesses.py``). "Guess: x" is a guess for any x.
3. *Comparison* with something whose size or weight is known (``comparisons.py``).
4. *Attribute*: all words of one of the attribute's phrases occur in the question. Filler words have
   a weight of 0 and weak words 0.25. A single attribute must explain the question's total weight. A
   "not" (or "unable", "lacks", "wingless", "non-") that is not part of a phrase negates the answer.
5. *Compound*: the clauses between "and", "or" and "that" are parsed separately. "A striped animal"
   asks about stripes and about being an animal.
6. *Typos*: rules 2 to 5 are tried again, after replacing unknown words with similar known words.
7. *Foreign nouns*: "is it a dragon" is a (wrong) guess.
8. *Best attribute*: the attribute that explains most of the weight, if its share is at least
   ``ENOUGH``.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, groupby, pairwise

from evert.envs.twenty_questions.understanding import wording
from evert.envs.twenty_questions.understanding.comparisons import DOWN, UP, parse_comparison
from evert.envs.twenty_questions.understanding.guesses import (
    EXPLICIT,
    GUESS_FILLER,
    Names,
    key,
    proper_name,
)
from evert.envs.twenty_questions.understanding.lexicon import Lexicon, Phrase, load_lexicon, tie
from evert.envs.twenty_questions.understanding.parsed import (
    Attribute,
    Comparison,
    Compound,
    Guess,
    Parsed,
)
from evert.envs.twenty_questions.understanding.wording import (
    FILLER,
    NEGATIONS,
    PARTICLES,
    WEAK,
    stem,
    stems_of,
    words_of,
)

ENOUGH = 0.3
"""Fraction of a question's weight that the best attribute must explain."""
ALL = 0.99
"""Fraction at which an attribute counts as explaining the whole question."""
ALIKE = 0.82
"""Minimum similarity (``difflib``) at which an unknown word counts as a typo of a known word."""
KINDS = stems_of(
    """
    animal bird insect reptile mammal fruit vegetable vehicle plant flower person instrument toy
    furniture food woman man girl boy
    """
)
"""Words that can follow another attribute: "a striped animal" asks about both."""
OF_KIND = re.compile(r"Is (?:it an? |this person |it \w+\?)")
"""If a canonical question starts like this, its words can end a noun phrase ("a wild animal")."""
HEADS = stems_of(
    """
    accessory activity area body building collection color container device equipment game gear
    group job king landscape machine material member metal movie part pet place planet product
    queen ruler season shape source sport structure substance supply surface symbol system team
    toy vessel weapon word work
    """
)
"""More words that can end a noun phrase that is not a guess, as in "a metal object"."""
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
class _PhraseMatch:
    phrases: list[Phrase]
    explained: frozenset[str]
    score: float


class QuestionParser:
    """Parses questions about a list of nouns."""

    def __init__(self, lexicon: Lexicon, answers: Iterable[str]) -> None:
        self._lexicon = lexicon
        self._names = Names(answers, lexicon.aliases, lexicon.foreign_nouns)
        self._order = {name: index for index, name in enumerate(lexicon.questions)}
        self._by_stem: dict[str, list[int]] = {}
        for index, phrase in enumerate(lexicon.phrases):
            for part in phrase.stems:
                self._by_stem.setdefault(part, []).append(index)
        self._canonical = {
            tuple(wording.stems(question)): Attribute(name)
            for name, question in lexicon.questions.items()
            if question
        }
        self._heads = {
            part
            for phrase in lexicon.phrases
            if len(phrase.stems) == 1 and OF_KIND.match(lexicon.questions[phrase.attribute])
            for part in phrase.stems
        } | {*FILLER, *WEAK, *KINDS, *HEADS}
        self._cached_parse = lru_cache(maxsize=10_000)(self._parse)
        self._known_stems = {*self._by_stem, *FILLER, *NEGATIONS, *chain(*self._names.keys)}

    def parse(self, question: str) -> Parsed:
        """Parse ``question``. Returns None if it is not understood."""
        return self._cached_parse(question)

    def _parse(self, question: str) -> Parsed:
        words = words_of(question)
        if words[1:2] == ["not"] and words[0] in AUXILIARIES:
            del words[1]  # "Isn't it alive?" means the same as "Is it alive?"
        if not words or words[0] in QUESTION_WORDS:
            return None
        explicit = EXPLICIT.match(question)
        if explicit:
            text = question[explicit.end() :].strip(" \t\n.!?\"'")
            return Guess(self._names.find(words_of(text)) or text) if text else None
        canonical = self._canonical.get(tuple(map(stem, words)))
        if canonical or (words.count("than") == 1 and UP & {*words} and DOWN & {*words}):
            return canonical
        corrected = [*map(self._fix_spelling, words)]
        return (
            self._parse_words(words)
            or self._parse_words(corrected)
            or self._parse_foreign(question, words)
            or self._parse_attribute(words)
            or self._parse_attribute(corrected)
        )

    def _parse_foreign(self, question: str, words: list[str]) -> Guess | None:
        """Parse a guess of an unknown noun: "is it a dragon", "is it the Brooklyn Bridge"."""
        name = proper_name(question)
        if name and not all(stem(word) in self._lexicon.vocabulary for word in words_of(name)):
            return Guess(name)
        phrase = _noun_phrase(words)
        strange = len(phrase) == 1 and not {*map(stem, phrase)} & self._known_stems
        *_, last = phrase or [""]
        headed = len(phrase) == 2 and stem(last) not in self._heads and not _is_adjective(last)
        return Guess(" ".join(phrase)) if strange or headed else None

    def _parse_words(self, words: list[str]) -> Parsed:
        answer = self._names.find(words)
        if answer is not None:
            return Guess(answer)
        foreign = self._names.find_foreign(words)
        if foreign is not None and _noun_phrase(words):
            return Guess(foreign)
        return (
            parse_comparison(words, self._lexicon)
            or self._parse_attribute(words, ALL)
            or self._parse_several(words)
            or (None if foreign is None else Guess(foreign))
        )

    def _parse_several(self, words: list[str]) -> Compound | None:
        """Parse each clause. Return None for a single clause or if any clause is not understood."""
        clauses = _clauses(words)
        parsed = [parse_comparison(c, self._lexicon) or self._parse_attribute(c) for c in clauses]
        parts = tuple(part for part in parsed if part is not None)
        if len(parts) < len(parsed) or len({(type(p), _subject(p)) for p in parts}) < 2:
            return None
        if "neither" in words:  # the first clause contains the "neither" and is already negated
            negated = (replace(part, positive=not part.positive) for part in parts[1:])
            return Compound((parts[0], *negated))
        return Compound(parts, any="or" in words)

    def _fix_spelling(self, word: str) -> str:
        if len(word) < 5 or stem(word) in self._known_stems or not word.isalpha():
            return word
        candidates = [candidate for candidate in self._known_stems if candidate[0] == word[0]]
        return next(iter(difflib.get_close_matches(stem(word), candidates, 1, ALIKE)), word)

    def parse_all(self, text: str) -> list[Attribute]:
        """Return all attributes in a text such as "striped mammals", the most certain one first.

        The words that an attribute explains are removed before looking for the next one. If the
        text contains a negation, only the first attribute is returned, since it is unclear what
        else is negated.
        """
        remaining, attributes = words_of(text), list[Attribute]()
        while remaining:
            attribute = self._parse_attribute(["it", *remaining])
            parsed = parse_comparison(remaining, self._lexicon) or attribute
            if not isinstance(parsed, Attribute):
                break
            attributes.append(parsed)
            explained = self._matches(set(map(stem, remaining))).get(parsed.attribute)
            if explained is None or NEGATIONS & set(map(stem, remaining)):
                break
            remaining = [word for word in remaining if stem(word) not in explained.explained]
        return attributes

    def _parse_attribute(self, words: list[str], least: float = ENOUGH) -> Attribute | None:
        """Return the attribute that explains most of a question.

        If it explains less than ``least`` of the question's weight, return None.
        """
        parts, negations = self._parts(words)
        total = sum(map(_weight, {*parts}))
        neighbours = pairwise(part for part in parts if part not in ARTICLES)
        possible = self._matches({*parts, *(tie(*pair) for pair in neighbours)})
        matches = {name: m for name, m in possible.items() if _is_enough(m, total, least)}
        if not matches:
            return None
        best = max(matches, key=lambda name: (matches[name].score, self._order[name]))
        match = matches[best]
        strongest = max(
            match.phrases,
            key=lambda phrase: sum(map(_weight, phrase.stems)) + 0.01 * len(phrase.stems),
        )
        free_negations = [part for part in negations if part not in match.explained]
        return Attribute(best, strongest.positive != (len(free_negations) % 2 == 1))

    def _parts(self, words: list[str]) -> tuple[list[str], list[str]]:
        parts, negations = [], []
        for word in words:
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

    def _matches(self, parts: set[str]) -> dict[str, _PhraseMatch]:
        candidates = {index for part in parts for index in self._by_stem.get(part, ())}
        by_attribute: dict[str, list[Phrase]] = {}
        for index in sorted(candidates):  # set order differs between runs
            phrase = self._lexicon.phrases[index]
            if phrase.stems <= parts:
                by_attribute.setdefault(phrase.attribute, []).append(phrase)
        return {name: _match(phrases) for name, phrases in by_attribute.items()}


def _match(phrases: list[Phrase]) -> _PhraseMatch:
    explained = frozenset(part for phrase in phrases for part in phrase.stems)
    longest = max(sum(_weight(part) > 0 for part in phrase.stems) for phrase in phrases)
    return _PhraseMatch(phrases, explained, sum(map(_weight, explained)) + 0.1 * longest)


def _weight(part: str) -> float:
    if "_" in part:
        return 0.2
    if part in FILLER or part in NEGATIONS or part in PARTICLES:
        return 0.0
    return 0.25 if part in WEAK else 1.0


def _is_enough(match: _PhraseMatch, total: float, least: float) -> bool:
    share = sum(map(_weight, match.explained)) / total if total else 1.0
    return share >= (ALL if all(phrase.weak for phrase in match.phrases) else least)


def _noun_phrase(words: list[str]) -> list[str]:
    """Return ["spinning", "top"] for "is it a spinning top", or [] for complex questions."""
    article = next((at for at, word in enumerate(words[:6]) if word in ("a", "an")), len(words))
    phrase = words[article + 1 :]
    asks = (
        {"is", "be", "was"} & {*words[:article]}
        and "there" not in words
        and not {*map(stem, words[:article])} - GUESS_FILLER
    )
    plain = not any(word in BESIDE or word in JOINTS or stem(word) in FILLER for word in phrase)
    return phrase if asks and plain and len(phrase) < 4 else []


def _is_adjective(word: str) -> bool:
    return word.endswith(("ed", "ful", "ous", "ible", "able", "ish", "less", "ive"))


def _subject(part: Attribute | Comparison) -> str | float:
    return part.attribute if isinstance(part, Attribute) else part.limit


def _clauses(words: list[str]) -> Iterator[list[str]]:
    """Yield the clauses of a question. "animal" in "is it a striped animal" is also a clause."""
    for joint, group in groupby(words, JOINTS.__contains__):
        clause = [*group]
        length = len(clause)
        article = next((i for i, word in enumerate(clause[:4]) if word in ("a", "an")), length)
        between = {*clause[article + 1 : -1]}
        if not joint and between and not between & BESIDE and stem(clause[-1]) in KINDS:
            yield clause[:-1]
            yield clause[-1:]
        elif not joint:
            yield clause


def mentions(question: str, answer: str) -> bool:
    """Return whether a question contains the name of a noun or one of its aliases."""
    question_stems = tuple(wording.stems(question))
    names = {key(name) for name in (answer, *load_lexicon().aliases.get(answer, ()))}
    return any(
        question_stems[start : start + len(name)] == name
        for name in names
        for start in range(len(question_stems) - len(name) + 1)
    )
