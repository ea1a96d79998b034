"""Errors of the embedded engine, under evert's one root and the Tinker SDK's.

    EvertError
    ├── ModelNotFoundError     (NotFoundError)       a model that cannot be loaded here
    ├── LossInputError         (BadRequestError)     a datum or configuration the loss cannot use
    ├── SamplingRequestError   (BadRequestError)     a prompt or parameters that cannot be served
    ├── UnsupportedError       (BadRequestError)     a call that only the hosted service answers
    ├── CheckpointError        (APIStatusError)      a checkpoint that is corrupt or unwritable
    │   ├── NoCheckpointError      (NotFoundError)   there is none of that name, or it has expired
    │   └── CheckpointExistsError  (ConflictError)   there is one of that name already
    ├── TrainingError          (RequestFailedError)  a training step that could not be taken
    ├── EngineClosedError      (TinkerError)         a call on an engine that is no longer in use
    └── NetworkRefusedError    (RuntimeError)        something tried to leave this machine

In brackets the SDK's class, by which a script written for the service catches it; each keeps a
parent of the standard library, too. Each message says what we got, what was expected and what to
do next.
"""

from typing import Any, ClassVar

import httpx
import tinker

from evert.bridge.errors import EvertError

_REQUEST = httpx.Request("POST", "http://embedded-engine")  # Never sent; errors answer it


class _Status(Exception):
    status: ClassVar[int] = 400  # Of HTTP

    def __init__(self, message: str) -> None:
        response = httpx.Response(self.status, request=_REQUEST)
        super().__init__(message, response, None)  # an APIStatusError's, which comes next

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)


class ModelNotFoundError(_Status, EvertError, tinker.NotFoundError, ValueError):
    """No model can be loaded under this name on this machine."""

    status = 404


class LossInputError(_Status, EvertError, tinker.BadRequestError, ValueError):
    """A datum, a loss name or a ``loss_fn_config`` does not fit the loss."""


class SamplingRequestError(_Status, EvertError, tinker.BadRequestError, ValueError):
    """A prompt or its sampling parameters cannot be served by this model or engine."""


class UnsupportedError(_Status, EvertError, tinker.BadRequestError, NotImplementedError):
    """A call, or an option of one, that only the hosted service can answer."""


class CheckpointError(_Status, EvertError, tinker.APIStatusError, OSError):
    """A checkpoint is missing, corrupt, or could not be written."""


class NoCheckpointError(CheckpointError, tinker.NotFoundError):
    """There is no checkpoint, or no run, of this name here; it may have expired."""

    status = 404


class CheckpointExistsError(CheckpointError, tinker.ConflictError):
    """There is a checkpoint of this name already, and it was not to be replaced."""

    status = 409


class TrainingError(EvertError, tinker.RequestFailedError, RuntimeError):
    """A training step could not be taken; the weights are unchanged by it."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "embedded-engine", tinker.types.RequestErrorCategory.User)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)


class EngineClosedError(EvertError, tinker.TinkerError, RuntimeError):
    """The embedded engine is no longer in use, so its clients serve no more calls."""


class NetworkRefusedError(EvertError, tinker.TinkerError, RuntimeError):
    """A connection beyond this machine was attempted while the embedded engine was in use.

    A ``RuntimeError`` and not an ``OSError`` on purpose: HTTP clients retry connection errors for
    minutes, and a refusal is final.
    """
