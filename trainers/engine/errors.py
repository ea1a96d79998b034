"""Errors of the embedded engine, under evert's one root.

    EvertError
    ├── ModelNotFoundError    (ValueError)    a model name or folder that cannot be loaded here
    ├── LossInputError        (ValueError)    a datum or loss configuration the loss cannot use
    ├── SamplingRequestError  (ValueError)    a prompt or sampling parameters that cannot be served
    ├── CheckpointError       (OSError)       a checkpoint that is missing, corrupt or unwritable
    ├── TrainingError         (RuntimeError)  a training step that could not be taken
    ├── EngineClosedError     (RuntimeError)  a call on an engine that is no longer in use
    └── NetworkRefusedError   (RuntimeError)  something tried to leave this machine

Each message says what we got, what was expected and what to do next.
"""

from evert.bridge.errors import EvertError


class ModelNotFoundError(EvertError, ValueError):
    """No model can be loaded under this name on this machine."""


class LossInputError(EvertError, ValueError):
    """A datum, a loss name or a ``loss_fn_config`` does not fit the loss."""


class SamplingRequestError(EvertError, ValueError):
    """A prompt or its sampling parameters cannot be served by this model or engine."""


class CheckpointError(EvertError, OSError):
    """A checkpoint is missing, corrupt, or could not be written."""


class TrainingError(EvertError, RuntimeError):
    """A training step could not be taken; the weights are unchanged by it."""


class EngineClosedError(EvertError, RuntimeError):
    """The embedded engine is no longer in use, so its clients serve no more calls."""


class NetworkRefusedError(EvertError, RuntimeError):
    """A connection beyond this machine was attempted while the embedded engine was in use.

    A ``RuntimeError`` and not an ``OSError`` on purpose: HTTP clients retry connection errors for
    minutes, and a refusal is final.
    """
