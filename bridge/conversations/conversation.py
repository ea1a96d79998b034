"""``Conversation``: what an agent and the policy have said, and the exact tokens of it.

It exists in two views that grow side by side. ``sent`` is the agent's: messages as its requests
hold them, kept to recognise the conversation when it comes back. ``messages`` is the model's, as
the renderer takes them, with what the agent does not see (the tools' prefix, thinking,
corrections).
The tokens are ``log`` (up to the last action), then ``tail`` (what came after it), then ``suffix``
(which opens the reply), then ``opened`` (what the agent begins it with). Sampled tokens enter the
log as they were sampled and are never encoded again; a turn renders the tail only. Each reply that
the agent gets leaves a ``Point``, from which other conversations may branch; the tokens that it
holds never change.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tinker
from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.chat.bad_requests import context_length_exceeded, refuse
from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.keys import Key
from evert.bridge.chat.reply import Reply
from evert.bridge.conversations.drift import Drift, drift_of
from evert.bridge.conversations.prefix_tree import START, Index, Speaker
from evert.bridge.conversations.reading import Heard
from evert.bridge.tokens.loop_budget import check_tokens
from evert.bridge.tokens.prompt_limit import ANY_LENGTH, PromptLimit
from evert.bridge.tokens.renderer import PromptRenderer
from evert.bridge.tokens.token_log import FlatPrompt, TokenLog, length_of


@dataclass(slots=True, eq=False)  # made every turn, and a frozen one takes three times as long
class Point:
    """A reply that an agent got, and all that led to it: a point to go on from."""

    conversation: "Conversation"
    number: int  # its place among the conversation's points
    sent: int  # index of the reply among the agent's messages
    messages: int  # number of the model's messages, the reply included
    log: TokenLog  # the action included
    action: list[int]  # end of turn included
    reply: Reply
    format: ReplyFormat | None  # what the policy had been told

    @property
    def message(self) -> Message:
        """The reply as the model gave it, thinking included."""
        return self.conversation.messages[self.messages - 1]

    @property
    def path(self) -> "list[Point]":
        """The points up to this one, from the conversation's beginning."""
        return self.conversation.points[: self.number + 1]

    @property
    def is_open(self) -> bool:
        """Whether its conversation stands here, and can itself go on."""
        conversation = self.conversation
        return conversation.reply is self.reply and conversation.points[-1] is self

    def is_within(self, heard: Sequence[Heard]) -> bool:
        """Whether a request sends back all replies up to this one as they were given."""
        path = reversed(self.path)  # what an agent changes is mostly new
        return all(point.reply.is_sent_back_as(*heard[point.sent]) for point in path)


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation of an episode (see the module's docstring).

    Attributes:
        caller: Task or thread that made its latest call.
        tools: Tools offered, as sent; None for none.
        lineage: Number of the token sequence it is writing, a new one when the renderer forces a
            fresh start; -1 before the first prompt.
        format: What the latest reply had to look like, and the policy was told; None for anything.
        reply: The latest reply until the agent sends it back; None before the first.
        action: Its tokens, as sampled after what the agent began it with, end of turn included,
            until the next message is rendered.
        prefill: What the agent begins the reply with that is asked for.
        points: What there is to branch from, also of the conversation that it branched off.
        place: In the index, after all that the agent has sent, or the reply.
        length: Number of tokens of the prompt.
        first: The same of its token sequence's first prompt; None before that.
        before: Key of the latest message of the agent; None before the first.
        shown: For templates that are rendered whole: what the renderer itself makes of the log.
    """

    index: Index[Point]
    caller: str
    speaker: Speaker
    tools: list[Any] | None = None
    lineage: int = -1
    format: ReplyFormat | None = None
    sent: list[Any] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    log: TokenLog = field(default_factory=TokenLog)
    tail: FlatPrompt = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)
    prefill: str = ""
    reply: Reply | None = None
    action: list[int] = field(default_factory=list)
    points: list[Point] = field(default_factory=list)
    place: int = START
    length: int = 0
    first: int | None = None
    before: Key | None = None
    shown: FlatPrompt = field(default_factory=list)
    last_user: int = -1
    tool_names: dict[str, str] = field(default_factory=dict)
    _objects: list[tuple[Any, tuple[dict[str, Any], Any]]] = field(default_factory=list)

    @classmethod
    def after(
        cls, point: Point, caller: str, renderer: PromptRenderer, most: int | None = None
    ) -> "Conversation":
        """A branch: another conversation that has been the same up to ``point``.

        Raises:
            LongTextError: More than ``most`` characters are to be rendered.
        """
        origin = point.conversation
        branch = cls(origin.index, caller, origin.speaker, origin.tools, format=point.format)
        branch._add(origin.messages[: point.messages])
        branch.tool_names = dict(origin.tool_names)
        branch.log, branch.action, branch.points = point.log, point.action, point.path
        branch.length = point.log.length
        if not renderer.renders_tails:
            check_tokens(branch.log.length, most)
            branch.shown = renderer.full(branch.messages[:-1])
        return branch

    # -- the agent's view ------------------------------------------------------------------------

    def is_continued_by(self, messages: Sequence[Any]) -> bool:
        """Whether ``messages`` begin with all that the agent has sent here, and go on.

        Fast: one comparison of lists. What follows should be the latest reply.
        """
        count = len(self.sent)
        try:
            return (
                self.reply is not None
                and len(messages) > count
                and messages[count - 1] == self.sent[-1]  # what others lack, to be done early
                and messages[:count] == self.sent
                and all(_state(message) == before for message, before in self._objects)
            )
        except Exception:  # an agent's objects may not like to be compared (arrays)
            return False

    def remember(self, start: int, kept: "Sequence[Kept]") -> None:
        """Take messages of a request as the agent's view from ``start`` on."""
        if start == 0:
            self._objects = []
        del self.sent[start:]
        for message, state in kept:
            self.sent.append(message)
            if state is not None:
                self._objects.append((message, state))

    def note_calls(self, calls: Sequence[ToolCall]) -> None:
        """Remember the names of the functions that were called, for their results."""
        self.tool_names.update({call.id or "": call.function.name for call in calls})

    # -- the model's view ------------------------------------------------------------------------

    def prompt(self) -> tinker.ModelInput:
        """The tokens to continue."""
        return self.log.followed_by([*self.tail, *self.suffix, *self.opened])

    def record(
        self, action: list[int], reply: Reply, renderer: PromptRenderer, *, is_seen: bool = True
    ) -> None:
        """Take in an action; one that was cut gets its end-of-turn token."""
        ended = self.opened + action + renderer.missing_end(action)
        self.log = self.log.extended([*self.tail, *self.suffix, *ended])
        self.length = self.log.length
        if not renderer.renders_tails:
            self.shown = self.shown + self.tail
        self.tail, self.suffix, self.opened, self.action = [], [], [], ended
        self._add([renderer.escape(reply.parsed)])
        if reply.tool_calls:
            self.note_calls(reply.tool_calls)
        if is_seen:
            self.reply = reply
            here = len(self.points), len(self.sent), len(self.messages)
            point = Point(self, *here, self.log, ended, reply, self.format)
            self.points.append(point)
            self.place = self.index.add(point, reply, self.speaker, self.place, self.before)

    def grow(
        self,
        new: Sequence[Message],
        renderer: PromptRenderer,
        limit: PromptLimit = ANY_LENGTH,
        most: int | None = None,
    ) -> Drift | None:
        """Add messages after the last action, and make the tokens for them; all or nothing.

        Args:
            new: The messages.
            renderer: To render with.
            limit: On the prompt's length.
            most: Characters of what was said before that may be rendered again; None for any.

        Returns:
            ``Drift.TEMPLATE`` when the renderer no longer shows the last reply, or what was before
            it, as it was: all is then as the renderer shows it now, a token sequence of its own.
            ``Drift.RETOKENISED`` when it would only spell the reply otherwise, or not show the
            thought that the prompt opened. Else None.

        Raises:
            RendererMismatchError: The renderer cannot render it.
            openai.BadRequestError: The prompt is too long.
            LongTextError: More than ``most`` are to be rendered again.
        """
        start, last_user = len(self.messages), self.last_user
        before = self.log, self.tail, self.suffix, self.opened, self.shown
        self._add(new)
        try:
            render = self._render_tail if renderer.renders_tails else self._render_whole
            drift = render(start, renderer, most)
            self.opened = renderer.spell(self.prefill) if self.prefill else []
            length = self.log.length + length_of(self.tail) + len(self.suffix) + len(self.opened)
            longest = limit.longest(None if drift is Drift.TEMPLATE else self.first)
            if longest is not None and length > longest:
                raise context_length_exceeded(length, longest)
        except BaseException:
            del self.messages[start:]
            self.log, self.tail, self.suffix, self.opened, self.shown = before
            self.last_user = last_user
            raise
        self.action, self.length = [], length
        return drift

    def _add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message["role"] == "user":
                self.last_user = len(self.messages)
            self.messages.append(message)

    def _render_tail(self, start: int, renderer: PromptRenderer, most: int | None) -> Drift | None:
        drift: Drift | None = None
        if self.action:
            check_tokens(len(self.action), most)
            shown = renderer.as_history(self.messages, start - 1, self.last_user)
            drift = drift_of(shown, self.action, renderer)
            if drift is Drift.TEMPLATE:
                check_tokens(self.log.length, most)
                self.log, start = TokenLog(), 0
        self.tail = self.tail + renderer.tail(self.messages, start, self.last_user)
        self.suffix = renderer.suffix(self.messages, self.last_user)
        return drift

    def _render_whole(self, start: int, renderer: PromptRenderer, most: int | None) -> Drift | None:
        """For templates that depend on all messages: render them all, but keep what was sampled."""
        check_tokens(self.log.length, most)
        whole = renderer.full(self.messages)
        known = _shown_again(whole, self.shown, renderer)
        drift: Drift | None = Drift.TEMPLATE
        if known is not None:
            shown = _opening(whole[known:], self.action, renderer)
            drift = drift_of(shown, self.action, renderer)
            if known < len(self.shown):  # the thought that the prompt opened is not shown
                drift = drift or Drift.RETOKENISED
            known += len(shown)
        if drift is Drift.TEMPLATE:
            self.log, known = TokenLog(), 0
        self.shown, self.tail = whole[:known], whole[known:]
        return drift


def _shown_again(whole: FlatPrompt, shown: FlatPrompt, renderer: PromptRenderer) -> int | None:
    """How much of ``whole`` shows the same as ``shown``; None: it shows it differently.

    A reply that was cut never closes the thought that the prompt opened, and a template cannot show
    such a thought: the rendering then goes on with the reply where the thought was opened.
    """
    if whole[: len(shown)] == shown:
        return len(shown)
    pairs = enumerate(zip(whole, shown, strict=False))
    known = next((index for index, (new, old) in pairs if new != old), len(whole))
    end = [token for token in shown[-_OPENING:] if isinstance(token, int)]
    is_open = renderer.decode(end).rstrip().endswith("<think>")
    return known if is_open and known >= len(shown) - len(end) else None


_OPENING = 3
"""Tokens in which a prompt may open a thought."""


def _opening(rest: FlatPrompt, action: list[int], renderer: PromptRenderer) -> FlatPrompt:
    """The reply that opens the rest of a whole rendering; empty where none can be made out."""
    if rest[: len(action)] == action:
        return rest[: len(action)]
    ends = [rest.index(end) for end in renderer.end_tokens if end in rest]
    return rest[: min(ends) + 1] if ends else []


Kept: TypeAlias = tuple[Any, tuple[dict[str, Any], Any] | None]
"""A message of an agent, safe against changes in place; and its state, if it is an SDK object.

To compare SDK objects is slow; the same object is equal at once, if nobody changed it.
"""


def keep(messages: Sequence[Any]) -> list[Kept]:
    """Messages of a request, to be recognised by.

    Raises:
        openai.BadRequestError: One cannot be copied.
    """
    try:
        return [_keep(message) for message in messages]
    except Exception as error:
        refuse("messages", error)


def _keep(message: Any) -> Kept:
    if not isinstance(message, Mapping):
        return message, copy.deepcopy(_state(message))
    plain = set(map(type, message.values())) <= {str}
    return (dict(message) if plain else copy.deepcopy(message)), None


def _state(message: Any) -> tuple[dict[str, Any], Any]:
    """All that can change in an SDK object; reasoning is among its extra fields."""
    return vars(message), getattr(message, "__pydantic_extra__", None)
