"""Drift: why a known reply cannot be continued token for token, and where it was found."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import Message, TextPart

from evert.bridge.conversations.prefix_tree import Speaker
from evert.bridge.tokens.renderer import PromptRenderer
from evert.bridge.tokens.token_log import FlatPrompt


class Drift(StrEnum):
    """Causes of drift (see ``matching.py``)."""

    TEMPLATE = "template"
    RETOKENISED = "retokenised"
    COMPLETED_ARGUMENTS = "completed_arguments"
    TOOLS = "tools"
    HISTORY = "history"


class Break(NamedTuple):
    """A drift that was found for an observation."""

    cause: Drift
    where: str = ""  # which field of which message differed; "" if unknown


def cause_of(
    speaker: Speaker,
    others: set[Speaker],
    left_out: set[Speaker],
    before: Speaker | None,
    *,
    goes_on: bool,
) -> Drift | None:
    """The drift of a request; None if other agents or conversations explain all that differs.

    Args:
        speaker: The agent that makes the request.
        others: Agents that got replies in the request which are not on its path in the index.
        left_out: Agents that got a reply where the request has another message, or none.
        before: The agent that got the latest reply on the path, if with other tools; else None.
        goes_on: Whether the request continues a conversation, which then keeps all its tokens.
    """
    if goes_on:
        others = {one for one in others if one.opening == speaker.opening}
    if not all(map(speaker.is_another, left_out | others)):
        return Drift.HISTORY
    if before is not None and not speaker.is_another(before):
        return Drift.TOOLS
    return None


def drift_of(shown: FlatPrompt, sampled: list[int], renderer: PromptRenderer) -> Drift | None:
    """The drift between a reply's sampled tokens and those that the renderer shows as history."""
    if shown == sampled:
        return None
    tokens = [token for token in shown if isinstance(token, int)]
    if not tokens or len(tokens) < len(shown):
        return Drift.TEMPLATE
    if renderer.differ_in_spelling(tokens, sampled):  # marks that made no thought and no call
        return None
    return Drift.RETOKENISED if _say_the_same(tokens, sampled, renderer) else Drift.TEMPLATE


def _say_the_same(shown: list[int], sampled: list[int], renderer: PromptRenderer) -> bool:
    try:
        (rendered, ended), (said, end) = renderer.parse(shown), renderer.parse(sampled)
    except (RendererError, RecursionError):  # no message: an end of turn in its middle, say
        return False
    return ended == end and _what_it_says(rendered) == _what_it_says(said)


def _what_it_says(message: Message) -> tuple[list[str], list[str], Sequence[Any]]:
    """A reply's thinking, text and tool calls, without what templates choose.

    Templates choose the white space between these, and the place of unparsed tool calls.
    """
    content = message["content"]
    parts = [TextPart(type="text", text=content)] if isinstance(content, str) else content
    broken = [call.raw_text for call in message.get("unparsed_tool_calls", ())]
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    if any(raw not in text for raw in broken):
        text += "".join(broken)
    thinking = "".join(part["thinking"] for part in parts if part["type"] == "thinking")
    return thinking.split(), text.split(), message.get("tool_calls", ())
