"""Format numbers and long texts."""

from typing import Any


def show(value: Any) -> str:
    """Format a setting or a measurement. Floats get four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def count(value: float | None) -> str:
    """Format a count, like 12,345 or 1.23 M. Return "unknown" for None."""
    if value is None:
        return "unknown"
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:,.0f}"


def dollars(value: float | None) -> str:
    """Format a dollar amount with cents, or with three significant digits below one dollar."""
    if value is None:
        return "unknown"
    return f"${value:,.2f}" if value >= 0.995 or value == 0 else f"${value:.3g}"


def shorten(text: str, limit: int) -> str:
    """Truncate text to ``limit`` characters, and append how many characters are missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"
