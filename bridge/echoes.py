"""Tool calls that come back with arguments which a framework completed.

A framework may fill in what the policy left out (``"replace_all": false``) or tidy what it wrote
(white space at the ends of lines, ``"3"`` where the schema has a number). The call is then still
the policy's: its id says so, and all that was sampled is there. ``is_completed`` knows such an
echo, ``as_given`` undoes it.
"""

import json
from typing import Any

from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.index import key_as_reply, reply_key
from evert.bridge.messages import Reply


def is_completed(message: Message, reply: Reply) -> bool:
    """Whether an agent's message is ``reply``, but for arguments added to its calls or tidied."""
    sent, given = message.get("tool_calls", ()), reply.tool_calls
    if not sent or len(sent) != len(given) or key_as_reply(message) == reply.key:
        return False
    without_calls = Message(role="assistant", content=message["content"])
    if key_as_reply(without_calls) != reply_key(reply.text, ()):
        return False
    return all(_completes(call, own) for call, own in zip(sent, given, strict=True))


def as_given(message: Message, reply: Reply) -> dict[str, Any]:
    """The message as an agent would send it that completes nothing."""
    calls = [call.model_dump() for call in reply.tool_calls]
    return {"role": "assistant", "content": message["content"], "tool_calls": calls}


def _completes(call: ToolCall, given: ToolCall) -> bool:
    if (call.id, call.function.name) != (given.id, given.function.name):
        return False
    try:
        sent, own = json.loads(call.function.arguments), json.loads(given.function.arguments)
        return _holds(sent, own)
    except (ValueError, RecursionError):
        return False


def _holds(sent: Any, given: Any) -> bool:
    """Whether a JSON value has all that another has; objects may have more, at any depth."""
    if isinstance(given, dict) and isinstance(sent, dict):
        return given.keys() <= sent.keys() and all(_holds(sent[k], given[k]) for k in given)
    if isinstance(given, list) and isinstance(sent, list):
        pairs = zip(sent, given, strict=False)
        return len(sent) == len(given) and all(_holds(one, own) for one, own in pairs)
    if isinstance(given, str) and isinstance(sent, str):
        return sent == given or _tidied(sent) == _tidied(given)
    if isinstance(given, str) and sent is not None:
        return _holds(sent, json.loads(given))
    return bool(sent == given) and isinstance(sent, bool) == isinstance(given, bool)


def _tidied(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
