"""Formats numbers and long texts for people."""

from typing import Any


def show(value: Any) -> str:
    """Format a setting or a measurement, with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def count(value: float | None) -> str:
    """Format a count: 12,345 or 1.23 M; None: not known."""
    if value is None:
        return "not known"
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:,.0f}"


def dollars(value: float | None) -> str:
    """Format an amount with cents, or three digits below a dollar."""
    if value is None:
        return "not known"
    return f"${value:,.2f}" if value >= 0.995 or value == 0 else f"${value:.3g}"


def shorten(text: str, limit: int) -> str:
    """Return the first characters of a text, and how many are missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"
