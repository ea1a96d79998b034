"""The error of sampling by verl's servers."""

from evert.bridge.errors import EvertError


class ServerReplyError(EvertError, RuntimeError):
    """A server of verl's gave no reply that can be trained on."""
