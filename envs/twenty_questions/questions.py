"""What a yes/no question in plain English asks: an attribute, a guess, or nothing we can tell.

    parser = QuestionParser(load_lexicon())
    parser.parse("Hasn't it got any wings?")     Asked("has_wings", positive=True)
    parser.parse("Is it smaller than a car?")    Asked("over_car", positive=False)
    parser.parse("Could it be a zebra?")         Guess("zebra")
    parser.parse("What colour is it?")           None

No model, no chance: four rules, in this order, each of which may settle the matter.

1. *Not yes/no*: a question that begins with what, where, how, ... asks nothing we can tell.
2. *Guess*: nothing is left but the name of a noun, once "is it", "my guess is", articles and the
   like are taken away. "Guess: x" is a guess whatever x is.
3. *Comparison*: "bigger than", "fits in", with something of the lexicon's references.
4. *Attribute*: phrases of the lexicon whose words are all there. Words that everybody uses weigh
   nothing, words that say little weigh a quarter; the attribute that explains most wins if it
   explains enough, and a choice ("an animal or a plant?") asks nothing. A "not" (or "unable",
   "lacks", "wingless", "non-") that belongs to no phrase turns the answer round.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from evert.envs.twenty_questions import wording
from evert.envs.twenty_questions.lexicon import Lexicon, Phrase, load_lexicon
from evert.envs.twenty_questions.wording import (
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


@dataclass(frozen=True, slots=True)
class Asked:
    """A question about an attribute.

    Attributes:
        attribute: Its id.
        positive: Whether "yes" means that the attribute holds.
    """

    attribute: str
    positive: bool = True


@dataclass(frozen=True, slots=True)
class Guess:
    """A guess.

    Attributes:
        answer: The noun as the list writes it; as the player did, if the list does not have it.
    """

    answer: str


Parsed: TypeAlias = Asked | Guess | None


# -- guesses -------------------------------------------------------------------------------------

EXPLICIT = re.compile(r"^\W*(?:my |final )*(?:guess|answer)\s*(?:is|:)\s*", re.IGNORECASE)
RELATIONS = stems_of(
    """
    ability about allow around associate associated at by capable component describe design
    encounter equip for form from function had has have in include instead intend into involve
    off on out over own part possess refer relate related require tend than to together under up
    with
    """
)
"""Words of the filler that set a noun beside the answer, so that it is no guess: "on a table"."""
GUESS_FILLER = (FILLER - RELATIONS) | stems_of(
    """
    guess final believe suppose right correct pair name piece certainly definitely finally hm hmm ah
    oh sure bet say call character animal instrument food vehicle flower landmark person tool toy
    device let chance
    """
)
IDIOM = re.compile(r"\b(?:to be|for sure|by any chance|by chance|think(?:ing)? about)\b")
"""Where they say nothing after all."""
PORTIONS = stems_of("bar bit bowl bottle box bunch cup glass jar loaf pair piece pot set slice")
"""What may be said to be of a noun, and still be the noun: "a loaf of bread"."""
QUESTION_WORDS = frozenset({"what", "where", "when", "why", "how", "which", "whose"})


class Names:
    """Finds nouns by what people call them: case, articles, plurals and aliases do not matter."""

    def __init__(self, answers: Iterable[str], aliases: dict[str, tuple[str, ...]]) -> None:
        self._names: dict[tuple[str, ...], str] = {}
        answers = list(answers)
        for answer in answers:
            for alias in aliases.get(answer, ()):
                self._add(alias, answer)
        for answer in answers:
            self._add(answer, answer)

    def _add(self, name: str, answer: str) -> None:
        key = _key(name)
        self._names[key] = self._names[("".join(key),)] = answer  # "tea pot" is "teapot"

    def find(self, found: Sequence[str]) -> str | None:
        """The noun that words name and say nothing else; None if there is none."""
        found = IDIOM.sub("", " ".join(found)).split()
        for start in range(len(found)):
            key = tuple(map(stem, found[start:]))
            named = self._names.get(key) or self._names.get(("".join(key),))
            if named is not None:
                return named
            portion = stem(found[start]) in PORTIONS and found[start + 1 : start + 2] == ["of"]
            if not portion and stem(found[start]) not in GUESS_FILLER:
                break
        return self._names.get(_key(" ".join(found)))


def _key(text: str) -> tuple[str, ...]:
    parts = wording.stems(text)
    return tuple(part for part in parts if part not in ("a", "an", "the")) or tuple(parts)


# -- comparisons ---------------------------------------------------------------------------------

UP = frozenset({"bigger", "larger", "taller", "longer", "higher", "wider", "greater"})
DOWN = frozenset({"smaller", "tinier", "shorter", "littler", "lower", "narrower"})
INVERSE = frozenset({"in_pocket", "in_hand"})
"""Attributes that hold for what is *not* bigger than the reference."""
FITS = frozenset({"fit", "fits", "fitted", "put"})
_ANY = (FILLER - {"me", "you"}) | stems_of("average normal whole single entire")


def compared(found: Sequence[str], references: dict[tuple[str, ...], str]) -> Asked | None:
    """What a comparison of sizes asks; None if there is none, or with nothing that we know."""
    up, down = bool(UP & {*found}), bool(DOWN & {*found})
    if up != down and "than" in found:
        rest = found[found.index("than") + 1 :]
    elif FITS & {*found} and {"in", "inside", "into"} & {*found}:
        up, down = False, True
        rest = found[max(i for i, word in enumerate(found) if word in ("in", "inside", "into")) :]
        rest = rest[1:]
    else:
        return None
    key = tuple(stem(word) for word in rest if word == "me" or stem(word) not in _ANY)
    attribute = references.get(key)
    if attribute is None:
        return None
    bigger = up != bool(NEGATIONS & {*map(stem, found)})
    return Asked(attribute, bigger != (attribute in INVERSE))


# -- the parser ----------------------------------------------------------------------------------


AUXILIARIES = frozenset(
    {"is", "are", "was", "were", "do", "does", "did", "can", "could", "has", "have", "would"}
)


@dataclass(frozen=True, slots=True)
class _Match:
    phrases: list[Phrase]
    explained: frozenset[str]
    score: float


class QuestionParser:
    """Parses questions about the nouns of one list.

    Args:
        lexicon: How attributes are asked about.
        answers: All nouns that can be guessed.
    """

    def __init__(self, lexicon: Lexicon, answers: Iterable[str]) -> None:
        self._lexicon = lexicon
        self._names = Names(answers, lexicon.aliases)
        self._order = {name: index for index, name in enumerate(lexicon.questions)}
        self._telling = {  # stems that say something by themselves
            part
            for phrase in lexicon.phrases
            for part in phrase.stems
            if _weight(part) == 1.0
            or (_weight(part) and phrase.stems == {part} and not phrase.weak)
        }
        self._by_stem: dict[str, list[int]] = {}
        for index, phrase in enumerate(lexicon.phrases):
            for part in phrase.stems:
                self._by_stem.setdefault(part, []).append(index)

    def parse(self, question: str) -> Parsed:
        """What ``question`` asks; None: nothing that can be told."""
        found = words(question)
        if found[1:2] == ["not"] and found[0] in AUXILIARIES:
            del found[1]  # "Isn't it alive?" asks what "Is it alive?" asks
        if not found or found[0] in QUESTION_WORDS:
            return None
        explicit = EXPLICIT.match(question)
        if explicit:
            text = question[explicit.end() :].strip(" \t\n.!?\"'")
            return Guess(self._names.find(words(text)) or text) if text else None
        named = self._names.find(found)
        if named is not None:
            return Guess(named)
        if "than" in found and UP & {*found} and DOWN & {*found}:
            return None
        return compared(found, self._lexicon.references) or self._attribute(found)

    def parse_all(self, text: str) -> list[Asked]:
        """Every attribute of a text that is no question ("striped mammals"), the surest first.

        What an attribute explains is taken away before the next is looked for. Of a text with a
        negation only the first one is told, since what it belongs to is not.
        """
        left, asked = words(text), list[Asked]()
        while left:
            found = compared(left, self._lexicon.references) or self._attribute(["it", *left])
            if found is None:
                break
            asked.append(found)
            explained = self._matches(set(map(stem, left))).get(found.attribute)
            if explained is None or NEGATIONS & set(map(stem, left)):
                break
            left = [word for word in left if stem(word) not in explained.explained]
        return asked

    def _attribute(self, found: list[str]) -> Asked | None:
        parts, negations = self._parts(found)
        total = sum(map(_weight, {*parts}))
        possible = self._matches({*parts})
        matches = {name: match for name, match in possible.items() if _enough(match, total)}
        if not matches:
            return None
        best = max(matches, key=lambda name: (matches[name].score, self._order[name]))
        if any(self._is_choice(parts, word, best, possible) for word in ("or", "and")):
            return None
        match = matches[best]
        strongest = max(
            match.phrases,
            key=lambda phrase: sum(map(_weight, phrase.stems)) + 0.01 * len(phrase.stems),
        )
        free = [part for part in negations if part not in match.explained]
        return Asked(best, strongest.positive != (len(free) % 2 == 1))

    def _parts(self, found: list[str]) -> tuple[list[str], list[str]]:
        """Stems of a question, and which of its words negate it."""
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

    def _is_choice(
        self, parts: list[str], word: str, best: str, matches: dict[str, _Match]
    ) -> bool:
        """Whether an "or" or "and" stands between two attributes, rather than two words for one."""
        if word not in parts:
            return False
        middle = parts.index(word)
        sides = {*parts[:middle]}, {*parts[middle + 1 :]}
        heavy = [{part for part in side if part in self._telling} for side in sides]
        mine = [bool(side & matches[best].explained) for side in heavy]
        if all(mine):
            return False
        other = heavy[1] if mine[0] else heavy[0]
        return any(other & match.explained for match in matches.values())


def _match(phrases: list[Phrase]) -> _Match:
    explained = frozenset(part for phrase in phrases for part in phrase.stems)
    longest = max(sum(_weight(part) > 0 for part in phrase.stems) for phrase in phrases)
    return _Match(phrases, explained, sum(map(_weight, explained)) + 0.1 * longest)


def _weight(part: str) -> float:
    if part in FILLER or part in NEGATIONS or part in PARTICLES:
        return 0.0
    return 0.25 if part in WEAK else 1.0


def _enough(match: _Match, total: float) -> bool:
    share = sum(map(_weight, match.explained)) / total if total else 1.0
    return share >= (0.99 if all(phrase.weak for phrase in match.phrases) else ENOUGH)


def mentions(question: str, answer: str) -> bool:
    """Whether a question names a noun, or one of its other names, among whatever else it says."""
    found = tuple(wording.stems(question))
    names = {_key(name) for name in (answer, *load_lexicon().aliases.get(answer, ()))}
    return any(
        found[start : start + len(name)] == name
        for name in names
        for start in range(len(found) - len(name) + 1)
    )
