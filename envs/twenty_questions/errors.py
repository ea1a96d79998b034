"""The game's exceptions. ``EvertError`` is defined in ``evert.bridge.errors``.

EvertError
├── FactsError      (ValueError)    the facts don't match the nouns
├── GameStateError  (RuntimeError)  a turn was played after the game was over
└── AnswererError   (RuntimeError)  the answering model gave no valid reply
"""

from evert.bridge.errors import EvertError


class FactsError(EvertError, ValueError):
    """The facts are incomplete, or don't include a noun or attribute."""


class GameStateError(EvertError, RuntimeError):
    """A turn was recorded after the game was over, or with too many searches."""


class AnswererError(EvertError, RuntimeError):
    """The answering model gave no reply that could be parsed as an answer."""
