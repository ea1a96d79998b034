"""The results of parsing a question."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Quantity: TypeAlias = Literal["centimetres", "kilograms", "dollars", "speed", "year"]
"""Length, weight, price, speed in km/h, or the year in which something first existed."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A question about an attribute.

    Attributes:
        attribute: The attribute's id.
        positive: Whether "yes" means that the noun has the attribute.
    """

    attribute: str
    positive: bool = True

    def __str__(self) -> str:
        return self.attribute if self.positive else f"not {self.attribute}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question about whether a quantity is above a limit: longer, heavier, faster and so on.

    Attributes:
        positive: Whether "yes" means that the quantity is above the limit.
    """

    quantity: Quantity
    limit: float
    positive: bool = True

    def __str__(self) -> str:
        return f"{'over' if self.positive else 'up to'} {self.limit:g} {self.quantity}"


@dataclass(frozen=True, slots=True)
class Compound:
    """Several questions in one, such as "a small animal that can fly" or "red or yellow".

    Attributes:
        any: Whether a single "yes" among the parts is enough. Otherwise, all must be "yes".
    """

    parts: "tuple[Attribute | Comparison, ...]"
    any: bool = False


@dataclass(frozen=True, slots=True)
class Guess:
    """A guess.

    Attributes:
        answer: The noun as spelled in the list, or by the player if it is not in the list.
    """

    answer: str


Parsed: TypeAlias = Attribute | Comparison | Compound | Guess | None
