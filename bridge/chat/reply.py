"""``Reply``: what the policy's tokens say, as the agent gets it.

A reply has two views. The *model's* view (``Reply.parsed``) is the renderer's own parse, thinking
and all, and is what gets rendered again if it must be. The *agent's* view (``Reply.text``,
``tool_calls``) is what an OpenAI client shows; an agent sends it back, and
``Reply.is_sent_back_as`` recognises it.
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

from evert.bridge.chat.keys import Key, reply_key

FinishReason = Literal["stop", "length", "tool_calls"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A sampled token, and the natural logarithm of its probability."""

    text: str  # decoded by itself: a part of a character has the replacement character
    logprob: float
    raw: bytes | None  # of the text; None where an endpoint gave none


@dataclass(slots=True)  # made every turn, and a frozen one takes three times as long
class Reply:
    """What the policy said in one action, as the agent gets it."""

    parsed: Message  # the renderer's own parse of the action: the model's view
    text: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]  # each has an id
    unparsed: tuple[UnparsedToolCall, ...]  # their markup stays in ``text``
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    stop_string: str | None = None  # the agent's own, where one cut the text
    logprobs: tuple[TokenLogprob, ...] | None = None  # where they are asked for; one a token
    prefill: str = ""  # what the agent began it with: ``parsed`` has it, ``text`` goes on from it
    tokens: tuple[int, ...] | None = None  # where they are asked for and are known
    key: Key = field(init=False, repr=False, compare=False)  # what an agent sees of it

    def __post_init__(self) -> None:
        self.key = reply_key(self.prefill + self.text, self.tool_calls)

    def with_calls(self, count: int) -> "Reply":
        """The reply with its first ``count`` tool calls; without any it simply stops."""
        calls = self.tool_calls[:count]
        ends = self.finish_reason == "tool_calls" and not calls
        return replace(self, tool_calls=calls, finish_reason="stop" if ends else self.finish_reason)

    def as_message(self) -> dict[str, Any]:
        """The reply as the message that the agent got."""
        calls = [call.model_dump(mode="json") for call in self.tool_calls]
        return reply_message(self.text, self.reasoning, calls)

    def after(self, prefill: str) -> "Reply":
        """The reply to an agent that began it itself, and gets the rest.

        Where a renderer's prompt opens a thought, the thought begins with it.
        """
        reasoning, text, stripped = self.reasoning, self.text, prefill.strip()
        if text.startswith(stripped):  # a parser may strip what it reads
            text = text.removeprefix(prefill if text.startswith(prefill) else stripped)
        elif reasoning is not None and reasoning.startswith(stripped):
            begun = prefill if reasoning.startswith(prefill) else stripped
            reasoning = reasoning.removeprefix(begun)
        return replace(self, prefill=prefill, text=text, reasoning=reasoning)

    def is_sent_back_as(self, message: Message, key: Key) -> bool:
        """Whether an agent's message, of this key, is the reply.

        Agents strip what they get, so white space at the ends of a text is no change. They rarely
        send reasoning back, so a missing one is none either; a different one is.
        """
        if key != self.key:
            return False
        thoughts = _thoughts(message["content"])
        return not thoughts or thoughts.strip() in ("", (self.reasoning or "").strip())


def reply_message(text: str, thoughts: str | None, calls: Sequence[Any]) -> dict[str, Any]:
    """A reply of the assistant's; thoughts of None are none."""
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
    parsed: Message, *, truncated: bool, call_ids: str, prompt_tokens: int, completion_tokens: int
) -> Reply:
    """The reply that a renderer's parse stands for.

    ``call_ids`` is a prefix, another for each reply: some formats give tool calls no ids.
    """
    text, reasoning = get_text_content(parsed), _thoughts(parsed["content"])
    calls = tuple(
        call if call.id else call.model_copy(update={"id": call_id(f"{call_ids}-{number}")})
        for number, call in enumerate(parsed.get("tool_calls") or ())
    )
    if calls:
        text = text.strip()  # the white space that formats have around calls says nothing
    finish: FinishReason = "length" if truncated else "tool_calls" if calls else "stop"
    unparsed = tuple(parsed.get("unparsed_tool_calls") or ())
    lost = "".join(call.raw_text for call in unparsed if call.raw_text not in text)
    if lost:  # an agent must see what could not be parsed, and so must the model in its history
        text += lost
        parsed = _with_text(parsed, lost)
    return Reply(parsed, text, reasoning, calls, unparsed, finish, prompt_tokens, completion_tokens)


def call_id(name: str) -> str:
    """An id in the form of OpenAI's, the same for the same name."""
    return f"call_{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


def _with_text(message: Message, text: str) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + text}
    return {**message, "content": [*content, TextPart(type="text", text=text)]}
