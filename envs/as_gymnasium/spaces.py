"""The spaces of observations and actions, at both levels.

    level       observation                                 action
    messages    Sequence(Dict(role: Text, content: Text))   Text: the policy's reply
    tokens      Sequence(Discrete(vocabulary))              Sequence(Discrete(vocabulary))

An observation is the whole conversation that the agent asks the policy to continue, as a tuple of
messages or of token ids. Only an episode's budgets (``RolloutLimits``) bound lengths.
"""

import string
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import error, spaces
from numpy.typing import NDArray

SAMPLE_LENGTH = 32
"""Maximum length of samples from ``AnyText``, unless a mask gives a length."""


class AnyText(spaces.Text):
    """All strings that have a UTF-8 encoding; samples are short and of printable ASCII.

    ``gymnasium.spaces.Text`` stores its characters, which for Unicode takes a hundred megabytes per
    space, and samples lengths uniformly up to the maximum. This class differs only in ``contains``
    and in the default length of samples; ``character_set`` is only for samples.
    """

    def __init__(self, seed: int | np.random.Generator | None = None) -> None:
        characters = string.digits + string.ascii_letters + string.punctuation + " \n"
        super().__init__(sys.maxsize, min_length=0, charset=characters, seed=seed)

    def contains(self, x: Any) -> bool:
        """Return whether ``x`` is a string that can be encoded."""
        return isinstance(x, str) and is_encodable(x)

    def sample(
        self,
        mask: tuple[int | None, NDArray[np.int8] | None] | None = None,
        probability: tuple[int | None, NDArray[np.float64] | None] | None = None,
    ) -> str:
        """Return a random text of up to ``SAMPLE_LENGTH`` characters, or of a mask's length."""
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
    """Return whether ``text`` has a UTF-8 encoding: half of a surrogate pair has none."""
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
    """Return messages as an observation, with only role and text."""
    return tuple(
        {"role": str(message.get("role")), "content": text_of(message)} for message in messages
    )


def text_of(message: Mapping[str, Any]) -> str:
    """Return the text of a message; a part without text becomes its type in brackets."""
    content = message.get("content")
    if isinstance(content, str):
        return content
    return "".join(
        str(part["text"]) if "text" in part else f"[{part.get('type')}]" for part in content or ()
    )


def text_action(action: object) -> str:
    """Check an action at the messages level, and return it.

    Raises:
        gymnasium.error.InvalidAction: It is not a string, or cannot be encoded.
    """
    if not isinstance(action, str):
        raise error.InvalidAction(
            f"At level='messages' an action is the reply's text (str); got {action!r:.200} of type "
            f"{type(action).__name__}. Pass the text alone (message['content']), or make the "
            "environment with level='tokens' to act with token ids."
        )
    if not is_encodable(action):
        raise error.InvalidAction(
            f"The action {action!r:.200} has half of a surrogate pair, which has no UTF-8 "
            "encoding and so no tokens. Decode the bytes with errors='replace' first."
        )
    return action


def token_action(action: object, vocabulary: int) -> list[int]:
    """Check an action at the tokens level, a tuple, list or one-dimensional array.

    Raises:
        gymnasium.error.InvalidAction: It is not a sequence of token ids below ``vocabulary``.
    """
    items = action.tolist() if isinstance(action, np.ndarray) else action
    if not isinstance(items, Sequence) or isinstance(items, (str, bytes)):
        raise error.InvalidAction(
            f"At level='tokens' an action is a sequence of token ids; got {action!r:.200} of type "
            f"{type(action).__name__}. Pass a tuple, list or 1-d integer array, or make the "
            "environment with level='messages' to act with text."
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
            f"Token {index} of the action is {item}, outside of the vocabulary "
            f"0..{vocabulary - 1}. Encode with the tokenizer of this environment's renderer."
        )
    return int(item)
