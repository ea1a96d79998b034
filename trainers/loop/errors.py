"""The error for bad input to a model in training."""

from evert.bridge.errors import EvertError


class ModelInputError(EvertError, ValueError):
    """A model got prompts, targets or conversations that it cannot use."""
