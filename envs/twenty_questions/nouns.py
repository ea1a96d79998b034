"""The nouns to guess: 200 nouns in 18 categories, of which 80% are for training.

See ``PROVENANCE.md`` for their origin.
"""

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias

FOLDER = Path(__file__).parent

Split: TypeAlias = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun to guess.

    Attributes:
        answer: The name to guess. Case, articles and singular or plural don't matter.
        category: The category, which is shown to the player if the rules say so.
        split: Whether the noun is for training or held out ("test").
    """

    answer: str
    category: str
    split: Split


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file in this folder."""
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


@cache
def shipped_nouns() -> tuple[Noun, ...]:
    """Return the nouns that ship with evert, in the order of ``nouns.csv``."""
    return tuple(Noun(**row) for row in rows("nouns.csv"))  # type: ignore[arg-type]


def of_split(nouns: Iterable[Noun], split: Split) -> list[Noun]:
    """Return the nouns in a split, keeping their order."""
    return [noun for noun in nouns if noun.split == split]
