"""Recognises the policy's tool calls when an agent sends them back changed (*echoes*).

A framework may add arguments that the policy left out (``"replace_all": false``) or tidy the
sampled ones (white space at the ends of lines, ``"3"`` where the schema has a number). The call has
the same id and still holds all that was sampled. ``is_completed`` recognises such a call.

A framework may also change the ids of calls, and of their results accordingly: it may number them
anew in each reply. That does not matter if the template shows no ids. ``follow_echoes`` undoes both
changes. Ids are compared within a reply and its results.
"""

import json
from collections.abc import Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.chat.keys import key_as_reply, reply_key
from evert.bridge.chat.reply import Reply
from evert.bridge.conversations.prefix_tree import START, Index
from evert.bridge.conversations.reading import Heard
from evert.bridge.tokens.renderer import PromptRenderer


class Followed(NamedTuple):
    """A request, followed through the index as far as it is known."""

    heard: list[Heard]  # its messages, echoes undone
    places: list[int]  # in the index, after each known message
    completed: int | None  # index of the last reply that came back completed; None: no such reply


def follow_echoes(
    index: Index[Any],
    heard: Sequence[Heard],
    renderer: PromptRenderer,
    *,
    keeps_completed: bool,
) -> Followed:
    """Follow a request's messages through an index, past tool calls that are echoes."""
    found = Followed([*heard], index.follow(heard), None)
    while (at := len(found.places)) < len(heard):
        here, one = found.places[-1] if at else START, found.heard[at]
        alike = index.alike(here, one)
        if alike is not None and not renderer.shows_ids and _renames(found.heard, at, alike.reply):
            reply = alike.reply
        else:
            replies = (point.reply for point in index.called(here, one.message))
            completed = next((own for own in replies if is_completed(one, own)), None)
            if completed is None:
                break
            reply, found = completed, found._replace(completed=at)
            if not keeps_completed:
                break
        given = Message(
            role="assistant", content=one.message["content"], tool_calls=[*reply.tool_calls]
        )
        found.heard[at] = Heard.of(given)
        found.places.extend(index.follow(found.heard[at:], here))
    return found


def _renames(heard: list[Heard], at: int, reply: Reply) -> bool:
    """Give the results after a renamed reply the original ids; False: the ids do not fit it."""
    calls = heard[at].message.get("tool_calls", ())
    ids = {call.id: own.id or "" for call, own in zip(calls, reply.tool_calls, strict=True)}
    if len(ids) < len(calls):  # two calls have one id
        return False
    after = (one.message for one in heard[at + 1 :])
    results = [*takewhile(lambda message: message["role"] == "tool", after)]
    if any(result.get("tool_call_id") in {*ids.values()} - ids.keys() for result in results):
        return False
    for place, result in enumerate(results, at + 1):
        if (sent := result.get("tool_call_id")) in ids:
            heard[place] = Heard.of({**result, "tool_call_id": ids[sent]})
    return True


def is_completed(heard: Heard, reply: Reply) -> bool:
    """Whether an agent's message is ``reply``, with arguments of its calls added or tidied."""
    sent, given = heard.message.get("tool_calls", ()), reply.tool_calls
    if not sent or len(sent) != len(given) or heard.key == reply.key:
        return False
    without_calls = Message(role="assistant", content=heard.message["content"])
    if key_as_reply(without_calls) != reply_key(reply.text, ()):
        return False
    return all(_completes(call, own) for call, own in zip(sent, given, strict=True))


def _completes(call: ToolCall, given: ToolCall) -> bool:
    if (call.id, call.function.name) != (given.id, given.function.name):
        return False
    try:
        sent, own = json.loads(call.function.arguments), json.loads(given.function.arguments)
        return _holds(sent, own)
    except (ValueError, RecursionError):
        return False


def _holds(sent: Any, given: Any) -> bool:
    """Whether ``sent`` has all of ``given``; objects may have more fields, at any depth."""
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
