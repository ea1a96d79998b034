"""Formats numbers and long texts for people."""

import re
from typing import Any


def show(value: Any) -> str:
    """Format a setting or a measurement, with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def score(value: float | None) -> str:
    """Format a reward, with a real minus sign; None: no episode got one."""
    return "none" if value is None else f"{value:.2f}".replace("-", "\u2212")


def count(value: float | None) -> str:
    """Format a count: 12,345 or 1.23 M; None: not known."""
    if value is None:
        return "not known"
    for size, unit in ((1e9, "G"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.2f} {unit}"
    return f"{value:,.0f}"


def duration(seconds: float) -> str:
    """Format a duration in a suitable unit."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def dollars(value: float | None) -> str:
    """Format an amount with cents, or three digits below a dollar."""
    if value is None:
        return "not known"
    return f"${value:,.2f}" if value >= 0.995 or value == 0 else f"${value:.3g}"


def parts(name: str) -> list[str]:
    """Return a name's parts, between which a line may break: "module:", "my_", "agent"."""
    return re.findall(r"[^:_./=-]*[:_./=-]+|[^:_./=-]+", name)


def shorten(text: str, limit: int) -> str:
    """Return the first characters of a text, and how many are missing."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}… ({len(text) - limit:,} more characters)"
