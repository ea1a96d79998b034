"""The lexicon: phrases for each attribute, aliases for nouns, and things to compare them with.

It is loaded from ``lexicon.toml``. A phrase is a set of stems, all of which must occur in a
question. Phrases don't contain filler words, except for some particles ("made up"). Words joined
with "_" must be adjacent.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from evert.envs.twenty_questions.understanding import wording
from evert.envs.twenty_questions.understanding.wording import FILLER, PARTICLES

LEXICON = Path(__file__).parent / "lexicon.toml"


@dataclass(frozen=True, slots=True)
class Phrase:
    """A way to ask about an attribute.

    Attributes:
        stems: Stems that must all occur in the question.
        positive: False if the phrase means that the noun does not have the attribute.
        weak: Whether the phrase only counts if it explains the whole question.
    """

    attribute: str
    stems: frozenset[str]
    positive: bool
    weak: bool


@dataclass(frozen=True)
class Lexicon:
    """The words that the parser knows.

    Attributes:
        questions: The canonical question for each attribute.
        phrases: Phrases for all attributes, in file order.
        references: Stems of a thing to compare with -> the corresponding size attribute.
        aliases: Alternative names for nouns.
        vocabulary: All stems that occur in phrases.
        foreign_nouns: Things that people guess although they are not in the list of nouns.
        measures: Stems of a thing's name -> its measures (centimetres, kilograms, ...). Empty
            unless they are added by ``extended_facts``.
    """

    questions: dict[str, str]
    phrases: tuple[Phrase, ...]
    references: dict[tuple[str, ...], str]
    aliases: dict[str, tuple[str, ...]]
    vocabulary: frozenset[str]
    foreign_nouns: tuple[str, ...]
    measures: Mapping[tuple[str, ...], Mapping[str, float]]


@cache
def load_lexicon() -> Lexicon:
    """Return the lexicon that ships with evert."""
    tables: dict[str, Any] = tomllib.loads(LEXICON.read_text(encoding="utf-8"))
    attributes = tables["attributes"]
    phrases = tuple(
        phrase(name, text)
        for name, entry in attributes.items()
        for text in [entry["question"], *entry["phrases"]]
    )
    return Lexicon(
        questions={name: entry["question"] for name, entry in attributes.items()},
        phrases=phrases,
        references={
            tuple(wording.stems(text)): name
            for name, texts in tables["references"].items()
            for text in texts
        },
        aliases={name: tuple(texts) for name, texts in tables["nouns"].items()},
        vocabulary=frozenset(part for phrase in phrases for part in phrase.stems),
        foreign_nouns=tuple(name for names in tables["others"].values() for name in names),
        measures={},
    )


def phrase(attribute: str, text: str) -> Phrase:
    """Parse a phrase from the lexicon, where "!" negates it and "~" makes it weak."""
    negative, weak = text.startswith("!"), "~" in text[:2]
    parts = wording.stems(text.replace("_", " "))
    required = [part for part in parts if part not in FILLER or part in PARTICLES]
    if all(part in FILLER for part in required):
        required = parts
    if text.endswith("?"):
        required = [part for part in required if part not in PARTICLES] or parts
    joined = [tie(*map(wording.stem, pair)) for pair in re.findall(r"([a-z]+)_([a-z]+)", text)]
    return Phrase(attribute, frozenset([*required, *joined]), not negative, weak)


def tie(first: str, second: str) -> str:
    """Join two adjacent stems, as in a phrase like "head_on"."""
    return f"{first}_{second}"
