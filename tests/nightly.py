"""Nightly tests, a part of which runs on each change. ``make nightly`` sets ``EVERT_NIGHTLY``.

Without it, tests marked ``nightly`` are left out (``conftest.py``), and random tests draw fewer
examples.
"""

import os
from collections.abc import Collection, Sequence
from typing import Any

import pytest

IS_NIGHT = bool(os.environ.get("EVERT_NIGHTLY"))


def draws(count: int) -> int:
    """Return how many examples to draw: ``count`` in nightly runs, else a fifth."""
    return count if IS_NIGHT else count // 5


def each(values: Sequence[Any], by_day: Collection[Any]) -> list[Any]:
    """Return the values to parametrize by; those not in ``by_day`` are marked ``nightly``."""
    night = pytest.mark.nightly
    return [one if one in by_day else pytest.param(one, marks=night) for one in values]
