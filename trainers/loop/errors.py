"""What is wrong with what a model in training was given."""

from evert.bridge.errors import EvertError


class ModelInputError(EvertError, ValueError):
    """What a model was given to measure or to learn from does not fit together."""
