"""Errors of sampling over HTTP, under evert's one root.

    EvertError
    └── ServingError            (RuntimeError)     a server did not answer as it should
        ├── ServerGoneError     (ConnectionError)  nobody listens there, or it hung up
        ├── NotServedError      (LookupError)      the server has no such model, or no longer
        └── UnfitServerError                       it cannot do what training data need

What the server refuses (a prompt that is too long, say) is the engine's ``SamplingRequestError``,
as it is without a server in between.
"""

from evert.bridge.errors import EvertError


class ServingError(EvertError, RuntimeError):
    """A server of tokens did not answer as it should."""


class ServerGoneError(ServingError, ConnectionError):
    """A server of tokens cannot be reached, or hung up before it answered."""


class NotServedError(ServingError, LookupError):
    """A server of tokens has no model of this name, or has it no longer."""


class UnfitServerError(ServingError):
    """A server does not return what is needed: token ids, log-probabilities, our tokenizer's."""
