"""The nouns to find: 200 in 18 categories, four fifths of each for training.

``PROVENANCE.md`` says where they come from.
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
    """A noun to find.

    Attributes:
        answer: The name to guess; case, article and number do not matter.
        category: The category, which the player may be told.
        split: Whether it is for training, or held out ("test").
    """

    answer: str
    category: str
    split: Split


def rows(name: str) -> list[dict[str, str]]:
    """Return the rows of a CSV file of this folder."""
    with (FOLDER / name).open(newline="", encoding="utf-8") as file:
        return [*csv.DictReader(file)]


@cache
def shipped_nouns() -> tuple[Noun, ...]:
    """Return the nouns that ship with evert, in the order of ``nouns.csv``."""
    return tuple(Noun(**row) for row in rows("nouns.csv"))  # type: ignore[arg-type]


def of_split(nouns: Iterable[Noun], split: Split) -> list[Noun]:
    """Return the nouns of one split, in their order."""
    return [noun for noun in nouns if noun.split == split]
