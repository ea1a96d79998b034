"""Hashable message keys: two messages count as the same if their keys match.

A dict and an SDK object with the same content have the same key. Reply keys ignore leading and
trailing whitespace as well as thinking, because agents often change both.
"""

import hashlib
import json
import pickle
from collections.abc import Hashable, Sequence
from typing import Any, cast

from tinker_cookbook.renderers.base import Message, ToolCall, get_text_content

Key = Hashable


def message_key(message: Message) -> Key:
    """Return a key for the exact content of a message."""
    content = message["content"]
    if len(message) == 2 and isinstance(content, str):  # fast path: only role and text
        return message["role"], content
    parts = content if isinstance(content, str) else tuple(map(_part_key, content))
    names = message.get("name"), message.get("tool_call_id")
    return message["role"], parts, *names, _calls_key(message.get("tool_calls", ()))


def reply_key(text: str, calls: Sequence[ToolCall]) -> Key:
    """Return a key for a reply, based on its stripped text and its tool calls."""
    return "reply", text.strip(), _calls_key(calls)


def key_without_ids(key: Key) -> Key:
    """Remove the call ids from a reply's key, because agents may change the ids."""
    kind, text, calls = cast("tuple[str, str, tuple[tuple[Key, Key, Key], ...]]", key)
    return kind, text, tuple(call[1:] for call in calls)


def key_as_reply(message: Message) -> Key:
    """Return the key that an agent's message would have as a reply from the policy."""
    content, calls = message["content"], message.get("tool_calls", ())
    if isinstance(content, str):
        return reply_key(content, calls)
    if any(part["type"] not in ("text", "thinking") for part in content):
        return message_key(message)
    return reply_key(get_text_content(message), calls)


def _part_key(part: Any) -> Key:
    value = part.get("text") or part.get("thinking") or part.get("image")
    if not isinstance(value, str):
        value = hashlib.sha256(pickle.dumps(value)).digest()
    return part["type"], value


def _calls_key(calls: Sequence[ToolCall]) -> Key:
    return tuple((c.id, c.function.name, _same_json(c.function.arguments)) for c in calls)


def call_names(calls: Sequence[ToolCall]) -> Key:
    """Return a key for tool calls, made of their ids and names but not their arguments."""
    return tuple((call.id, call.function.name) for call in calls)


def _same_json(text: str) -> str:
    """Normalize JSON: frameworks often change the key order, whitespace and integral floats."""
    try:
        return json.dumps(json.loads(text, parse_float=_number), sort_keys=True)
    except (ValueError, RecursionError):
        return text


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value
