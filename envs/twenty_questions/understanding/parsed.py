"""What a question can ask: the parser's results."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

Quantity: TypeAlias = Literal["centimetres", "kilograms", "dollars", "speed", "year"]
"""What is measured: length, weight, price, km/h, and the year when something first existed."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """A question about an attribute.

    Attributes:
        attribute: Its id.
        positive: Whether "yes" means that the noun has the attribute.
    """

    attribute: str
    positive: bool = True

    def __str__(self) -> str:
        return self.attribute if self.positive else f"not {self.attribute}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """A question about whether the noun is above a limit: longer, heavier, faster and so on.

    Attributes:
        positive: Whether "yes" means that it is above the limit.
    """

    quantity: Quantity
    limit: float
    positive: bool = True

    def __str__(self) -> str:
        return f"{'over' if self.positive else 'up to'} {self.limit:g} {self.quantity}"


@dataclass(frozen=True, slots=True)
class Compound:
    """Two or more questions in one: "a small animal that can fly", "red or yellow".

    Attributes:
        any: Whether one "yes" is enough; otherwise all must be "yes".
    """

    parts: "tuple[Attribute | Comparison, ...]"
    any: bool = False


@dataclass(frozen=True, slots=True)
class Guess:
    """A guess.

    Attributes:
        answer: The noun as written in the list, or else as written by the player.
    """

    answer: str


Parsed: TypeAlias = Attribute | Comparison | Compound | Guess | None
