"""Comparisons of size and weight: "bigger than a car", "under ten kilos", "would it fit in a bag".

With the references of the lexicon they ask an attribute; with another thing that has been measured,
whether the noun is longer or heavier than it.
"""

from collections.abc import Sequence
from typing import Literal

from evert.envs.twenty_questions.lexicon import Lexicon
from evert.envs.twenty_questions.parsed import Asked, Measured
from evert.envs.twenty_questions.wording import DIGITS, FILLER, NEGATIONS, stem, stems_of

UP = frozenset({"bigger", "larger", "taller", "longer", "higher", "wider", "greater", "heavier"})
DOWN = frozenset({"smaller", "tinier", "shorter", "littler", "lower", "narrower", "lighter"})
WEIGHT = frozenset({"heavier", "lighter", "weigh", "weighs", "weight"})
INVERSE = frozenset({"in_pocket", "in_hand"})
"""Attributes that hold for what is *not* bigger than the reference."""
FITS = frozenset({"fit", "fits", "fitted", "put"})
_ANY = (FILLER - {"me", "you"}) | stems_of("average normal regular standard whole single entire")
_NUMBERS = dict(zip(DIGITS.values(), range(2, 10), strict=True)) | {
    "ten": 10,
    "twenty": 20,
    "fifty": 50,
    "hundred": 100,
}


def compared(found: Sequence[str], lexicon: Lexicon) -> Asked | Measured | None:
    """What a comparison of sizes asks; None if there is none, or with nothing that we know."""
    said = {*found}
    quantity: Literal["centimetres", "kilograms"]
    quantity = "kilograms" if WEIGHT & said else "centimetres"
    up = bool(UP & said or ("more" in said and WEIGHT & said))
    down = bool(DOWN & said or ("less" in said and WEIGHT & said))
    if up != down and "than" in found:
        rest = found[found.index("than") + 1 :]
    elif FITS & said and {"in", "inside", "into"} & said:
        up, down = False, True
        rest = found[max(i for i, word in enumerate(found) if word in ("in", "inside", "into")) :]
        rest = rest[1:]
    else:
        return None
    key = tuple(stem(word) for word in rest if word == "me" or stem(word) not in _ANY)
    bigger = up != bool(NEGATIONS & {*map(stem, found)})
    attribute = lexicon.references.get(key)
    if attribute is not None and quantity == "centimetres":
        return Asked(attribute, bigger != (attribute in INVERSE))
    times = 1.0
    if key and key not in lexicon.measures and (key[0].isdigit() or key[0] in _NUMBERS):
        times, key = float(_NUMBERS.get(key[0], key[0])), key[1:]
    limit = lexicon.measures.get(key, {}).get(quantity)
    return None if limit is None else Measured(quantity, times * limit, bigger)
