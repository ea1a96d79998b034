"""Drift: the reasons why a known reply cannot be continued token for token."""

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
    """The drift that occurred at an observation."""

    cause: Drift
    where: str = ""  # the message and field that differ, or "" if unknown


def cause_of(
    speaker: Speaker,
    other_authors: set[Speaker],
    left_out: set[Speaker],
    before: Speaker | None,
    *,
    continues: bool,
) -> Drift | None:
    """Return the cause of drift, or None if there is no drift.

    A difference that comes from another agent or conversation is not drift.

    Args:
        speaker: The agent that made the request.
        other_authors: Agents that received replies which are in the request, but not on the
            request's path through the index.
        left_out: Agents that received a reply at the place where the request ends or diverges.
        before: If the latest reply on the path was requested with different tools, the agent that
            received it; otherwise, None.
        continues: Whether the request extends a conversation and keeps all of its tokens.
    """
    if continues:
        other_authors = {author for author in other_authors if author.opening == speaker.opening}
    if not all(map(speaker.differs_from, left_out | other_authors)):
        return Drift.HISTORY
    if before is not None and not speaker.differs_from(before):
        return Drift.TOOLS
    return None


def drift_of(history: FlatPrompt, sampled: list[int], renderer: PromptRenderer) -> Drift | None:
    """Compare a reply's sampled tokens with its tokens in the rendered history."""
    if history == sampled:
        return None
    tokens = [token for token in history if isinstance(token, int)]
    if not tokens or len(tokens) < len(history):
        return Drift.TEMPLATE
    if renderer.differ_in_spelling(tokens, sampled):  # control tokens encoded as text
        return None
    return Drift.RETOKENISED if _same_message(tokens, sampled, renderer) else Drift.TEMPLATE


def _same_message(history: list[int], sampled: list[int], renderer: PromptRenderer) -> bool:
    try:
        (rendered, ended), (reply, end) = renderer.parse(history), renderer.parse(sampled)
    except (RendererError, RecursionError):  # e.g. an end-of-turn token in the middle
        return False
    return ended == end and _substance(rendered) == _substance(reply)


def _substance(message: Message) -> tuple[list[str], list[str], Sequence[Any]]:
    """Return a reply's thinking, text and tool calls in a form that is independent of the template.

    Templates differ in whitespace and in where they put malformed tool calls.
    """
    content = message["content"]
    parts = [TextPart(type="text", text=content)] if isinstance(content, str) else content
    broken = [call.raw_text for call in message.get("unparsed_tool_calls", ())]
    text = "".join(part["text"] for part in parts if part["type"] == "text")
    if any(raw not in text for raw in broken):
        text += "".join(broken)
    thinking = "".join(part["thinking"] for part in parts if part["type"] == "thinking")
    return thinking.split(), text.split(), message.get("tool_calls", ())
