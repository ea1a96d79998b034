"""A model call as an agent makes it: what every dialect reads its bodies into."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.reply import Reply


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call of an agent, whatever API it came by."""

    model: str
    messages: Sequence[Any]  # OpenAI's chat completions: dicts, or SDK objects. Not copied here
    tools: list[Any] | None = None  # OpenAI's
    max_tokens: int | None = None  # None for the run's own cap
    stop: tuple[str, ...] = ()  # besides the renderer's own
    format: ReplyFormat | None = None
    may_call: bool = True  # if not, the calls that the reply makes all the same are not delivered
    logprobs: bool = False
    train: bool = True  # whether the reply is to be learned from
    prefill: str = ""  # the beginning of the reply, which the agent gives; it gets what follows
    tokens: bool = False  # whether the sampled ids are wanted, as environments in an agent do


FrozenAnswer: TypeAlias = Callable[[ChatRequest], Awaitable[Reply]]
"""A frozen model: what it replies to a request."""
