"""What keeps a known reply from going on token for token, and where it was found."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import Message, TextPart

from evert.bridge.conversations.prefix_tree import Speaker
from evert.bridge.tokens.renderer import PromptRenderer
from evert.bridge.tokens.token_log import FlatPrompt


class Drift(StrEnum):
    """The causes (see ``matching.py``)."""

    TEMPLATE = "template"
    RETOKENISED = "retokenised"
    COMPLETED_ARGUMENTS = "completed_arguments"
    TOOLS = "tools"
    HISTORY = "history"


class Break(NamedTuple):
    """A drift that an observation met."""

    cause: Drift
    where: str = ""  # which field of which message differed; "" where that cannot be said


def cause_of(
    speaker: Speaker,
    others: set[Speaker],
    left_out: set[Speaker],
    before: Speaker | None,
    *,
    goes_on: bool,
) -> Drift | None:
    """The drift of what a request meets: none where all is another agent's or conversation's.

    Args:
        speaker: Who makes the request.
        others: Who got the replies in it that are not on its way.
        left_out: Who got a reply where it holds another message, or none.
        before: Who got the latest reply on its way, with other tools; None: it has the same.
        goes_on: Whether a conversation goes on with it, and so keeps all of its own.
    """
    if goes_on:
        others = {one for one in others if one.opening == speaker.opening}
    if not all(map(speaker.is_another, left_out | others)):
        return Drift.HISTORY
    if before is not None and not speaker.is_another(before):
        return Drift.TOOLS
    return None


def drift_of(shown: FlatPrompt, sampled: list[int], renderer: PromptRenderer) -> Drift | None:
    """What came between a reply as it was sampled and as the renderer shows it as history."""
    if shown == sampled:
        return None
    tokens = [token for token in shown if isinstance(token, int)]
    if not tokens or len(tokens) < len(shown):
        return Drift.TEMPLATE
    if renderer.differ_in_spelling(tokens, sampled):  # of marks that made no thought and no call
        return None
    return Drift.RETOKENISED if _say_the_same(tokens, sampled, renderer) else Drift.TEMPLATE


def _say_the_same(shown: list[int], sampled: list[int], renderer: PromptRenderer) -> bool:
    try:
        (rendered, ended), (said, end) = renderer.parse(shown), renderer.parse(sampled)
    except (RendererError, RecursionError):  # an end of turn in its middle, say: no message at all
        return False
    return ended == end and _what_it_says(rendered) == _what_it_says(said)


def _what_it_says(message: Message) -> tuple[list[str], list[str], Sequence[Any]]:
    """A reply's thinking, text and tool calls, without what templates choose.

    They choose the white space between them and the place of tool calls that cannot be parsed.
    """
    content = message["content"]
    parts = [TextPart(type="text", text=content)] if isinstance(content, str) else content
    broken = [call.raw_text for call in message.get("unparsed_tool_calls", ())]
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    if any(raw not in text for raw in broken):
        text += "".join(raw for raw in broken)
    thinking = "".join(part["thinking"] for part in parts if part["type"] == "thinking")
    return thinking.split(), text.split(), message.get("tool_calls", ())
