"""Errors of rollouts in workers, under evert's one root.

EvertError
├── WorkerError       (RuntimeError)   workers cannot be started, or cannot be given a group
└── LostGroupError    (RuntimeError)   a group's worker died each time it was played
"""

from evert.bridge.errors import EvertError


class WorkerError(EvertError, RuntimeError):
    """Workers cannot be started, or a group cannot be sent to a worker or back."""


class LostGroupError(EvertError, RuntimeError):
    """A group's worker died each time it was played, the last time with no other group on it."""
