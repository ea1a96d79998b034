"""``Conversation``: the messages of an agent and the policy, with their exact tokens.

It has two views, which grow together. ``agent_view`` has the messages as the agent sends them, and
serves to recognise the conversation in the next request. ``messages`` has them as the renderer gets
them, including what the agent does not see: the prefix that lists the tools, thinking, corrections.

A prompt's tokens are ``log`` (up to the last action), ``tail`` (the messages after it), ``suffix``
(which opens the reply) and ``opened`` (the agent's prefill). Sampled tokens enter the log unchanged
and are never encoded again; a turn renders only the tail. Each reply that the agent gets is kept as
a ``Point``. A point's tokens never change, and other conversations may branch off there.
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import tinker
from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.chat.bad_requests import context_length_exceeded, refuse
from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.message_equality import Key
from evert.bridge.chat.reply import Reply
from evert.bridge.conversations.drift import Drift, drift_of
from evert.bridge.conversations.prefix_tree import START, PrefixTree, Speaker
from evert.bridge.conversations.reading import Entry
from evert.bridge.tokens.loop_budget import check_tokens
from evert.bridge.tokens.prompt_limit import ANY_LENGTH, PromptLimit
from evert.bridge.tokens.renderer import PromptRenderer
from evert.bridge.tokens.rendering import EMPTY, Rendering
from evert.bridge.tokens.token_log import FlatPrompt, TokenLog, length_of


@dataclass(slots=True, eq=False)  # made every turn; a frozen dataclass takes three times as long
class Point:
    """A reply that an agent got, from which a conversation can continue."""

    conversation: "Conversation"
    number: int  # its index among the conversation's points
    position: int  # the reply's index among the agent's messages
    messages: int  # number of messages in the model's view, including the reply
    log: TokenLog  # including the action
    action: list[int]  # including the end of turn
    reply: Reply
    format: ReplyFormat | None  # the format that the policy was asked for

    @property
    def message(self) -> Message:
        """The reply in the model's view, thinking included."""
        return self.conversation.messages[self.messages - 1]

    @property
    def path(self) -> "list[Point]":
        """The points up to this one, from the conversation's beginning."""
        return self.conversation.points[: self.number + 1]

    @property
    def is_open(self) -> bool:
        """Whether its conversation ends here, so that it can continue without a branch."""
        conversation = self.conversation
        return conversation.reply is self.reply and conversation.points[-1] is self

    def is_within(self, entries: Sequence[Entry]) -> bool:
        """Return whether a request contains all replies up to this one, unchanged."""
        path = reversed(self.path)  # agents mostly change recent messages
        return all(point.reply.is_sent_back_as(*entries[point.position]) for point in path)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Conversation:
    """One conversation of an episode (see the module's docstring).

    Attributes:
        caller: The task or thread that made the latest call.
        tools: The tools as the agent sent them; None if it sent none.
        lineage: The number of its current token sequence; -1 before the first prompt. A new
            sequence begins when the renderer changes the history.
        format: The format that the policy was asked for; None for any.
        reply: The latest reply, until the agent sends it back; else None.
        action: The latest reply's tokens, with prefill and end of turn, until a message is added.
        prefill: The beginning of the next reply, written by the agent.
        points: Replies to branch from, including those before it branched off itself.
        place: Its place in the index, after the agent's latest message or the latest reply.
        length: The number of tokens of the prompt.
        first: The number of tokens of its lineage's first prompt; None before that prompt.
        before: The key of the agent's latest message; None before the first message.
        rendered_log: For templates that render whole prompts: the log as the renderer shows it.
        added: Messages after the latest action that the agent did not send, such as corrections.
        is_retried: Whether the latest action was hidden from the agent and is being retried.
        rendering: For templates that render whole prompts: the last prompt.
    """

    index: PrefixTree[Point]
    caller: str
    speaker: Speaker
    tools: list[Any] | None = None
    lineage: int = -1
    format: ReplyFormat | None = None
    agent_view: list[Any] = field(default_factory=list)
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
    rendered_log: FlatPrompt = field(default_factory=list)
    added: list[Message] = field(default_factory=list)
    is_retried: bool = False
    rendering: Rendering = EMPTY
    last_user: int = -1
    tool_names: dict[str, str] = field(default_factory=dict)
    _objects: list[tuple[Any, tuple[dict[str, Any], Any]]] = field(default_factory=list)

    @classmethod
    def after(
        cls, point: Point, caller: str, renderer: PromptRenderer, max_chars: int | None = None
    ) -> "Conversation":
        """Branch off: return a new conversation with the same history up to ``point``.

        Raises:
            LongTextError: More than ``max_chars`` characters would be rendered.
        """
        origin = point.conversation
        branch = cls(origin.index, caller, origin.speaker, origin.tools, format=point.format)
        branch._add(origin.messages[: point.messages])
        branch.tool_names = dict(origin.tool_names)
        branch.log, branch.action, branch.points = point.log, point.action, point.path
        branch.length = point.log.length
        if not renderer.renders_tails:
            check_tokens(branch.log.length, max_chars)
            branch.rendered_log = renderer.full(branch.messages[:-1])
        return branch

    # -- the agent's view ------------------------------------------------------------------------

    def is_continued_by(self, messages: Sequence[Any]) -> bool:
        """Return whether a request begins with all messages that the agent sent here, and has more.

        It is fast, as it compares two lists once. The next message should be the latest reply.
        """
        count = len(self.agent_view)
        try:
            return (
                self.reply is not None
                and len(messages) > count
                and messages[count - 1] == self.agent_view[-1]  # fast: most conversations fail here
                and messages[:count] == self.agent_view
                and all(_state(message) == before for message, before in self._objects)
            )
        except Exception:  # an agent's objects may raise when compared (arrays)
            return False

    def remember(self, start: int, snapshots: "Sequence[Snapshot]") -> None:
        """Replace the agent's view from index ``start`` on with a request's messages."""
        if start == 0:
            self._objects = []
        del self.agent_view[start:]
        for message, state in snapshots:
            self.agent_view.append(message)
            if state is not None:
                self._objects.append((message, state))

    def note_calls(self, calls: Sequence[ToolCall]) -> None:
        """Remember the names of the called functions, to show them with the results."""
        self.tool_names.update({call.id or "": call.function.name for call in calls})

    # -- the model's view ------------------------------------------------------------------------

    def prompt(self) -> tinker.ModelInput:
        """Return the prompt: the tokens that the policy continues."""
        return self.log.followed_by([*self.tail, *self.suffix, *self.opened])

    def record(
        self, action: list[int], reply: Reply, renderer: PromptRenderer, *, is_seen: bool = True
    ) -> None:
        """Add an action; if it was cut, also add the missing end-of-turn token."""
        ended = self.opened + action + renderer.missing_end(action)
        self.log = self.log.extended([*self.tail, *self.suffix, *ended])
        self.length = self.log.length
        if not renderer.renders_tails:
            self.rendered_log = self.rendered_log + self.tail
        self.tail, self.suffix, self.opened, self.action = [], [], [], ended
        self.added, self.is_retried = [], not is_seen
        self._add([renderer.escape(reply.parsed)])
        if reply.tool_calls:
            self.note_calls(reply.tool_calls)
        if is_seen:
            self.reply = reply
            counts = len(self.points), len(self.agent_view), len(self.messages)
            point = Point(self, *counts, self.log, ended, reply, self.format)
            self.points.append(point)
            self.place = self.index.add(point, reply, self.speaker, self.place, self.before)

    def grow(
        self,
        new: Sequence[Message],
        renderer: PromptRenderer,
        limit: PromptLimit = ANY_LENGTH,
        max_chars: int | None = None,
    ) -> Drift | None:
        """Add messages after the last action and render them; after an error nothing has changed.

        Args:
            new: The messages.
            renderer: The renderer to use.
            limit: The limit of the prompt's length.
            max_chars: Maximum number of characters of history to render again; None for no limit.

        Returns:
            ``Drift.TEMPLATE`` if the renderer now shows the last reply, or the history before it,
            differently; everything has then been rendered again, as a new token sequence.
            ``Drift.RETOKENISED`` if it only encodes the reply as other tokens, or does not show the
            thought that the prompt opened; the sampled tokens are kept. Otherwise None.

        Raises:
            RendererMismatchError: The renderer cannot render the messages.
            openai.BadRequestError: The prompt is too long.
            LongTextError: More than ``max_chars`` characters would be rendered again.
        """
        start, last_user = len(self.messages), self.last_user
        before = self.log, self.tail, self.suffix, self.opened, self.rendered_log
        self._add(new)
        try:
            render = self._render_tail if renderer.renders_tails else self._render_whole
            drift = render(start, renderer, max_chars)
            self.opened = renderer.spell(self.prefill) if self.prefill else []
            length = self.log.length + length_of(self.tail) + len(self.suffix) + len(self.opened)
            longest = limit.longest(None if drift is Drift.TEMPLATE else self.first)
            if longest is not None and length > longest:
                raise context_length_exceeded(length, longest)
        except BaseException:
            del self.messages[start:]
            self.log, self.tail, self.suffix, self.opened, self.rendered_log = before
            self.last_user = last_user
            raise
        self.action, self.length = [], length
        return drift

    def _add(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if message["role"] == "user":
                self.last_user = len(self.messages)
            self.messages.append(message)

    def _render_tail(
        self, start: int, renderer: PromptRenderer, max_chars: int | None
    ) -> Drift | None:
        drift: Drift | None = None
        if self.action:
            check_tokens(len(self.action), max_chars)
            history = renderer.as_history(self.messages, start - 1, self.last_user)
            drift = drift_of(history, self.action, renderer)
            if drift is Drift.TEMPLATE:
                check_tokens(self.log.length, max_chars)
                self.log, start = TokenLog(), 0
        self.tail = self.tail + renderer.tail(self.messages, start, self.last_user)
        self.suffix = renderer.suffix(self.messages, self.last_user)
        return drift

    def _render_whole(
        self, start: int, renderer: PromptRenderer, max_chars: int | None
    ) -> Drift | None:
        """Render all messages, for templates that need all of them; keep the sampled tokens."""
        check_tokens(self.log.length, max_chars)
        prompt, self.rendering = renderer.full_after(self.messages, self.rendering)
        shared = _shown_length(prompt, self.rendered_log, renderer)
        drift: Drift | None = Drift.TEMPLATE
        if shared is not None:
            history = _opening(prompt[shared:], self.action, renderer)
            drift = drift_of(history, self.action, renderer)
            if shared < len(self.rendered_log):  # the thought that the prompt opened is not shown
                drift = drift or Drift.RETOKENISED
            shared += len(history)
        if drift is Drift.TEMPLATE:
            self.log, shared = TokenLog(), 0
        self.rendered_log, self.tail = prompt[:shared], prompt[shared:]
        return drift


def _shown_length(prompt: FlatPrompt, log: FlatPrompt, renderer: PromptRenderer) -> int | None:
    """Return the length of the prefix of ``prompt`` that shows ``log``; None if it differs.

    A cut reply may leave open a thought that the prompt opened. A template cannot show such a
    thought; it shows the reply's text instead.
    """
    if prompt[: len(log)] == log:
        return len(log)
    pairs = enumerate(zip(prompt, log, strict=False))
    length = next((index for index, (new, old) in pairs if new != old), len(prompt))
    end = [token for token in log[-_OPENING:] if isinstance(token, int)]
    is_open = renderer.decode(end).rstrip().endswith("<think>")
    return length if is_open and length >= len(log) - len(end) else None


_OPENING = 3
"""Number of tokens at the end of a prompt that may open a thought."""


def _opening(tokens: FlatPrompt, action: list[int], renderer: PromptRenderer) -> FlatPrompt:
    """Return the reply at the beginning of ``tokens``; empty if it has no end."""
    if tokens[: len(action)] == action:
        return tokens[: len(action)]
    ends = [tokens.index(end) for end in renderer.end_tokens if end in tokens]
    return tokens[: min(ends) + 1] if ends else []


Snapshot: TypeAlias = tuple[Any, tuple[dict[str, Any], Any] | None]
"""A copy of an agent's message, and None; or an SDK object itself, and a copy of its state. SDK
objects are slow to compare; comparing an object with itself is fast, and its state shows changes.
"""


def take_snapshots(messages: Sequence[Any]) -> list[Snapshot]:
    """Take snapshots of a request's messages, to recognise them in the next request.

    Raises:
        openai.BadRequestError: A message cannot be copied.
    """
    try:
        return [_snapshot(message) for message in messages]
    except Exception as error:
        refuse("messages", error)


def _snapshot(message: Any) -> Snapshot:
    if not isinstance(message, Mapping):
        return message, copy.deepcopy(_state(message))
    plain = set(map(type, message.values())) <= {str}
    return (dict(message) if plain else copy.deepcopy(message)), None


def _state(message: Any) -> tuple[dict[str, Any], Any]:
    """Return everything in an SDK object that can change; reasoning is in its extra fields."""
    return vars(message), getattr(message, "__pydantic_extra__", None)
