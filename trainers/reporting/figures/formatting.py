"""Formats numbers and long texts for readers."""

from typing import Any


def show(value: Any) -> str:
    """Format a setting or a measurement; floats get four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def count(value: float | None) -> str:
    """Format a count: 12,345 or 1.23 M; "unknown" for None."""
    if value is None:
        return "unknown"
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:,.0f}"


def dollars(value: float | None) -> str:
    """Format dollars with cents, or with three digits if below one dollar."""
    if value is None:
        return "unknown"
    return f"${value:,.2f}" if value >= 0.995 or value == 0 else f"${value:.3g}"


def shorten(text: str, limit: int) -> str:
    """Return the first ``limit`` characters of a text, with the number of missing characters."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"
