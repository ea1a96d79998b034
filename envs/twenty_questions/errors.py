"""Classes of errors of the game; ``EvertError`` is in ``evert.bridge.errors``.

EvertError
├── FactsError      (ValueError)    facts or a lexicon that do not fit the nouns
├── GameStateError  (RuntimeError)  a turn was played in a game that is over
└── AnswererError   (RuntimeError)  no reply of the answering model can be read
"""

from evert.bridge.errors import EvertError
from evert.envs.twenty_questions.understanding.lexicon import FactsError as FactsError


class GameStateError(EvertError, RuntimeError):
    """A turn was recorded in a game that is over, or with too many searches."""


class AnswererError(EvertError, RuntimeError):
    """No reply of the answering model can be read as an answer."""
