"""Facts about the shipped nouns: a table of yes, no and n/a.

``facts.csv`` has one row per noun and one column per attribute, such as ``has_wings``. "n/a" means
that the question makes no sense for the noun, or that the answer differs between examples of the
noun. For how people ask about an attribute, see the lexicon (``understanding/``).
"""

from functools import cache
from typing import Literal, TypeAlias, cast

from evert.envs.twenty_questions.errors import FactsError
from evert.envs.twenty_questions.nouns import rows

YesNo: TypeAlias = Literal["yes", "no", "n/a"]


class Facts:
    """A table of facts: noun -> attribute -> whether it holds."""

    def __init__(self, table: dict[str, dict[str, YesNo]]) -> None:
        self.table = table
        self.answers = tuple(table)
        self.attributes = tuple(next(iter(table.values()), {}))

    def __contains__(self, answer: object) -> bool:
        return answer in self.table

    def of(self, answer: str, attribute: str) -> YesNo:
        """Return whether an attribute holds for a noun.

        Raises:
            FactsError: There is no such noun or attribute.
        """
        if answer not in self.table:
            raise FactsError(
                f"There are no facts about {answer!r}, only about {len(self.answers)} nouns "
                f"({', '.join(self.answers[:3])}, ...). For other nouns, answer with a model: use "
                "ModelAnswerer."
            )
        if attribute not in self.table[answer]:
            raise FactsError(f"The facts have no attribute {attribute!r}.")
        return self.table[answer][attribute]


@cache
def shipped_facts() -> Facts:
    """Return the facts about the nouns that ship with evert."""
    return Facts({row.pop("answer"): cast(dict[str, YesNo], row) for row in rows("facts.csv")})
