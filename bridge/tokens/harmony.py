"""Reads OpenAI's Harmony (gpt-oss), whose replies consist of several messages with channels.

Renderings do not show that a thought, a text and calls are messages of one reply, so the format is
not learned, but recognised by its control tokens.
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

from tinker_cookbook.renderers.base import Message, ToolCall, UnparsedToolCall

from evert.bridge.tokens.call_format import as_tool_calls, call_of
from evert.bridge.tokens.call_values import schemas_of
from evert.bridge.tokens.probes import thinking

MARKS = {"<|channel|>", "<|message|>", "<|call|>", "<|constrain|>"}
"""The control tokens by which Harmony is recognised."""

STOPS = ("<|return|>", "<|call|>")
"""Control tokens that end a reply; ``<|end|>`` ends only a message of the reply."""

_MESSAGE = re.compile(
    r"\s*(?:<\|start\|>)?(?P<head>(?:(?!<\|message\|>).){0,200})<\|message\|>"
    r"(?P<body>(?:(?!<\|(?:end|call|return|start)\|>).)*+)(?:<\|(?:end|call|return)\|>)?",
    re.DOTALL,
)
_TO = re.compile(r"to=(?:functions\.)?([\w.\-]+)")


def is_harmony(names: Collection[str]) -> bool:
    """Return whether the model of a tokenizer with these control tokens writes Harmony."""
    return set(names) >= MARKS


def read_harmony(text: str, tools: Sequence[Any] | None) -> Message:
    """Read thoughts, text and calls from a reply's text into one message.

    Args:
        text: The text after the header ``<|start|>assistant``, from the first channel on.
        tools: The tools that were offered; None if they are unknown.
    """
    thoughts: list[str] = []
    texts: list[str] = []
    calls: list[ToolCall] = []
    schemas, at = None if tools is None else schemas_of(tools), 0
    message = Message(role="assistant", content=text)
    while (part := _MESSAGE.match(text, at)) is not None:
        head, body, at = part["head"], part["body"], part.end()
        recipient = _TO.search(head)
        if recipient is not None and recipient[1] != "assistant":
            try:
                calls += as_tool_calls([call_of(recipient[1], json.loads(body), None)], schemas)
            except (ValueError, RecursionError) as error:
                broken = UnparsedToolCall(raw_text=part[0], error=str(error))
                message["unparsed_tool_calls"] = [broken]
                texts.append(part[0])
        elif "analysis" in head:
            thoughts.append(body)
        else:
            texts.append(body)
    content = "".join([*texts, text[at:]])
    message["content"] = thinking("\n".join(thoughts), content) if thoughts else content
    if calls:
        message["tool_calls"] = calls
    return message
