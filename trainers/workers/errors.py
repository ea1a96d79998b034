"""Errors of rollouts in workers.

EvertError
├── WorkerError       (RuntimeError)   workers cannot be started, or cannot get a group
└── LostGroupError    (RuntimeError)   a group's worker died each time the group was played
"""

from evert.bridge.errors import EvertError


class WorkerError(EvertError, RuntimeError):
    """Workers cannot be started, or a group cannot be sent to a worker or back."""


class LostGroupError(EvertError, RuntimeError):
    """A group's worker died each time the group was played, the last time without other groups."""
