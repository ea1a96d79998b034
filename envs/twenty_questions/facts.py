"""Facts about the shipped nouns: a table of yes, no and n/a.

``facts.csv`` has a row for each noun and a column for each attribute (``has_wings``). "n/a" means
that the question makes no sense for this noun, or that the answer depends on which one is meant.
The lexicon (``understanding/``) knows how people ask about an attribute.
"""

import csv
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TypeAlias, cast

from evert.envs.twenty_questions.errors import FactsError

FOLDER = Path(__file__).parent

YesNo: TypeAlias = Literal["yes", "no", "n/a"]


class Facts:
    """A table of facts."""

    def __init__(self, table: dict[str, dict[str, YesNo]]) -> None:
        self._table = table
        self.answers = tuple(table)
        self.attributes = tuple(next(iter(table.values()), {}))

    def __contains__(self, answer: object) -> bool:
        return answer in self._table

    def of(self, answer: str, attribute: str) -> YesNo:
        """Whether an attribute holds for a noun.

        Raises:
            FactsError: There is no such noun or attribute.
        """
        if answer not in self._table:
            raise FactsError(
                f"Nothing is known of {answer!r}; the facts cover {len(self.answers)} nouns "
                f"({', '.join(self.answers[:3])}, ...). For other nouns let a model answer: "
                "ModelAnswerer."
            )
        if attribute not in self._table[answer]:
            raise FactsError(f"There is no attribute {attribute!r} among the facts.")
        return self._table[answer][attribute]

    def row(self, answer: str) -> Sequence[YesNo]:
        """All facts of one noun, in the order of ``attributes``."""
        return [self.of(answer, attribute) for attribute in self.attributes]


@cache
def shipped_facts() -> Facts:
    """The facts of the nouns that ship with evert."""
    with (FOLDER / "facts.csv").open(newline="", encoding="utf-8") as file:
        rows = [(row.pop("answer"), cast(dict[str, YesNo], row)) for row in csv.DictReader(file)]
    return Facts(dict(rows))
