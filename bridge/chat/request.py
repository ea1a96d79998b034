"""A model call as an agent makes it, whatever API it came by, and what answers it.

``ChatRequest`` is what every dialect reads its bodies into.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.reply import Reply


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One model call of an agent.

    Attributes:
        model: Model name the agent asked for.
        messages: In the form of OpenAI's chat completions: dicts, or SDK message objects. Not
            copied here.
        tools: OpenAI tool dicts, or None when none are offered.
        max_tokens: Cap on the tokens of this reply; None for the run's own cap.
        stop: Further stop strings, besides the renderer's own.
        format: What the reply has to look like; None for anything.
        may_call: Whether the reply may hold tool calls; such as it makes all the same are not
            delivered.
        logprobs: Whether the log-probabilities of the reply's text are wanted.
        train: Whether the reply is to be learned from.
        prefill: The beginning of the reply, which the agent gives; it gets what follows.
        tokens: Whether the sampled token ids are wanted, as environments within an agent do.
    """

    model: str
    messages: Sequence[Any]
    tools: list[Any] | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    format: ReplyFormat | None = None
    may_call: bool = True
    logprobs: bool = False
    train: bool = True
    prefill: str = ""
    tokens: bool = False


FrozenAnswer: TypeAlias = Callable[[ChatRequest], Awaitable[Reply]]
"""A frozen model: what it replies to a request."""
