"""A graded text score, used throughout the gallery, since RL can only learn if rewards differ."""

from difflib import SequenceMatcher


def closeness(said: object, wanted: str) -> float:
    """Return the similarity of two texts, from 0.0 to 1.0 (identical), ignoring case."""
    return SequenceMatcher(None, str(said).casefold(), wanted.casefold(), autojunk=False).ratio()
