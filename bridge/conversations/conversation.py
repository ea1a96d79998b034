"""``Conversation``: the messages between an agent and the policy, with their exact tokens.

A conversation has two views that grow together. ``agent_view`` contains the messages as the agent
sent them, so that we can recognise the conversation in the next request. ``messages`` contains them
as passed to the renderer, including what the agent never sees: the tool descriptions, thinking and
corrections.

A prompt consists of ``log`` (the tokens up to the last action), ``tail`` (the messages after it),
``suffix`` (the tokens that open the reply) and ``opened`` (the agent's prefill). Sampled tokens are
added to the log unchanged and are never re-encoded, so each turn only renders the tail. Every reply
that the agent receives is stored as a ``Point``. Its tokens never change, and other conversations
can branch off from it.
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


@dataclass(slots=True, eq=False)  # created every turn; creation is 3x slower with frozen=True
class Point:
    """A reply received by the agent, from which a conversation can continue."""

    conversation: "Conversation"
    number: int  # index in ``conversation.points``
    position: int  # index of the reply in the agent's messages
    messages: int  # message count in the model's view, including the reply
    log: TokenLog  # including the action
    action: list[int]  # including the end of turn
    reply: Reply
    format: ReplyFormat | None  # the format requested for the reply

    @property
    def message(self) -> Message:
        """The reply in the model's view, including thinking."""
        return self.conversation.messages[self.messages - 1]

    @property
    def path(self) -> "list[Point]":
        """All points from the start of the conversation up to this one."""
        return self.conversation.points[: self.number + 1]

    @property
    def is_open(self) -> bool:
        """Whether the conversation ends here, so that it can be continued without branching."""
        conversation = self.conversation
        return conversation.reply is self.reply and conversation.points[-1] is self

    def is_within(self, entries: Sequence[Entry]) -> bool:
        """Return whether a request contains all replies up to this one, unchanged."""
        path = reversed(self.path)  # newest first, since agents rarely change old messages
        return all(point.reply.is_sent_back_as(*entries[point.position]) for point in path)


@dataclass(slots=True, eq=False, weakref_slot=True)
class Conversation:
    """One conversation in an episode (see the module docstring).

    Attributes:
        caller: The task or thread that made the latest call.
        tools: The tools as sent by the agent, or None.
        lineage: Index of the current lineage, or -1 before the first prompt. A new lineage starts
            when the renderer changes the history.
        format: The format requested from the policy, or None.
        reply: The latest reply. None once the agent has sent it back.
        action: The tokens of the latest reply, including prefill and end of turn. Cleared when a
            message is added.
        prefill: The start of the next reply, written by the agent.
        points: Replies at which a branch can start, including those shared with other branches.
        place: The current place in the index, after the agent's latest message or the latest reply.
        length: Number of tokens in the prompt.
        first: Number of tokens in the first prompt of the lineage, or None before that prompt.
        before: The key of the agent's latest message, or None before the first message.
        rendered_log: The log as rendered by a template that can only render whole prompts.
        added: Messages after the latest action that the agent did not send, such as corrections.
        is_retried: Whether the latest action was hidden from the agent and is being retried.
        rendering: The last prompt rendered by a template that can only render whole prompts.
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
        """Branch off at ``point``: return a new conversation that shares the history up to there.

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
        """Return whether a request consists of the agent's view followed by more messages.

        This is a fast check that only compares two lists. It does not check the latest reply, which
        should be the next message in the request.
        """
        count = len(self.agent_view)
        try:
            return (
                self.reply is not None
                and len(messages) > count
                and messages[count - 1] == self.agent_view[-1]  # most conversations fail here
                and messages[:count] == self.agent_view
                and all(_state(message) == before for message, before in self._objects)
            )
        except Exception:  # comparing an agent's objects may raise (e.g. NumPy arrays)
            return False

    def remember(self, start: int, snapshots: "Sequence[Snapshot]") -> None:
        """Replace ``agent_view[start:]`` with the messages of a request."""
        if start == 0:
            self._objects = []
        del self.agent_view[start:]
        for message, state in snapshots:
            self.agent_view.append(message)
            if state is not None:
                self._objects.append((message, state))

    def note_calls(self, calls: Sequence[ToolCall]) -> None:
        """Store the names of the called functions, so that they can be shown with the results."""
        self.tool_names.update({call.id or "": call.function.name for call in calls})

    # -- the model's view ------------------------------------------------------------------------

    def prompt(self) -> tinker.ModelInput:
        """Return the prompt for the policy."""
        return self.log.followed_by([*self.tail, *self.suffix, *self.opened])

    def record(
        self, action: list[int], reply: Reply, renderer: PromptRenderer, *, is_seen: bool = True
    ) -> None:
        """Add an action. If it was truncated, also add the missing end-of-turn token."""
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
        """Add messages after the last action and render them. If this fails, nothing is changed.

        Args:
            new: The messages.
            renderer: The renderer to use.
            limit: The maximum prompt length.
            max_chars: Maximum number of history characters to re-render (None: no limit).

        Returns:
            ``Drift.TEMPLATE`` if the last reply or the history before it is now rendered
            differently. In this case, everything is rendered again as a new token sequence.
            ``Drift.RETOKENISED`` if the same reply is encoded as different tokens, or if the
            template no longer shows the thinking block that the prompt opened. In this case, the
            sampled tokens are kept. None if there is no drift.

        Raises:
            RendererMismatchError: The renderer cannot render the messages.
            openai.BadRequestError: The prompt is too long.
            LongTextError: More than ``max_chars`` characters would have to be rendered again.
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
        """Render the whole prompt, but keep the sampled tokens.

        Used for templates that cannot render new messages on their own.
        """
        check_tokens(self.log.length, max_chars)
        prompt, self.rendering = renderer.full_after(self.messages, self.rendering)
        shared = _shown_length(prompt, self.rendered_log, renderer)
        drift: Drift | None = Drift.TEMPLATE
        if shared is not None:
            history = _opening(prompt[shared:], self.action, renderer)
            drift = drift_of(history, self.action, renderer)
            if shared < len(self.rendered_log):  # the template dropped the open thinking block
                drift = drift or Drift.RETOKENISED
            shared += len(history)
        if drift is Drift.TEMPLATE:
            self.log, shared = TokenLog(), 0
        self.rendered_log, self.tail = prompt[:shared], prompt[shared:]
        return drift


def _shown_length(prompt: FlatPrompt, log: FlatPrompt, renderer: PromptRenderer) -> int | None:
    """Return the length of the prefix of ``prompt`` that matches ``log``, or None.

    ``log`` may end by opening a thinking block. If the reply was truncated inside that block, the
    template only shows the text and drops the opening of the block. This still counts as a match.
    """
    if prompt[: len(log)] == log:
        return len(log)
    pairs = enumerate(zip(prompt, log, strict=False))
    length = next((index for index, (new, old) in pairs if new != old), len(prompt))
    end = [token for token in log[-_OPENING:] if isinstance(token, int)]
    is_open = renderer.decode(end).rstrip().endswith("<think>")
    return length if is_open and length >= len(log) - len(end) else None


_OPENING = 3
"""Maximum number of tokens at the end of a prompt that open a thinking block."""


def _opening(tokens: FlatPrompt, action: list[int], renderer: PromptRenderer) -> FlatPrompt:
    """Return the reply at the start of ``tokens``, or an empty list if it has no end token."""
    if tokens[: len(action)] == action:
        return tokens[: len(action)]
    ends = [tokens.index(end) for end in renderer.end_tokens if end in tokens]
    return tokens[: min(ends) + 1] if ends else []


Snapshot: TypeAlias = tuple[Any, tuple[dict[str, Any], Any] | None]
"""For a dict message, a copy of the message and None. For an SDK object, the object itself and a
copy of its state. Comparing two SDK objects is slow, but if the agent sends the same object again,
only its state has to be compared.
"""


def take_snapshots(messages: Sequence[Any]) -> list[Snapshot]:
    """Take snapshots of a request's messages, so that we can recognise them in the next request.

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
    """Return an SDK object's fields, and its extra fields (which contain the reasoning)."""
    return vars(message), getattr(message, "__pydantic_extra__", None)
