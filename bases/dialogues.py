"""Dialogues as tokens with their targets: what every corpus consists of.

In order: :class:`Example` (one dialogue), :class:`Encoder` (messages to tokens, as the Cookbook's
``qwen3_instruct`` renderer makes them), :class:`Batch` (examples that are learned together).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerBase


@dataclass
class DialogueExample:
    """One dialogue as tokens, with the targets at each position."""

    tokens: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    """Whether the token is learned: part of an assistant's reply, including ``<|im_end|>``."""
    soft_targets: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    """By position: probabilities of the corpus's target tokens, instead of the token itself."""
    odds: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    """By position: probabilities among the corpus's odds tokens, ignoring all other tokens."""

    def add(self, tokens: Sequence[int], *, reply: bool = False) -> None:
        """Append tokens; all or none of them are part of a reply."""
        self.tokens.extend(tokens)
        self.loss_mask.extend([reply] * len(tokens))


class Encoder:
    """Encodes messages as tokens; each text is encoded once and cached."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Keep the tokenizer, look up the control tokens."""
        self._tokenizer = tokenizer
        self.stop = self._control("<|im_end|>")[0]
        self.text = cache(self._text)
        digits = [self.text(str(digit))[0] for digit in range(10)]
        self.digits_and_stop = [*digits, self.stop]
        """The eleven tokens with which a number may continue."""

    def _text(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=True
        )
        return tokens

    def header(self, role: str, *, first: bool = False) -> list[int]:
        """Return the tokens before a message's content."""
        return self._control(f"{'' if first else chr(10)}<|im_start|>{role}\n")

    @cache  # noqa: B019  (an encoder lives as long as its program)
    def _control(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def dialogue(self, messages: Sequence[tuple[str, str]]) -> DialogueExample:
        """Encode (role, content) messages; the assistant's are the replies."""
        example = DialogueExample()
        for index, (role, content) in enumerate(messages):
            reply = role == "assistant"
            example.add(self.header(role, first=index == 0))
            example.add([*self.text(content), self.stop], reply=reply)
        return example

    def learn_digit(self, example: DialogueExample, digit: int, chances: Sequence[float]) -> None:
        """End an example with a reply of one digit, given the probabilities of 0, 1, 2, ..."""
        target = np.zeros(len(self.digits_and_stop), np.float32)
        target[: len(chances)] = chances
        example.soft_targets[len(example.tokens)] = target
        example.add([*self.text(str(digit)), self.stop], reply=True)


class DialogueBatch(NamedTuple):
    """Dialogues of similar length that are padded and learned together; a step has several."""

    name: str
    weight: float
    """Weight of its mean loss in the step's loss."""
    examples: list[DialogueExample]
