"""Tokenized dialogues and their training targets: the building blocks of every corpus.

A :class:`DialogueExample` is one dialogue, :class:`Encoder` tokenizes messages in the same way as
the Cookbook's ``qwen3_instruct`` renderer, and a :class:`DialogueBatch` holds examples that are
trained on together.
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
    """A tokenized dialogue with the training targets for each position."""

    tokens: list[int] = field(default_factory=list)
    loss_mask: list[bool] = field(default_factory=list)
    """True for tokens that belong to an assistant reply, including ``<|im_end|>``."""
    soft_targets: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    """Position -> probabilities over ``Corpus.target_tokens`` that replace the hard target."""
    odds: dict[int, NDArray[np.float32]] = field(default_factory=dict)
    """Position -> target probabilities over ``Corpus.odds_tokens``. Other tokens are ignored."""

    def add(self, tokens: Sequence[int], *, reply: bool = False) -> None:
        """Append tokens; ``reply`` says whether they belong to an assistant reply."""
        self.tokens.extend(tokens)
        self.loss_mask.extend([reply] * len(tokens))


class Encoder:
    """Tokenizes messages, caching the tokens of each text."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Set up the caches and look up the control tokens."""
        self._tokenizer = tokenizer
        self.stop = self._control("<|im_end|>")[0]
        self.text = cache(self._text)
        digits = [self.text(str(digit))[0] for digit in range(10)]
        self.digits_and_stop = [*digits, self.stop]
        """The eleven tokens that can follow a digit in a number."""

    def _text(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(
            text, add_special_tokens=False, split_special_tokens=True
        )
        return tokens

    def header(self, role: str, *, first: bool = False) -> list[int]:
        """Return the tokens that precede a message's content."""
        return self._control(f"{'' if first else chr(10)}<|im_start|>{role}\n")

    @cache  # noqa: B019  (the encoder lives until the program exits)
    def _control(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens

    def dialogue(self, messages: Sequence[tuple[str, str]]) -> DialogueExample:
        """Encode (role, content) messages, training on the assistant's messages."""
        example = DialogueExample()
        for index, (role, content) in enumerate(messages):
            reply = role == "assistant"
            example.add(self.header(role, first=index == 0))
            example.add([*self.text(content), self.stop], reply=reply)
        return example

    def learn_digit(self, example: DialogueExample, digit: int, chances: Sequence[float]) -> None:
        """End the example with a one-digit reply; ``chances`` are the probabilities of 0, 1, ..."""
        target = np.zeros(len(self.digits_and_stop), np.float32)
        target[: len(chances)] = chances
        example.soft_targets[len(example.tokens)] = target
        example.add([*self.text(str(digit)), self.stop], reply=True)


class DialogueBatch(NamedTuple):
    """Dialogues of similar length, padded to form a batch. Each step has several batches."""

    name: str
    weight: float
    """Weight of this batch's mean loss in the total loss."""
    examples: list[DialogueExample]
