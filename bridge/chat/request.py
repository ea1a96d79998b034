"""``ChatRequest``: an agent's model call, parsed from the request body of any API."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.reply import Reply


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A single model call made by an agent."""

    model: str
    messages: Sequence[Any]  # in chat completions format, as dicts or SDK objects; not copied
    tools: list[Any] | None = None  # in chat completions format
    max_tokens: int | None = None  # None: use the run's limit
    stop: tuple[str, ...] = ()  # in addition to the renderer's stop sequences
    format: ReplyFormat | None = None
    one_call: bool = False  # whether to keep only the first tool call of the reply
    may_call: bool = True  # if False, tool calls are removed from the reply
    logprobs: bool = False
    train: bool = True  # whether to train on the reply
    prefill: str = ""  # start of the reply, written by the agent and not returned to it
    left_out: tuple[str, ...] = ()  # types of tools that evert cannot show to the policy
    tokens: bool = False  # whether to return the sampled token ids, for ``CookbookAgent``


FrozenAnswer: TypeAlias = Callable[[ChatRequest], Awaitable[Reply]]
"""A frozen model, as a function that takes a request and returns a reply."""
