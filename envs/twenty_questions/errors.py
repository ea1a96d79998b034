"""The game's error classes; ``EvertError`` is in ``evert.bridge.errors``.

EvertError
├── FactsError      (ValueError)    facts that do not fit the nouns
├── GameStateError  (RuntimeError)  a turn was played in a game that is over
└── AnswererError   (RuntimeError)  no reply from the answering model can be read
"""

from evert.bridge.errors import EvertError


class FactsError(EvertError, ValueError):
    """Facts are incomplete, or a noun or attribute is not among them."""


class GameStateError(EvertError, RuntimeError):
    """A turn was recorded in a game that is over, or with too many searches."""


class AnswererError(EvertError, RuntimeError):
    """No reply from the answering model can be read as an answer."""
