"""Errors of sampling over HTTP.

    EvertError
    └── ServingError            (RuntimeError)     a server failed or is unusable
        ├── ServerGoneError     (ConnectionError)  it cannot be reached, or closed the connection
        ├── NotServedError      (LookupError)      it doesn't serve the model (any more)
        └── UnfitServerError                       its responses cannot be used as training data

If the server rejects a request, for example because the prompt is too long, the client raises the
same ``SamplingRequestError`` as the engine does when sampling without a server.
"""

from evert.bridge.errors import EvertError


class ServingError(EvertError, RuntimeError):
    """A token-id server failed, denied access, or can't be used."""


class ServerGoneError(ServingError, ConnectionError):
    """The server could not be reached, or closed the connection before responding."""


class NotServedError(ServingError, LookupError):
    """The server doesn't serve a model with this name, or no longer does."""


class UnfitServerError(ServingError):
    """The server returns no token ids, no usable log-probabilities, or another tokenizer's ids."""
