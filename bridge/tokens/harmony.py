"""Parses OpenAI's Harmony format (gpt-oss), where a reply consists of several messages.

Renderings do not reveal that thoughts, text and calls are separate messages of the same reply, so
this format is not learned but recognised by its control tokens.
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
"""The control tokens that identify the Harmony format."""

STOPS = ("<|return|>", "<|call|>")
"""Control tokens that end a reply. ``<|end|>`` only ends a message within the reply."""

_MESSAGE = re.compile(
    r"\s*(?:<\|start\|>)?(?P<head>(?:(?!<\|message\|>).){0,200})<\|message\|>"
    r"(?P<body>(?:(?!<\|(?:end|call|return|start)\|>).)*+)(?:<\|(?:end|call|return)\|>)?",
    re.DOTALL,
)
_TO = re.compile(r"to=(?:functions\.)?([\w.\-]+)")


def is_harmony(names: Collection[str]) -> bool:
    """Return whether a model with these control tokens uses the Harmony format."""
    return set(names) >= MARKS


def read_harmony(text: str, tools: Sequence[Any] | None) -> Message:
    """Parse a reply's text into a single message with thoughts, text and calls.

    Args:
        text: The text after the header ``<|start|>assistant``, starting with the first channel.
        tools: The tools that the request offered, or None if unknown.
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
