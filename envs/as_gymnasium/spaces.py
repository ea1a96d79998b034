"""Observation and action spaces, for both levels.

    level       observation                                 action
    messages    Sequence(Dict(role: Text, content: Text))   Text: the policy's reply
    tokens      Sequence(Discrete(vocabulary))              Sequence(Discrete(vocabulary))

An observation is the whole conversation that the policy should continue, as a tuple of messages or
of token ids. Its length is limited only by the episode's ``RolloutLimits``.
"""

import string
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import error, spaces
from numpy.typing import NDArray

SAMPLE_LENGTH = 32
"""Maximum length of samples from ``AnyText``, unless a mask sets the length."""


class AnyText(spaces.Text):
    """All strings that can be encoded as UTF-8. Samples are short and use printable ASCII.

    ``gymnasium.spaces.Text`` stores its character set, which for all of Unicode would take a
    hundred megabytes per space. It also samples lengths uniformly up to the maximum. This class
    overrides ``contains`` and the default sample length, and only uses ``character_set`` to sample.
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        characters = string.digits + string.ascii_letters + string.punctuation + " \n"
        super().__init__(sys.maxsize, min_length=0, charset=characters, seed=seed)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string that can be encoded as UTF-8."""
        return isinstance(x, str) and is_encodable(x)

    def sample(
        self,
        mask: tuple[int | None, NDArray[np.int8] | None] | None = None,
        probability: tuple[int | None, NDArray[np.float64] | None] | None = None,
    ) -> str:
        """Return random text, up to ``SAMPLE_LENGTH`` characters unless a mask sets the length."""
        if mask is None and probability is None:
            mask = (None, None)
        return super().sample(self._with_length(mask), self._with_length(probability))

    def _with_length(self, mask: tuple[int | None, Any] | None) -> tuple[int | None, Any] | None:
        if mask is None or mask[0] is not None:
            return mask
        return int(self.np_random.integers(SAMPLE_LENGTH + 1)), mask[1]

    @property
    def is_np_flattenable(self) -> bool:
        """False, since lengths are unbounded."""
        return False

    def __repr__(self) -> str:
        return "AnyText()"


def is_encodable(text: str) -> bool:
    """Return whether ``text`` can be encoded as UTF-8, i.e. has no unpaired surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def message_space() -> spaces.Sequence:
    """Return the space of conversations: tuples of ``{"role": ..., "content": ...}``."""
    role = spaces.Text(16, charset=string.ascii_lowercase)
    return spaces.Sequence(spaces.Dict({"role": role, "content": AnyText()}))


def token_space(vocabulary: int) -> spaces.Sequence:
    """Return the space of token sequences: tuples of ids below ``vocabulary``."""
    return spaces.Sequence(spaces.Discrete(vocabulary))


def message_observation(messages: Sequence[Mapping[str, Any]]) -> tuple[dict[str, str], ...]:
    """Convert messages to an observation, keeping only each message's role and text."""
    return tuple(
        {"role": str(message.get("role")), "content": text_of(message)} for message in messages
    )


def text_of(message: Mapping[str, Any]) -> str:
    """Return a message's text. Parts without text are replaced by their type in brackets."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(
        str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in content or ()
    )


def text_action(action: object) -> str:
    """Validate an action at the messages level and return it.

    Raises:
        gymnasium.error.InvalidAction: The action is not a string, or cannot be encoded as UTF-8.
    """
    if not isinstance(action, str):
        raise error.InvalidAction(
            f"With level='messages', an action is the text of the reply (str); got "
            f"{action!r:.200} of type {type(action).__name__}. Pass only the text "
            "(message['content']), or use level='tokens' if your actions are token ids."
        )
    if not is_encodable(action):
        raise error.InvalidAction(
            f"The action {action!r:.200} contains an unpaired surrogate, so it cannot be encoded "
            "as UTF-8 or tokenized. Decode the original bytes with errors='replace'."
        )
    return action


def token_action(action: object, vocabulary: int) -> list[int]:
    """Validate an action at the tokens level (a tuple, list or 1-d array) and return its ids.

    Raises:
        gymnasium.error.InvalidAction: The action is not a sequence of ids below ``vocabulary``.
    """
    items = action.tolist() if isinstance(action, np.ndarray) else action
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise error.InvalidAction(
            f"With level='tokens', an action is a sequence of token ids; got {action!r:.200} of "
            f"type {type(action).__name__}. Pass a tuple, list or 1-d integer array, or use "
            "level='messages' if your actions are text."
        )
    return [_token(item, index, vocabulary) for index, item in enumerate(items)]


def _token(item: object, index: int, vocabulary: int) -> int:
    if isinstance(item, bool) or not isinstance(item, (int, np.integer)):
        raise error.InvalidAction(
            f"Token {index} of the action is {item!r:.200} of type {type(item).__name__}; expected "
            f"an integer from 0 to {vocabulary - 1}. Pass token ids, not text or probabilities."
        )
    if not 0 <= item < vocabulary:
        raise error.InvalidAction(
            f"Token {index} of the action is {item}, which is outside the vocabulary "
            f"(0..{vocabulary - 1}). Use the tokenizer of this environment's renderer."
        )
    return int(item)
