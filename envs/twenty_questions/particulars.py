"""Additional facts for the answerer: details such as tusks, and typical lengths and weights.

    facts, lexicon = extended_facts()

``particulars.toml`` maps each phrase to all nouns that it is true of. ``measures.csv`` contains the
typical length and weight of each noun, and of things to compare nouns with. Both are used only by
the answerer. Players, the search tool and the bases only use the shipped facts.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from evert.envs.twenty_questions.errors import FactsError
from evert.envs.twenty_questions.facts import Facts, YesNo, shipped_facts
from evert.envs.twenty_questions.nouns import FOLDER, rows
from evert.envs.twenty_questions.understanding.lexicon import Lexicon, load_lexicon, phrase
from evert.envs.twenty_questions.understanding.wording import FILLER, stems

Measures = Mapping[str, Mapping[str, float]]
"""Name of a thing -> its measures (centimetres, kilograms, ...), some of which may be missing."""


@cache
def shipped_measures() -> Measures:
    """Return the measures in ``measures.csv``."""
    return {
        row.pop("thing"): {name: float(value) for name, value in row.items() if value}
        for row in rows("measures.csv")
    }


@cache
def extended_facts() -> tuple[Facts, Lexicon]:
    """Return the shipped facts and lexicon, with one more attribute per line of the TOML file."""
    facts, lexicon, measures = shipped_facts(), load_lexicon(), shipped_measures()
    path = FOLDER / "particulars.toml"
    lines: dict[str, str] = tomllib.loads(path.read_text(encoding="utf-8"))
    table: dict[str, dict[str, YesNo]] = {answer: {**row} for answer, row in facts.table.items()}
    phrases = [*lexicon.phrases]
    for attribute, nouns in lines.items():
        positive, unclear = _nouns_of_line(nouns, facts, measures)
        phrases += [phrase(attribute, way) for way in attribute.split(", ")]
        for answer in facts.answers:
            fact: YesNo = "yes" if answer in positive else "no"
            table[answer][attribute] = "n/a" if answer in unclear else fact
    return Facts(table), replace(
        lexicon,
        questions=lexicon.questions | dict.fromkeys(lines, ""),
        phrases=tuple(phrases),
        vocabulary=frozenset(part for entry in phrases for part in entry.stems),
        measures=_by_stems(lexicon, measures),
    )


def _nouns_of_line(nouns: str, facts: Facts, measures: Measures) -> tuple[set[str], set[str]]:
    """Return the nouns that a line is true of, and the nouns for which the answer is "n/a".

    A line is a list of tokens. Each token selects nouns: by name, by ``@attribute``, or by a
    measure, as in ``kilograms>5``. With the prefix ``-``, a token removes its nouns; with ``?``, it
    makes their answer "n/a".
    """
    positive, unclear = set[str](), set[str]()
    for token in filter(None, nouns.split(", ")):
        names = _nouns_of_token(token.removeprefix("-").removeprefix("?"), facts, measures)
        if token.startswith("?"):
            unclear |= names
        else:
            positive = positive - names if token.startswith("-") else positive | names
            unclear -= names
    return positive, unclear


def _nouns_of_token(name: str, facts: Facts, measures: Measures) -> set[str]:
    quantity, sharp, limit = name.partition(">")
    if name.startswith("@"):
        return {answer for answer in facts.answers if facts.of(answer, name[1:]) == "yes"}
    if sharp:
        return {answer for answer in facts.answers if measures[answer][quantity] > float(limit)}
    if name not in facts:
        raise FactsError(f"particulars.toml: {name!r} is not a known noun.")
    return {name}


def _by_stems(lexicon: Lexicon, measures: Measures) -> dict[tuple[str, ...], Mapping[str, float]]:
    names = {name: (name, *lexicon.aliases.get(name, ())) for name in measures}
    keys = {tuple(stems(way)): measures[name] for name, ways in names.items() for way in ways}
    short = {tuple(part for part in key if part not in FILLER): keys[key] for key in keys}
    return {key: values for key, values in short.items() if key} | keys
