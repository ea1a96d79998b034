"""Helpers for nightly tests. ``make nightly`` sets ``EVERT_NIGHTLY``.

If it is not set, tests marked ``nightly`` are deselected (``conftest.py``), and randomized tests
draw fewer examples.
"""

import os
from collections.abc import Collection, Sequence
from typing import Any

import pytest

IS_NIGHT = bool(os.environ.get("EVERT_NIGHTLY"))


def draws(count: int) -> int:
    """Return the number of examples to draw: ``count`` in nightly runs, otherwise a fifth of it."""
    return count if IS_NIGHT else count // 5


def each(values: Sequence[Any], by_day: Collection[Any]) -> list[Any]:
    """Return values to parametrize with. Values that are not in ``by_day`` become ``nightly``."""
    night = pytest.mark.nightly
    return [one if one in by_day else pytest.param(one, marks=night) for one in values]
