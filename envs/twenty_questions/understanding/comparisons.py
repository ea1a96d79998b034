"""Parses comparisons: "bigger than a car", "under ten kilos", "would it fit in a bag", ...

If a question compares the noun's size with a reference from the lexicon, the result is an
``Attribute``. If it compares the noun with a number, or with another thing whose measures we know,
the result is a ``Comparison`` of length, weight, price, speed or age.
"""

from collections.abc import Sequence

from evert.envs.twenty_questions.understanding.lexicon import Lexicon
from evert.envs.twenty_questions.understanding.parsed import Attribute, Comparison, Quantity
from evert.envs.twenty_questions.understanding.wording import (
    DIGITS,
    FILLER,
    NEGATIONS,
    stem,
    stems_of,
)

UP = frozenset({"bigger", "larger", "taller", "longer", "higher", "wider", "greater", "heavier"})
DOWN = frozenset({"smaller", "tinier", "shorter", "littler", "lower", "narrower", "lighter"})
WEIGHT = frozenset({"heavier", "lighter", "weigh", "weighs", "weight"})
PRICE = frozenset({"cheaper", "expensive", "cost", "costs", "pricier", "price", "dollars"})
SPEED = frozenset({"faster", "slower", "quicker"})
MORE, LESS = frozenset({"more", "over", "above"}), frozenset({"less", "under", "below"})
INVERSE = frozenset({"in_pocket", "in_hand"})
"""Attributes that are true of things that are *not* bigger than the reference."""
FITS = frozenset({"fit", "fits", "fitted", "put", "carry", "carried"})
EXISTENCE = stems_of("invented built made created born constructed exist existed around there")
"""Words in questions about the year in which something first existed."""
LIFE = frozenset({"live", "lived", "die", "died", "alive", "living", "dead"})
NOW = 2025
_ANY = (FILLER - {"me", "you"}) | stems_of("average normal regular standard whole single entire")
_MACHINES = {("dishwasher",), ("microwav",), ("wash", "machin")}
_ROUGH = {(name,) for name in stems_of("cat dog horse cow elephant van truck bus whale melon")}
"""References for which measures are more accurate than the attribute in the lexicon."""
_NUMBERS = dict(zip(DIGITS.values(), range(2, 10), strict=True)) | {
    "one": 1,
    "ten": 10,
    "twenty": 20,
    "fifty": 50,
    "hundred": 100,
    "thousand": 1000,
    "million": 1_000_000,
}


def parse_comparison(words: Sequence[str], lexicon: Lexicon) -> Attribute | Comparison | None:
    """Parse a comparison. Returns None if there is none, or if the reference is unknown."""
    return _parse_size(words, lexicon) or (_parse_age(words) if lexicon.measures else None)


def _parse_size(words: Sequence[str], lexicon: Lexicon) -> Attribute | Comparison | None:
    bag = {*words}
    quantity, up, down = _direction(bag)
    if up != down and "than" in bag:
        reference = words[words.index("than") + 1 :]
    elif up != down and quantity == "dollars" and (MORE | LESS) & bag:
        reference = words[max(i for i, word in enumerate(words) if word in MORE | LESS) + 1 :]
    elif FITS & bag and {"in", "inside", "into"} & bag:
        up, down = False, True
        last = max(i for i, word in enumerate(words) if word in ("in", "inside", "into"))
        reference = words[last + 1 :]
    else:
        return None
    key = tuple(stem(word) for word in reference if word == "me" or stem(word) not in _ANY)
    bigger = up != bool(NEGATIONS & {*map(stem, words)})
    if key in _MACHINES and not {"than", "fit", "fits"} & bag:
        return None  # "put in a dishwasher" is not just about size
    attribute = None if key in _ROUGH and key in lexicon.measures else lexicon.references.get(key)
    if attribute is not None and quantity == "centimetres":
        return Attribute(attribute, bigger != (attribute in INVERSE))
    times = 1.0
    if key and key not in lexicon.measures and _number(reference) is not None:
        times = float(_number(reference) or 1)
        key = tuple(part for part in key if not (part.isdigit() or part in map(stem, _NUMBERS)))
        if quantity == "dollars" and not key and lexicon.measures:
            return Comparison(quantity, times, bigger)
    limit = lexicon.measures.get(key, {}).get(quantity)
    return None if limit is None else Comparison(quantity, times * limit, bigger)


def _direction(bag: set[str]) -> tuple[Quantity, bool, bool]:
    """Return the quantity, whether the question asks for more, and whether it asks for less."""
    more, less = bool(MORE & bag), bool(LESS & bag)
    if SPEED & bag:
        return "speed", bool({"faster", "quicker"} & bag), "slower" in bag
    if PRICE & bag:
        return "dollars", more or "pricier" in bag, less or "cheaper" in bag
    if WEIGHT & bag:
        return "kilograms", bool(UP & bag) or "more" in bag, bool(DOWN & bag) or "less" in bag
    return "centimetres", bool(UP & bag), bool(DOWN & bag)


def _parse_age(words: Sequence[str]) -> Comparison | None:
    """Parse a question about age ("over a century old", "invented before 1950")."""
    bag = {*words}
    number = _number(words)
    if number is None or LIFE & bag:
        return None
    negated = bool(NEGATIONS & {*map(stem, words)})
    if {"before", "after"} & bag and 1000 <= number <= NOW:
        return Comparison("year", number, ("after" in bag) != negated)
    if (
        not {"year", "years", "older", "younger"} & bag
        or not {"old", "older", "newer", "younger", "ago", "last", "past"} & bag
    ):
        return None
    recent = bool({"less", "under", "newer", "younger", "last", "past"} & bag)
    if "ago" in bag and not EXISTENCE & {*map(stem, words)}:
        return None
    return Comparison("year", NOW - number, recent != negated)


def _number(words: Sequence[str]) -> float | None:
    numbers = [float(w) if w.isdigit() else _NUMBERS.get(w) for w in words if w != "one"]
    values = [number for number in numbers if number is not None]
    product = 1.0
    for number in values:
        product *= number
    return product if values else None
