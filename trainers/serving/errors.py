"""Errors of sampling over HTTP, under evert's one root.

    EvertError
    └── ServingError            (RuntimeError)     a server did not answer as it should
        ├── ServerGoneError     (ConnectionError)  it cannot be reached, or closed the connection
        ├── NotServedError      (LookupError)      it has no such model, or no longer has it
        └── UnfitServerError                       it does not return what training data need

A request that the server refuses (a prompt is too long, for example) raises the engine's
``SamplingRequestError``, as without a server.
"""

from evert.bridge.errors import EvertError


class ServingError(EvertError, RuntimeError):
    """A server of token ids did not answer as it should."""


class ServerGoneError(ServingError, ConnectionError):
    """A server of token ids cannot be reached, or closed the connection before it answered."""


class NotServedError(ServingError, LookupError):
    """A server of token ids has no model of this name, or no longer has it."""


class UnfitServerError(ServingError):
    """A server does not return token ids, log-probabilities, or the ids of our tokenizer."""
