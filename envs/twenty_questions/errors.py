"""What can be wrong with nouns, facts, lexicons and answers; the root is ``evert.bridge.errors``.

EvertError
├── FactsError      (ValueError)    facts or a lexicon that do not fit the nouns
├── GameStateError  (RuntimeError)  a turn was played in a game that is over
└── AnswererError   (RuntimeError)  a model that answers gave no answer that can be read
"""

from evert.bridge.errors import EvertError
from evert.envs.twenty_questions.understanding.lexicon import FactsError as FactsError


class GameStateError(EvertError, RuntimeError):
    """A turn was recorded in a game that is over, or out of order."""


class AnswererError(EvertError, RuntimeError):
    """The model that answers gave no reply that can be read as an answer."""
