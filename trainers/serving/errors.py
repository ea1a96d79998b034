"""Errors of sampling over HTTP, under evert's one root.

    EvertError
    └── ServingError            (RuntimeError)     a server did not answer as it should
        ├── ServerGoneError     (ConnectionError)  it cannot be reached, or closed the connection
        ├── NotServedError      (LookupError)      it does not serve the model, or no longer does
        └── UnfitServerError                       its answers cannot be used as training data

A request that the server refuses (a prompt is too long, for example) raises the engine's
``SamplingRequestError``, as without a server.
"""

from evert.bridge.errors import EvertError


class ServingError(EvertError, RuntimeError):
    """A server that takes token ids did not answer as it should."""


class ServerGoneError(ServingError, ConnectionError):
    """The server cannot be reached, or closed the connection before it answered."""


class NotServedError(ServingError, LookupError):
    """The server does not serve a model of this name, or no longer does."""


class UnfitServerError(ServingError):
    """The server does not return token ids, log-probabilities, or the ids of our tokenizer."""
