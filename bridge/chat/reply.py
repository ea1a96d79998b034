"""``Reply``: an action of the policy, parsed into the reply that the agent gets.

A reply has two views. The *model's* view (``Reply.parsed``) is the renderer's parse, including
thinking; a reply that must be rendered again is rendered from this view. The *agent's* view
(``Reply.text``, ``tool_calls``) is what an OpenAI client returns. The agent sends this view back
in its next request, where ``Reply.is_sent_back_as`` recognises it.
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

    text: str  # this token alone, decoded; a partial character becomes U+FFFD
    logprob: float
    raw: bytes | None  # the bytes of the text; None if the endpoint did not send them


@dataclass(slots=True)  # made every turn; a frozen dataclass takes three times as long
class Reply:
    """The policy's reply, parsed from one action."""

    parsed: Message  # the renderer's parse of the action: the model's view
    text: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]  # each has an id
    unparsed: tuple[UnparsedToolCall, ...]  # tool calls whose markup stays in ``text``
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    stop_string: str | None = None  # the agent's stop string at which the text was cut
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per token, if the agent asked for them
    prefill: str = ""  # the beginning, written by the agent: in ``parsed`` but not in ``text``
    tokens: tuple[int, ...] | None = None  # None if not requested, or unknown
    key: Key = field(init=False, repr=False, compare=False)  # ``reply_key`` of the whole reply

    def __post_init__(self) -> None:
        self.key = reply_key(self.prefill + self.text, self.tool_calls)

    def with_calls(self, count: int) -> "Reply":
        """Keep only the first ``count`` calls; if none are left, the finish reason is "stop"."""
        calls = self.tool_calls[:count]
        ends = self.finish_reason == "tool_calls" and not calls
        return replace(self, tool_calls=calls, finish_reason="stop" if ends else self.finish_reason)

    def as_message(self) -> dict[str, Any]:
        """Return the reply as the message that the agent gets."""
        calls = [call.model_dump(mode="json") for call in self.tool_calls]
        return reply_message(self.text, self.reasoning, calls)

    def after(self, prefill: str) -> "Reply":
        """Remove ``prefill``, the beginning that the agent wrote, from the reply.

        If the renderer's prompt opens a thought, the thought begins with ``prefill``.
        """
        reasoning, text, stripped = self.reasoning, self.text, prefill.strip()
        if text.startswith(stripped):  # a parser may strip white space
            text = text.removeprefix(prefill if text.startswith(prefill) else stripped)
        elif reasoning is not None and reasoning.startswith(stripped):
            beginning = prefill if reasoning.startswith(prefill) else stripped
            reasoning = reasoning.removeprefix(beginning)
        return replace(self, prefill=prefill, text=text, reasoning=reasoning)

    def is_sent_back_as(self, message: Message, key: Key) -> bool:
        """Return whether an agent's message with this key is the reply.

        White space at the ends of the text is ignored, since agents strip it. Reasoning may be
        missing, since agents rarely send it back, but it must not differ.
        """
        if key != self.key:
            return False
        thoughts = _thoughts(message["content"])
        return not thoughts or thoughts.strip() in ("", (self.reasoning or "").strip())


def reply_message(text: str, thoughts: str | None, calls: Sequence[Any]) -> dict[str, Any]:
    """Return a reply as an assistant message; without reasoning if ``thoughts`` is None."""
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
    """Make a reply from a renderer's parse.

    Tool calls without ids get ids made from ``call_ids``, a prefix that differs for each reply.
    With ``keeps_ids``, the model's view gets these ids too: some templates refuse calls without.
    """
    text, reasoning = get_text_content(parsed), _thoughts(parsed["content"])
    calls = tuple(
        call if call.id else call.model_copy(update={"id": call_id(f"{call_ids}-{number}")})
        for number, call in enumerate(parsed.get("tool_calls") or ())
    )
    if calls:
        text = text.strip()  # formats put white space around calls
        parsed = {**parsed, "tool_calls": [*calls]} if keeps_ids else parsed
    finish: FinishReason = "length" if truncated else "tool_calls" if calls else "stop"
    unparsed = tuple(parsed.get("unparsed_tool_calls") or ())
    lost = "".join(call.raw_text for call in unparsed if call.raw_text not in text)
    if lost:  # the agent and the model must both see the calls that could not be parsed
        text += lost
        parsed = _with_text(parsed, lost)
    return Reply(parsed, text, reasoning, calls, unparsed, finish, prompt_tokens, completion_tokens)


def call_id(name: str) -> str:
    """Return an id in OpenAI's form; equal names give equal ids."""
    return f"call_{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


def _with_text(message: Message, text: str) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + text}
    return {**message, "content": [*content, TextPart(type="text", text=text)]}
