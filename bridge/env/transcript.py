"""``Transcript``: the agent's calls, which the Env stores if it is being recorded.

For each call, only the new messages are stored, that is, the messages after the reply that the call
continues.
"""

from dataclasses import dataclass, replace
from typing import Any

from tinker_cookbook.renderers.base import Message

from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.conversations.conversation import Conversation, Point


@dataclass(frozen=True, slots=True)
class AnsweredCall:
    """A model call that was answered by an action."""

    request: ChatRequest  # without messages
    after: int | None
    messages: list[Any]
    retried_turn: int | None  # the earlier turn that this turn retries
    added: list[Message]  # messages that the agent did not send, such as corrections
    key: tuple[Conversation, int]
    points: list[Point]
    overlaps: bool


class Transcript:
    """The calls made in one Env, in the order in which they were answered.

    Attributes:
        calls: One call per action.
    """

    def __init__(self) -> None:
        self.calls: list[AnsweredCall] = []
        self._answers: dict[tuple[Conversation, int], int] = {}

    def note(self, request: ChatRequest, conversation: Conversation, *, overlaps: bool) -> None:
        """Add a call. Must be called after its action has arrived, before the agent resumes."""
        points, after, start = conversation.points, None, 0
        if points:
            last = points[-1]
            after = self._answers.get((last.conversation, last.number))
            start = 0 if after is None else last.position + 1
        key = conversation, len(points)
        retried_turn = self._answers.get(key) if conversation.is_retried else None
        self._answers[key] = len(self.calls)
        new = conversation.agent_view[start:]
        request, added = replace(request, messages=[]), [*conversation.added]
        self.calls.append(
            AnsweredCall(request, after, new, retried_turn, added, key, points, overlaps)
        )

    def reply(self, turn: int) -> Reply | None:
        """Return the reply of a turn, or None if the turn was retried or ended the episode."""
        call = self.calls[turn]
        number = call.key[1]
        is_given = self._answers[call.key] == turn and number < len(call.points)
        return call.points[number].reply if is_given else None
