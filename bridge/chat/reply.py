"""``Reply``: the policy's action, parsed into the reply that the agent receives.

A reply has two views. The *model's* view (``Reply.parsed``) is the message parsed by the renderer,
including thinking. It is used if the reply has to be rendered again. The *agent's* view
(``Reply.text``, ``tool_calls``) is what an OpenAI client returns. When the agent sends the reply
back in its next request, ``Reply.is_sent_back_as`` recognises it.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tinker_cookbook.renderers.base import (
    ContentPart,
    Message,
    TextPart,
    ToolCall,
    UnparsedToolCall,
    get_text_content,
)

from evert.bridge.chat.message_equality import Key, reply_key

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A sampled token and its log-probability."""

    text: str  # the token decoded on its own; a partial character becomes U+FFFD
    logprob: float
    raw: bytes | None  # the bytes of the text; None if the endpoint did not send them


@dataclass(slots=True)  # created every turn; creation is three times slower with frozen=True
class Reply:
    """The policy's reply, parsed from one action."""

    parsed: Message  # the action as parsed by the renderer (the model's view)
    text: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]  # each has an id
    unparsed: tuple[UnparsedToolCall, ...]  # malformed tool calls, whose markup is kept in ``text``
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    stop_string: str | None = None  # which of the agent's stop strings ended the text
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per token, if the agent asked for them
    prefill: str = ""  # the start of the reply, written by the agent; part of ``parsed`` only
    tokens: tuple[int, ...] | None = None  # None if not requested or unknown
    key: Key = field(init=False, repr=False, compare=False)  # ``reply_key``, including the prefill

    def __post_init__(self) -> None:
        self.key = reply_key(self.prefill + self.text, self.tool_calls)

    def with_calls(self, count: int) -> "Reply":
        """Keep only the first ``count`` tool calls.

        If none remain, the finish reason "tool_calls" becomes "stop".
        """
        calls = self.tool_calls[:count]
        ends = self.finish_reason == "tool_calls" and not calls
        return replace(self, tool_calls=calls, finish_reason="stop" if ends else self.finish_reason)

    def as_message(self) -> dict[str, Any]:
        """Return the reply as the assistant message that the agent receives."""
        calls = [call.model_dump(mode="json") for call in self.tool_calls]
        return reply_message(self.text, self.reasoning, calls)

    def after(self, prefill: str) -> "Reply":
        """Remove the agent's ``prefill`` from the start of the reply.

        If the prompt opens a thinking block, the prefill is at the start of the reasoning instead.
        """
        reasoning, text, stripped = self.reasoning, self.text, prefill.strip()
        if text.startswith(stripped):  # the parser may strip whitespace
            text = text.removeprefix(prefill if text.startswith(prefill) else stripped)
        elif reasoning is not None and reasoning.startswith(stripped):
            beginning = prefill if reasoning.startswith(prefill) else stripped
            reasoning = reasoning.removeprefix(beginning)
        return replace(self, prefill=prefill, text=text, reasoning=reasoning)

    def is_sent_back_as(self, message: Message, key: Key) -> bool:
        """Return whether the agent's ``message`` repeats this reply. ``key`` is the message's key.

        Leading and trailing whitespace is ignored, because agents strip it. Reasoning may be
        missing, because agents rarely send it back, but if it is present it must match.
        """
        if key != self.key:
            return False
        thoughts = _thoughts(message["content"])
        return not thoughts or thoughts.strip() in ("", (self.reasoning or "").strip())


def reply_message(text: str, thoughts: str | None, calls: Sequence[Any]) -> dict[str, Any]:
    """Build an assistant message; ``reasoning_content`` is omitted if ``thoughts`` is None."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thoughts is not None:
        message["reasoning_content"] = thoughts
    if calls:
        message["tool_calls"] = [*calls]
    return message


def _thoughts(content: str | list[ContentPart]) -> str | None:
    parts = content if isinstance(content, list) else []
    thoughts = [part["thinking"] for part in parts if part["type"] == "thinking"]
    return "\n".join(thoughts) if thoughts else None


def read_reply(
    parsed: Message,
    *,
    truncated: bool,
    call_ids: str,
    prompt_tokens: int,
    completion_tokens: int,
    keeps_ids: bool = False,
) -> Reply:
    """Build a reply from the message that a renderer parsed.

    Tool calls without an id get one derived from ``call_ids``, a prefix unique to this reply. With
    ``keeps_ids``, the model's view includes these ids too; some chat templates require them.
    """
    text, reasoning = get_text_content(parsed), _thoughts(parsed["content"])
    calls = tuple(
        call if call.id else call.model_copy(update={"id": call_id(f"{call_ids}-{number}")})
        for number, call in enumerate(parsed.get("tool_calls") or ())
    )
    if calls:
        text = text.strip()  # tool-call markup is often surrounded by whitespace
        parsed = {**parsed, "tool_calls": [*calls]} if keeps_ids else parsed
    finish: FinishReason = "length" if truncated else "tool_calls" if calls else "stop"
    unparsed = tuple(parsed.get("unparsed_tool_calls") or ())
    lost = "".join(call.raw_text for call in unparsed if call.raw_text not in text)
    if lost:  # keep malformed calls visible to both the agent and the model
        text += lost
        parsed = _with_text(parsed, lost)
    return Reply(parsed, text, reasoning, calls, unparsed, finish, prompt_tokens, completion_tokens)


def call_id(name: str) -> str:
    """Return an OpenAI-style call id, derived deterministically from ``name``."""
    return f"call_{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


def _with_text(message: Message, text: str) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + text}
    return {**message, "content": [*content, TextPart(type="text", text=text)]}
