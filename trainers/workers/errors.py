"""Exceptions raised by rollouts in workers.

EvertError
├── WorkerError       (RuntimeError)   workers cannot be started, or groups cannot be sent to them
└── LostGroupError    (RuntimeError)   a group's worker died on every attempt
"""

from evert.bridge.errors import EvertError


class WorkerError(EvertError, RuntimeError):
    """Workers could not be started, or a group or its result could not be sent."""


class LostGroupError(EvertError, RuntimeError):
    """A group's worker died on every attempt, even when that worker played no other group."""
