"""A graded score for texts, used throughout the gallery. RL can only learn if rewards differ."""

from difflib import SequenceMatcher


def closeness(said: object, wanted: str) -> float:
    """Return the similarity of two texts, from 0.0 to 1.0 (equal), ignoring case."""
    return SequenceMatcher(None, str(said).casefold(), wanted.casefold(), autojunk=False).ratio()
