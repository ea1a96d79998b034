"""The valid ranges of sampling parameters, shared by all samplers."""

import math
from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any


def _is(kind: type, value: object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


RANGES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda value: _is(Real, value) and 0 <= value < math.inf,
                    "a finite number of at least 0 (greedy)"),
    "top_p": (lambda value: _is(Real, value) and 0 < value <= 1, "a number above 0 and at most 1"),
    "top_k": (lambda value: _is(Integral, value) and (value == -1 or 1 <= value < 2**63),
              "an integer of at least 1, or -1 for no limit"),
    "max_tokens": (lambda value: value is None or (_is(Integral, value) and 1 <= value < 2**31),
                   "an integer of at least 1, or None"),
    "seed": (lambda value: value is None or (_is(Integral, value) and abs(value) < 2**63),
             "an integer of at most 63 bits, or None"),
}  # fmt: skip
"""Maps parameter names to a validity check and a description of the valid values."""


def out_of_range(parameters: object) -> str | None:
    """Describe the first invalid attribute ("top_p=2; expected ..."), or None if all are valid."""
    for name, (fits, expected) in RANGES.items():
        if hasattr(parameters, name) and not fits(value := getattr(parameters, name)):
            return f"{name}={value!r}; expected {expected}"
    return None
