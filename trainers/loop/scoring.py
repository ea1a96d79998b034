"""Converts text and conversations to datums, and the output of a forward pass to ragged arrays.

Special-token strings inside a text are encoded as plain text.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import tinker
import torch
from numpy.typing import NDArray
from tinker_cookbook.renderers import TrainOnWhat
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.supervised.common import datum_from_model_input_weights

from evert.bridge.chat.messages import read_message
from evert.bridge.errors import EvertError
from evert.bridge.tokens.renderer import PromptRenderer, supervised_example
from evert.bridge.tokens.token_log import FlatPrompt, chunks_of

Reduction = Literal["none", "mean"]

Conversation: TypeAlias = Sequence[Mapping[str, Any]]
"""Messages in OpenAI's format."""

Prompt: TypeAlias = str | Conversation | Sequence[int]
"""One user message, the messages before a reply, or token ids."""

Target: TypeAlias = str | Sequence[int]
"""A reply's text, or token ids."""

Lesson: TypeAlias = Conversation | tuple[Prompt, Target]
"""A conversation, or a prompt with the reply to train on."""

LogProbs: TypeAlias = NDArray[np.float32]
"""[T]: log-probabilities of a target's tokens, in order."""


class ModelInputError(EvertError, ValueError):
    """The prompts, targets or conversations passed to a model are invalid."""


def target_datum(
    renderer: PromptRenderer, prompt: Prompt, target: Target, reduction: Reduction = "none"
) -> tinker.Datum:
    """Return a datum for a prompt and target.

    Each target token has weight 1. If ``reduction`` is "mean", the weights sum to 1 instead.
    """
    if isinstance(target, str) and not _are_ids(prompt):
        messages = [*_messages(prompt), Message(role="assistant", content=target)]
        return _datum(renderer, messages, TrainOnWhat.LAST_ASSISTANT_MESSAGE, reduction)
    before = _flat(renderer, prompt)
    after = renderer.spell(target) if isinstance(target, str) else [int(token) for token in target]
    if not before or not after:
        raise ModelInputError(
            f"Got a prompt with {len(before)} tokens and a target with {len(after)} tokens; "
            "expected at least one token in each."
        )
    model_input = tinker.ModelInput(chunks=chunks_of([*before, *after]))
    weights = torch.tensor([0.0] * (model_input.length - len(after)) + [1.0] * len(after))
    return datum_from_model_input_weights(model_input, weights, reduction=reduction)


def lesson_datum(renderer: PromptRenderer, lesson: Lesson) -> tinker.Datum:
    """Return a datum for a lesson. The weights of the assistant's tokens sum to 1."""
    if isinstance(lesson, tuple) and not isinstance(lesson[-1], Mapping):
        prompt, reply = cast("tuple[Prompt, Target]", lesson)
        return target_datum(renderer, prompt, reply, "mean")
    messages = _messages(lesson)
    if not any(message["role"] == "assistant" for message in messages):
        roles = ", ".join(message["role"] for message in messages) or "none"
        raise ModelInputError(
            f"sft got a conversation with the roles: {roles}; expected at least one assistant "
            "message to train on: {'role': 'assistant', 'content': ...}."
        )
    return _datum(renderer, messages, TrainOnWhat.ALL_ASSISTANT_MESSAGES, "mean")


def target_logprobs(
    output: tinker.ForwardBackwardOutput, data: Sequence[tinker.Datum]
) -> list[LogProbs]:
    """Return one array per datum, with the log-probabilities of tokens with nonzero weight."""
    return [
        np.asarray(arrays["logprobs"].to_numpy(), np.float32)[
            datum.loss_fn_inputs["weights"].to_numpy() != 0
        ]
        for arrays, datum in zip(output.loss_fn_outputs, data, strict=True)
    ]


def _messages(prompt: Any) -> list[Message]:
    if isinstance(prompt, str):
        return [Message(role="user", content=prompt)]
    return [read_message(message, index, {}) for index, message in enumerate(prompt)]


def _flat(renderer: PromptRenderer, prompt: Any) -> FlatPrompt:
    if _are_ids(prompt):
        return [int(token) for token in prompt]
    return renderer.full([renderer.escape(message) for message in _messages(prompt)])


def _are_ids(prompt: Prompt) -> bool:
    return not isinstance(prompt, str) and all(isinstance(x, int | np.integer) for x in prompt)


def _datum(
    renderer: PromptRenderer, messages: list[Message], train_on: TrainOnWhat, reduction: Reduction
) -> tinker.Datum:
    escaped = [renderer.escape(message) for message in messages]
    model_input, weights = supervised_example(renderer, escaped, train_on)
    return datum_from_model_input_weights(model_input, weights, reduction=reduction)
