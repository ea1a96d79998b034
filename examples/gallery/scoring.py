"""How the gallery scores text: graded, since RL learns only from rewards that differ."""

from difflib import SequenceMatcher


def closeness(said: object, wanted: str) -> float:
    """How alike two texts are, case aside: from 0.0 to 1.0, which only the same text gets."""
    return SequenceMatcher(None, str(said).casefold(), wanted.casefold(), autojunk=False).ratio()
