"""What is known beside the facts: trunks and tusks, and how long and heavy everything is.

    facts, lexicon = everything_known()

``particulars.toml`` has phrases on the left and the nouns they hold for on the right; of all others
they do not hold. ``measures.csv`` has the usual length and weight of every noun, and of what nouns
are compared with. Only who answers knows them: players, the search and the bases have the facts.
"""

import csv
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from evert.envs.twenty_questions.errors import FactsError
from evert.envs.twenty_questions.facts import FOLDER, Facts, YesNo, shipped_facts
from evert.envs.twenty_questions.lexicon import Lexicon, load_lexicon, phrase
from evert.envs.twenty_questions.wording import stems

Measures = Mapping[str, Mapping[str, float]]
"""Centimetres and kilograms by the name of a thing; a thing need not have both."""


@cache
def shipped_measures() -> Measures:
    """The measures that ship with evert."""
    with open(FOLDER / "measures.csv", newline="", encoding="utf-8") as file:
        return {
            row.pop("thing"): {name: float(value) for name, value in row.items() if value}
            for row in csv.DictReader(file)
        }


@cache
def everything_known() -> tuple[Facts, Lexicon]:
    """The shipped facts and lexicon with a further attribute for each line of the particulars.

    Raises:
        FactsError: A line names a noun or an attribute that is not there.
    """
    facts, lexicon, measures = shipped_facts(), load_lexicon(), shipped_measures()
    path = FOLDER / "particulars.toml"
    lines: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8"))
    table: dict[str, dict[str, YesNo]] = {
        answer: dict(zip(facts.attributes, facts.row(answer), strict=True))
        for answer in facts.answers
    }
    phrases = [*lexicon.phrases]
    for asked, nouns in lines.items():
        having = _having(nouns, facts, measures)
        phrases += [phrase(asked, way) for way in asked.split(", ")]
        for answer in facts.answers:
            table[answer][asked] = "yes" if answer in having else "no"
    return Facts(table), replace(
        lexicon,
        questions=lexicon.questions | dict.fromkeys(lines, ""),
        phrases=tuple(phrases),
        vocabulary=frozenset(part for one in phrases for part in one.stems),
        measures=_by_stems(lexicon, measures),
    )


def _having(nouns: str, facts: Facts, measures: Measures) -> set[str]:
    """Nouns of a line: names, ``@attribute``, ``kilograms>5``; ``-`` before one takes it away."""
    having = set[str]()
    for token in filter(None, nouns.split(", ")):
        sign, name = token.startswith("-"), token.removeprefix("-")
        quantity, sharp, limit = name.partition(">")
        if name.startswith("@"):
            meant = {a for a in facts.answers if facts.of(a, name[1:]) == "yes"}
        elif sharp:
            meant = {a for a in facts.answers if measures[a][quantity] > float(limit)}
        elif name in facts:
            meant = {name}
        else:
            raise FactsError(f"particulars.toml: {name!r} in {nouns!r} is none of the nouns.")
        having = having - meant if sign else having | meant
    return having


def _by_stems(lexicon: Lexicon, measures: Measures) -> dict[tuple[str, ...], Mapping[str, float]]:
    names = {name: (name, *lexicon.aliases.get(name, ())) for name in measures}
    return {tuple(stems(said)): measures[name] for name, ways in names.items() for said in ways}
