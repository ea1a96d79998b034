"""The error of the Gymnasium side; its root is ``evert.bridge.errors``.

Actions and the order of calls have errors of Gymnasium's own (``gymnasium.error.InvalidAction``,
``ResetNeeded``, ``RegistrationError``), which is what users of Gymnasium catch.
"""

from evert.bridge.errors import EvertError


class EnvArgumentError(EvertError, ValueError):
    """An argument of an environment, or of its ``reset``, has no such value or name."""
