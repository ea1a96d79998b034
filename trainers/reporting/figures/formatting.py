"""Numbers and long texts as people are shown them."""

from typing import Any


def show(value: Any) -> str:
    """A setting or a measurement: four digits are enough."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def score(value: float | None) -> str:
    """A reward, with a real minus sign; None: no episode got one."""
    return "none" if value is None else f"{value:.2f}".replace("-", "\u2212")


def count(value: float | None) -> str:
    """A number of things: 12,345 or 1.23 M."""
    if value is None:
        return "not known"
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """A length of time in the unit that suits it."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def dollars(value: float | None) -> str:
    """An amount: cents, or the first digits of less."""
    if value is None:
        return "not known"
    return f"${value:,.2f}" if value >= 0.995 or value == 0 else f"${value:.3g}"


def shorten(text: str, most: int) -> str:
    """The first characters of a text, and how many are missing."""
    if len(text) <= most:
        return text
    return f"{text[:most]}… ({len(text) - most:,} more characters)"
