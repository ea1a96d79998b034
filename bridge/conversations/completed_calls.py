"""Recognises the policy's tool calls when an agent sends them back modified (*echoes*).

Some frameworks fill in arguments that the policy omitted (``"replace_all": false``) or clean up
sampled arguments (they strip trailing whitespace, or turn ``"3"`` into a number).
``is_completed`` can still recognise such a call, because the call keeps its id and all the sampled
information.

Some frameworks also change the ids of calls and results, for example to number them within each
reply. This is harmless if the template does not render ids. ``follow_echoes`` undoes both kinds of
changes. It compares ids only within a reply and its results.
"""

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.chat.message_equality import key_as_reply, reply_key
from evert.bridge.chat.reply import Reply
from evert.bridge.conversations.prefix_tree import START, PrefixTree
from evert.bridge.conversations.reading import Entry
from evert.bridge.tokens.renderer import PromptRenderer


class IndexPath(NamedTuple):
    """The path of a request's messages through the index, up to the first unknown message."""

    entries: list[Entry]  # the request's messages, with echoes undone
    places: list[int]  # the place in the index after each known message
    completed: int | None  # index of the last reply that came back with completed arguments


def follow_echoes(
    index: PrefixTree[Any],
    entries: Sequence[Entry],
    renderer: PromptRenderer,
    *,
    keeps_completed: bool,
) -> IndexPath:
    """Follow a request's messages through the index, undoing echoes along the way."""
    path = IndexPath([*entries], index.follow(entries), None)
    while (at := len(path.places)) < len(entries):
        place, entry = path.places[-1] if at else START, path.entries[at]
        twin = index.with_same_content(place, entry)
        if twin is not None and not renderer.shows_ids and _reset_ids(path.entries, at, twin.reply):
            reply = twin.reply
        else:
            replies = (point.reply for point in index.with_same_calls(place, entry.message))
            completed = next((sampled for sampled in replies if is_completed(entry, sampled)), None)
            if completed is None:
                break
            reply, path = completed, path._replace(completed=at)
            if not keeps_completed:
                break
        message = Message(
            role="assistant", content=entry.message["content"], tool_calls=[*reply.tool_calls]
        )
        path.entries[at] = Entry.of(message)
        path.places.extend(index.follow(path.entries[at:], place))
    return path


def _reset_ids(entries: list[Entry], at: int, reply: Reply) -> bool:
    """Restore the sampled call ids in the tool results that follow a reply.

    Returns:
        False if the ids are ambiguous. In this case, nothing is changed.
    """
    calls = entries[at].message.get("tool_calls", ())
    ids = {call.id: sampled.id or "" for call, sampled in zip(calls, reply.tool_calls, strict=True)}
    if len(ids) < len(calls):  # duplicate ids
        return False
    after = (entry.message for entry in entries[at + 1 :])
    results = [*takewhile(lambda message: message["role"] == "tool", after)]
    if any(result.get("tool_call_id") in {*ids.values()} - ids.keys() for result in results):
        return False
    for place, result in enumerate(results, at + 1):
        if (sent_id := result.get("tool_call_id")) in ids:
            entries[place] = Entry.of({**result, "tool_call_id": ids[sent_id]})
    return True


def is_completed(entry: Entry, reply: Reply) -> bool:
    """Return whether an agent's message is ``reply`` with added or cleaned-up arguments."""
    sent_calls, reply_calls = entry.message.get("tool_calls", ()), reply.tool_calls
    if not sent_calls or len(sent_calls) != len(reply_calls) or entry.key == reply.key:
        return False
    without_calls = Message(role="assistant", content=entry.message["content"])
    if key_as_reply(without_calls) != reply_key(reply.text, ()):
        return False
    return all(_completes(*pair) for pair in zip(sent_calls, reply_calls, strict=True))


def _completes(call: ToolCall, sampled: ToolCall) -> bool:
    if (call.id, call.function.name) != (sampled.id, sampled.function.name):
        return False
    try:
        return _contains(*(json.loads(c.function.arguments) for c in (call, sampled)))
    except (ValueError, RecursionError):
        return False


def _contains(value: Any, part: Any) -> bool:
    """Return whether ``value`` is ``part``, possibly with added fields and cleaned-up values."""
    if isinstance(part, dict) and isinstance(value, dict):
        return part.keys() <= value.keys() and all(_contains(value[k], part[k]) for k in part)
    if isinstance(part, list) and isinstance(value, list):
        pairs = zip(value, part, strict=False)
        return len(value) == len(part) and all(_contains(a, b) for a, b in pairs)
    if isinstance(part, str) and isinstance(value, str):
        return value == part or _strip_line_ends(value) == _strip_line_ends(part)
    if isinstance(part, str) and value is not None:
        return _contains(value, json.loads(part))
    return bool(value == part) and isinstance(value, bool) == isinstance(part, bool)


def _strip_line_ends(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
