"""Errors of sampling over HTTP.

    EvertError
    └── ServingError            (RuntimeError)     a server failed or is unusable
        ├── ServerGoneError     (ConnectionError)  it cannot be reached, or closed the connection
        ├── NotServedError      (LookupError)      it does not serve the model, or no longer does
        └── UnfitServerError                       its responses cannot be used as training data

If the server refuses a request (its prompt is too long, for example), the client raises the
engine's ``SamplingRequestError``, as sampling without a server does.
"""

from evert.bridge.errors import EvertError


class ServingError(EvertError, RuntimeError):
    """A server that takes token ids failed, refused access, or is unusable."""


class ServerGoneError(ServingError, ConnectionError):
    """The server cannot be reached, or closed the connection before it answered."""


class NotServedError(ServingError, LookupError):
    """The server does not serve a model with this name, or no longer does."""


class UnfitServerError(ServingError):
    """The server returns no token ids, no usable log-probabilities, or another tokenizer's ids."""
