"""Tool calls that come back otherwise than the policy made them, and are still the policy's.

A framework may fill in arguments that the policy left out (``"replace_all": false``) or tidy what
it wrote (white space at the ends of lines, ``"3"`` where the schema has a number). The call's id
says whose it is, and all that was sampled is there. ``is_completed`` knows such an echo.

A framework may also give calls other ids, the same ones in their results. That changes nothing
where the template shows no ids. ``follow_echoes`` undoes both.
"""

import json
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.chat.keys import key_as_reply, reply_key
from evert.bridge.chat.messages import read_message
from evert.bridge.chat.reply import Reply
from evert.bridge.conversations.prefix_tree import START, Index
from evert.bridge.tokens.renderer import PromptRenderer


class Followed(NamedTuple):
    """How far a request follows what is known.

    Attributes:
        sent: Its messages, echoes undone.
        read: The same as renderers take them.
        places: In the index, after each message that is known.
        completed: Index of the last reply that came back completed; None for none.
    """

    sent: list[Any]
    read: list[Message]
    places: list[int]
    completed: int | None


def follow_echoes(
    index: Index[Any],
    sent: Sequence[Any],
    read: Sequence[Message],
    renderer: PromptRenderer,
    *,
    keeps_completed: bool,
    renames: bool = True,
) -> Followed:
    """Follow a request's messages through an index, past tool calls that are echoes.

    Args:
        index: What is known.
        sent: The messages as sent.
        read: The same as renderers take them.
        renderer: Of the policy.
        keeps_completed: Whether completed calls are undone; else the way ends at the first.
        renames: Whether other ids are undone, where the renderer shows none.
    """
    found = Followed([*sent], [*read], index.follow(read), None)
    while (at := len(found.places)) < len(read):
        here, message = found.places[-1] if at else START, found.read[at]
        alike = index.alike(here, message) if renames else None
        if alike is not None and not renderer.shows_ids and _renames(found.read, at, alike.reply):
            reply = alike.reply
        else:
            replies = (point.reply for point in index.called(here, message))
            completed = next((own for own in replies if is_completed(message, own)), None)
            if completed is None:
                break
            reply, found = completed, found._replace(completed=at)
            if not keeps_completed:
                break
        found.sent[at] = as_given(message, reply)
        found.read[at] = read_message(found.sent[at], at, {})
        found.places.extend(index.follow(found.read[at:], here))
    if renames and not _is_one_to_one(read, found.read):
        return follow_echoes(
            index, sent, read, renderer, keeps_completed=keeps_completed, renames=False
        )
    return found


def _renames(messages: list[Message], at: int, reply: Reply) -> bool:
    """Give the results after a renamed reply its own ids; False: they answer another reply."""
    calls = messages[at].get("tool_calls", ())
    ids = {call.id: own.id or "" for call, own in zip(calls, reply.tool_calls, strict=True)}
    results = [*takewhile(lambda message: message["role"] == "tool", messages[at + 1 :])]
    if any(result.get("tool_call_id") in {*ids.values()} - ids.keys() for result in results):
        return False
    for place, result in enumerate(results, at + 1):
        if (sent := result.get("tool_call_id")) in ids:
            messages[place] = {**result, "tool_call_id": ids[sent]}
    return True


def _is_one_to_one(sent: Iterable[Message], given: Iterable[Message]) -> bool:
    pairs = {
        (call.id, own.id)
        for message, undone in zip(sent, given, strict=True)
        for call, own in zip(
            message.get("tool_calls", ()), undone.get("tool_calls", ()), strict=True
        )
    }
    return len({sent for sent, _ in pairs}) == len({own for _, own in pairs}) == len(pairs)


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
    """Whether ``sent`` has all that ``given`` has; objects may have more fields, at any depth."""
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
