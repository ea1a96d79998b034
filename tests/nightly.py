"""What is played each night, and in part on each change: ``make nightly`` sets ``EVERT_NIGHTLY``.

Without it tests marked ``nightly`` are left out (``conftest.py``), and those that draw, draw less.
"""

import os
from collections.abc import Collection, Sequence
from typing import Any

import pytest

IS_NIGHT = bool(os.environ.get("EVERT_NIGHTLY"))


def draws(count: int) -> int:
    """How many examples to draw: ``count`` each night, a fifth of them by day."""
    return count if IS_NIGHT else count // 5


def each(values: Sequence[Any], by_day: Collection[Any]) -> list[Any]:
    """The values to parametrize by; those that are not in ``by_day`` are marked ``nightly``."""
    night = pytest.mark.nightly
    return [one if one in by_day else pytest.param(one, marks=night) for one in values]
