"""The embedded engine's exceptions, which are also Tinker SDK exceptions.

    EvertError
    ├── ModelNotFoundError     (NotFoundError)       a model that cannot be loaded here
    ├── LossInputError         (BadRequestError)     a datum or configuration the loss cannot use
    ├── SamplingRequestError   (BadRequestError)     a prompt or parameters that cannot be served
    ├── UnsupportedError       (BadRequestError)     a call that only the hosted service supports
    ├── CheckpointError        (APIStatusError)      a checkpoint that is corrupt or unwritable
    │   ├── NoCheckpointError      (NotFoundError)   no checkpoint or run has that name
    │   └── CheckpointExistsError  (ConflictError)   a checkpoint with that name already exists
    ├── TrainingError          (RequestFailedError)  a training call that failed
    ├── EngineClosedError      (TinkerError)         a call to a closed or forked engine
    └── NetworkRefusedError    (TinkerError)         a blocked connection to another machine

Each exception is a subclass of the SDK exception in brackets, so that scripts written for the
hosted service catch it. It is also a subclass of a built-in exception. Messages state what we got,
what was expected, and what to do next.
"""

from typing import Any, ClassVar

import httpx
import tinker

from evert.bridge.errors import EvertError

_REQUEST = httpx.Request("POST", "http://embedded-engine")  # the SDK's errors require a request


class _Status(Exception):
    status: ClassVar[int] = 400  # HTTP status

    def __init__(self, message: str) -> None:
        response = httpx.Response(self.status, request=_REQUEST)
        # These arguments are for APIStatusError, which is next in the MRO.
        super().__init__(message, response, None)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)


class ModelNotFoundError(_Status, EvertError, tinker.NotFoundError, ValueError):
    """No model with this name can be loaded on this machine."""

    status = 404


class LossInputError(_Status, EvertError, tinker.BadRequestError, ValueError):
    """A datum, a loss name or a ``loss_fn_config`` is invalid."""


class SamplingRequestError(_Status, EvertError, tinker.BadRequestError, ValueError):
    """The model or the engine can't serve this prompt or these sampling parameters."""


class UnsupportedError(_Status, EvertError, tinker.BadRequestError, NotImplementedError):
    """Only the hosted service supports this call or option."""


class CheckpointError(_Status, EvertError, tinker.APIStatusError, OSError):
    """A checkpoint is missing or corrupt, or could not be written."""


class NoCheckpointError(CheckpointError, tinker.NotFoundError):
    """There is no checkpoint or run with this name."""

    status = 404


class CheckpointExistsError(CheckpointError, tinker.ConflictError):
    """A checkpoint with this name already exists, and ``overwrite`` was not set."""

    status = 409


class TrainingError(EvertError, tinker.RequestFailedError, RuntimeError):
    """A training call failed. The weights are unchanged."""

    def __init__(self, message: str) -> None:
        super().__init__(message, "embedded-engine", tinker.types.RequestErrorCategory.User)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self),)


class EngineClosedError(EvertError, tinker.TinkerError, RuntimeError):
    """The embedded engine is closed, or this process was forked from the engine's process."""


class NetworkRefusedError(EvertError, tinker.TinkerError, RuntimeError):
    """Code tried to connect to another machine while the embedded engine was in use.

    It is a ``RuntimeError`` and not an ``OSError``, because HTTP clients would retry an
    ``OSError`` for minutes.
    """
