"""The gallery's score of a text: graded, since RL learns only from rewards that differ."""

from difflib import SequenceMatcher


def closeness(said: object, wanted: str) -> float:
    """Return how similar two texts are, ignoring case: 0.0 to 1.0; 1.0 if they are equal."""
    return SequenceMatcher(None, str(said).casefold(), wanted.casefold(), autojunk=False).ratio()
