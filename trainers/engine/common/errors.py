"""Errors of the embedded engine; each is also an error of the Tinker SDK.

    EvertError
    ├── ModelNotFoundError     (NotFoundError)       a model that cannot be loaded here
    ├── LossInputError         (BadRequestError)     a datum or configuration the loss cannot use
    ├── SamplingRequestError   (BadRequestError)     a prompt or parameters that cannot be served
    ├── UnsupportedError       (BadRequestError)     a call that only the hosted service answers
    ├── CheckpointError        (APIStatusError)      a checkpoint that is corrupt or unwritable
    │   ├── NoCheckpointError      (NotFoundError)   no checkpoint or run has that name
    │   └── CheckpointExistsError  (ConflictError)   a checkpoint already has that name
    ├── TrainingError          (RequestFailedError)  a training call that failed
    ├── EngineClosedError      (TinkerError)         a call on an engine that is not in use here
    └── NetworkRefusedError    (TinkerError)         a connection to another machine

Each error is a subclass of the SDK's class in brackets, so scripts written for the service catch
it, and of a standard exception. Messages say what we got, what was expected, and what to do next.
"""

from typing import Any, ClassVar

import httpx
import tinker

from evert.bridge.errors import EvertError

_REQUEST = httpx.Request("POST", "http://embedded-engine")  # Never sent; the SDK's errors need one


class _Status(Exception):
    status: ClassVar[int] = 400  # HTTP status

    def __init__(self, message: str) -> None:
        response = httpx.Response(self.status, request=_REQUEST)
        super().__init__(message, response, None)  # for APIStatusError, next in the MRO

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
    """A call or an option that only the hosted service supports."""


class CheckpointError(_Status, EvertError, tinker.APIStatusError, OSError):
    """A checkpoint is missing, corrupt, or could not be written."""


class NoCheckpointError(CheckpointError, tinker.NotFoundError):
    """No checkpoint or run of this name exists here."""

    status = 404


class CheckpointExistsError(CheckpointError, tinker.ConflictError):
    """A checkpoint of this name already exists, and ``overwrite`` was not set."""

    status = 409


class TrainingError(EvertError, tinker.RequestFailedError, RuntimeError):
    """A training call failed, and left the weights unchanged."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "embedded-engine", tinker.types.RequestErrorCategory.User)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)


class EngineClosedError(EvertError, tinker.TinkerError, RuntimeError):
    """The embedded engine's block has ended, or this process is a fork of the engine's process."""


class NetworkRefusedError(EvertError, tinker.TinkerError, RuntimeError):
    """Code tried to connect to another machine while the embedded engine was in use.

    It is a ``RuntimeError`` because HTTP clients retry an ``OSError`` for minutes.
    """
