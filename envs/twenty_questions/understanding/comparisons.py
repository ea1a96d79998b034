"""Comparisons: "bigger than a car", "under ten kilos", "would it fit in a bag", "older than 100".

A comparison of size with a reference of the lexicon asks about an attribute. One with a number, or
another thing with measures, asks whether the noun is longer, heavier, dearer, faster or younger.
"""

from collections.abc import Sequence

from evert.envs.twenty_questions.understanding.lexicon import Lexicon
from evert.envs.twenty_questions.understanding.parsed import Asked, Measured, Quantity
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
"""Attributes that hold for what is *not* bigger than the reference."""
FITS = frozenset({"fit", "fits", "fitted", "put", "carry", "carried"})
BEGUN = stems_of("invented built made created born constructed exist existed around there")
"""Words of questions about the year when something first existed."""
LIFE = frozenset({"live", "lived", "die", "died", "alive", "living", "dead"})
NOW = 2025
_ANY = (FILLER - {"me", "you"}) | stems_of("average normal regular standard whole single entire")
_MACHINES = {("dishwasher",), ("microwav",), ("wash", "machin")}
_ROUGH = {(name,) for name in stems_of("cat dog horse cow elephant van truck bus whale melon")}
"""References whose measures are more exact than their attribute in the lexicon."""
_NUMBERS = dict(zip(DIGITS.values(), range(2, 10), strict=True)) | {
    "one": 1,
    "ten": 10,
    "twenty": 20,
    "fifty": 50,
    "hundred": 100,
    "thousand": 1000,
    "million": 1_000_000,
}


def compared(found: Sequence[str], lexicon: Lexicon) -> Asked | Measured | None:
    """What a comparison asks; None if there is none, or the thing compared with is unknown."""
    return _sized(found, lexicon) or (_aged(found) if lexicon.measures else None)


def _sized(found: Sequence[str], lexicon: Lexicon) -> Asked | Measured | None:
    said = {*found}
    quantity, up, down = _direction(said)
    if up != down and "than" in said:
        rest = found[found.index("than") + 1 :]
    elif up != down and quantity == "dollars" and (MORE | LESS) & said:
        rest = found[max(i for i, word in enumerate(found) if word in MORE | LESS) + 1 :]
    elif FITS & said and {"in", "inside", "into"} & said:
        up, down = False, True
        rest = found[max(i for i, word in enumerate(found) if word in ("in", "inside", "into")) :]
        rest = rest[1:]
    else:
        return None
    key = tuple(stem(word) for word in rest if word == "me" or stem(word) not in _ANY)
    bigger = up != bool(NEGATIONS & {*map(stem, found)})
    if key in _MACHINES and not {"than", "fit", "fits"} & said:
        return None  # "put in a dishwasher" asks for more than size
    attribute = None if key in _ROUGH and key in lexicon.measures else lexicon.references.get(key)
    if attribute is not None and quantity == "centimetres":
        return Asked(attribute, bigger != (attribute in INVERSE))
    times = 1.0
    if key and key not in lexicon.measures and _number(rest) is not None:
        times = float(_number(rest) or 1)
        key = tuple(part for part in key if not (part.isdigit() or part in map(stem, _NUMBERS)))
        if quantity == "dollars" and not key and lexicon.measures:
            return Measured(quantity, times, bigger)
    limit = lexicon.measures.get(key, {}).get(quantity)
    return None if limit is None else Measured(quantity, times * limit, bigger)


def _direction(said: set[str]) -> tuple[Quantity, bool, bool]:
    """The quantity compared, whether the words ask for more, and whether for less."""
    more, less = bool(MORE & said), bool(LESS & said)
    if SPEED & said:
        return "speed", bool({"faster", "quicker"} & said), "slower" in said
    if PRICE & said:
        return "dollars", more or "pricier" in said, less or "cheaper" in said
    if WEIGHT & said:
        return "kilograms", bool(UP & said) or "more" in said, bool(DOWN & said) or "less" in said
    return "centimetres", bool(UP & said), bool(DOWN & said)


def _aged(found: Sequence[str]) -> Measured | None:
    """What is asked about age: "over a hundred years old", "invented before 1950"; or None."""
    said = {*found}
    number = _number(found)
    if number is None or LIFE & said:
        return None
    turned = bool(NEGATIONS & {*map(stem, found)})
    if {"before", "after"} & said and 1000 <= number <= NOW:
        return Measured("year", number, ("after" in said) != turned)
    if (
        not {"year", "years", "older", "younger"} & said
        or not {"old", "older", "newer", "younger", "ago", "last", "past"} & said
    ):
        return None
    recent = bool({"less", "under", "newer", "younger", "last", "past"} & said)
    if "ago" in said and not BEGUN & {*map(stem, found)}:
        return None
    return Measured("year", NOW - number, recent != turned)


def _number(found: Sequence[str]) -> float | None:
    numbers = [float(w) if w.isdigit() else _NUMBERS.get(w) for w in found if w != "one"]
    known = [number for number in numbers if number is not None]
    product = 1.0
    for number in known:
        product *= number
    return product if known else None
