"""``ChatRequest``: an agent's model call, parsed by its dialect from a request body."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.reply import Reply


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call of an agent, from any API."""

    model: str
    messages: Sequence[Any]  # as in OpenAI's chat completions: dicts or SDK objects; not copied
    tools: list[Any] | None = None  # as in OpenAI's chat completions
    max_tokens: int | None = None  # None for the run's cap
    stop: tuple[str, ...] = ()  # in addition to the renderer's stops
    format: ReplyFormat | None = None
    one_call: bool = False  # whether a reply may contain at most one tool call
    may_call: bool = True  # if False, the agent does not get the reply's tool calls
    logprobs: bool = False
    train: bool = True  # whether to train on the reply
    prefill: str = ""  # the reply's beginning, written by the agent; the agent gets the rest
    left_out: tuple[str, ...] = ()  # kinds of offered tools that cannot be shown to the policy
    tokens: bool = False  # whether to return the sampled token ids, as ``CookbookAgent`` needs


FrozenAnswer: TypeAlias = Callable[[ChatRequest], Awaitable[Reply]]
"""A frozen model: a function from a request to its reply."""
