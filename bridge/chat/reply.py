"""``Reply``: one action of the policy as the agent gets it.

A reply has two views. The *model's* view (``Reply.parsed``) is the renderer's parse, thinking
included; if the reply has to be rendered again, it is rendered from this view. The *agent's* view
(``Reply.text``, ``tool_calls``) is what an OpenAI client shows. The agent sends it back with its
next request, where ``Reply.is_sent_back_as`` recognises it.
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
    """A sampled token, and the natural logarithm of its probability."""

    text: str  # of this token alone; part of a character gives the replacement character
    logprob: float
    raw: bytes | None  # the bytes of the text; None if an endpoint sent none


@dataclass(slots=True)  # made every turn; a frozen dataclass takes three times as long
class Reply:
    """The policy's reply in one action, as the agent gets it."""

    parsed: Message  # the renderer's parse of the action: the model's view
    text: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]  # each has an id
    unparsed: tuple[UnparsedToolCall, ...]  # their markup stays in ``text``
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    stop_string: str | None = None  # the agent's stop string that cut the text, if one did
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per token, if the agent asked for them
    prefill: str = ""  # the beginning that the agent gave: in ``parsed``, but not in ``text``
    tokens: tuple[int, ...] | None = None  # if they were asked for and are known
    key: Key = field(init=False, repr=False, compare=False)  # ``reply_key`` of the whole reply

    def __post_init__(self) -> None:
        self.key = reply_key(self.prefill + self.text, self.tool_calls)

    def with_calls(self, count: int) -> "Reply":
        """Keep the first ``count`` calls; if none is left, finish with "stop", not "tool_calls"."""
        calls = self.tool_calls[:count]
        ends = self.finish_reason == "tool_calls" and not calls
        return replace(self, tool_calls=calls, finish_reason="stop" if ends else self.finish_reason)

    def as_message(self) -> dict[str, Any]:
        """The reply as the message that the agent got."""
        calls = [call.model_dump(mode="json") for call in self.tool_calls]
        return reply_message(self.text, self.reasoning, calls)

    def after(self, prefill: str) -> "Reply":
        """The reply without ``prefill``, its beginning that the agent gave.

        If the renderer's prompt opens a thought, ``prefill`` is the beginning of the thought.
        """
        reasoning, text, stripped = self.reasoning, self.text, prefill.strip()
        if text.startswith(stripped):  # a parser may strip white space
            text = text.removeprefix(prefill if text.startswith(prefill) else stripped)
        elif reasoning is not None and reasoning.startswith(stripped):
            beginning = prefill if reasoning.startswith(prefill) else stripped
            reasoning = reasoning.removeprefix(beginning)
        return replace(self, prefill=prefill, text=text, reasoning=reasoning)

    def is_sent_back_as(self, message: Message, key: Key) -> bool:
        """Whether an agent's message, which has this key, is the reply.

        White space at the ends of the text does not count, since agents strip it. Reasoning may be
        missing, since agents rarely send it back, but must not differ.
        """
        if key != self.key:
            return False
        thoughts = _thoughts(message["content"])
        return not thoughts or thoughts.strip() in ("", (self.reasoning or "").strip())


def reply_message(text: str, thoughts: str | None, calls: Sequence[Any]) -> dict[str, Any]:
    """A reply as an assistant's message; None for ``thoughts`` leaves them out."""
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
    """The reply made from a renderer's parse.

    Tool calls without ids get ids made from ``call_ids``, a prefix that differs for each reply.
    ``keeps_ids``: whether the model's view has them too, since templates may refuse calls without.
    """
    text, reasoning = get_text_content(parsed), _thoughts(parsed["content"])
    calls = tuple(
        call if call.id else call.model_copy(update={"id": call_id(f"{call_ids}-{number}")})
        for number, call in enumerate(parsed.get("tool_calls") or ())
    )
    if calls:
        text = text.strip()  # formats have white space around calls
        parsed = {**parsed, "tool_calls": [*calls]} if keeps_ids else parsed
    finish: FinishReason = "length" if truncated else "tool_calls" if calls else "stop"
    unparsed = tuple(parsed.get("unparsed_tool_calls") or ())
    lost = "".join(call.raw_text for call in unparsed if call.raw_text not in text)
    if lost:  # the agent must see what could not be parsed, and so must the model in its history
        text += lost
        parsed = _with_text(parsed, lost)
    return Reply(parsed, text, reasoning, calls, unparsed, finish, prompt_tokens, completion_tokens)


def call_id(name: str) -> str:
    """An id in OpenAI's form; the same name gives the same id."""
    return f"call_{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


def _with_text(message: Message, text: str) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + text}
    return {**message, "content": [*content, TextPart(type="text", text=text)]}
