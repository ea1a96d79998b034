"""``Conversation``: what an agent and the policy have said, and the exact tokens of it.

It exists in two views that grow side by side. ``sent`` is the agent's: messages as its requests
hold them, kept to recognise the conversation when it comes back. ``messages`` is the model's, as
the renderer takes them, with what the agent does not see (the tools' prefix, thinking,
corrections).
The tokens are ``log`` (up to the last action), then ``tail`` (what came after it), then ``suffix``
(which opens the reply). Sampled tokens enter the log as they were sampled and are never encoded
again; a turn renders the tail only.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import tinker
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import Message

from evert.bridge.formats import ReplyFormat
from evert.bridge.messages import Reply, read_message
from evert.bridge.rendering import PromptRenderer
from evert.bridge.tokens import FlatPrompt, TokenLog, length_of


class Fit(StrEnum):
    """How the renderer shows a reply once it is history, next to how it was sampled."""

    EXACT = "exact"
    RETOKENISED = "retokenised"  # same message, other token ids (or other JSON spacing)
    CHANGED = "changed"  # another message: thinking stripped, a cut block dropped


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a conversation stood right after a reply: a point to branch from.

    Attributes:
        sent: Index of the reply among the agent's messages.
        messages: Number of the model's messages, the reply included.
        tokens: Length of the flat log, the action included.
    """

    sent: int
    messages: int
    tokens: int


@dataclass(slots=True, eq=False)
class Conversation:
    """One conversation of an episode (see the module's docstring).

    Attributes:
        lineage: Number of the token sequence it is writing; a new one when the renderer forces a
            fresh start.
        caller: Task or thread that made its latest call.
        tools: Tools offered, as sent; None for none.
        format: What the latest reply had to look like, and the policy was told; None for anything.
        reply: The latest reply until the agent sends it back; None before the first.
        action: Its tokens as sampled, end of turn included, until the next message is rendered.
        turns: Points of the present lineage to branch from.
    """

    lineage: int
    caller: str
    tools: list[Any] | None = None
    format: ReplyFormat | None = None
    sent: list[Any] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    log: TokenLog = field(default_factory=TokenLog)
    tail: FlatPrompt = field(default_factory=list)
    suffix: list[int] = field(default_factory=list)
    reply: Reply | None = None
    action: list[int] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    last_user: int = -1
    tool_names: dict[str, str] = field(default_factory=dict)
    _objects: list[tuple[Any, tuple[dict[str, Any], Any]]] = field(default_factory=list)

    # -- the agent's view ------------------------------------------------------------------------

    @property
    def known(self) -> int:
        """Number of messages a continuing request must begin with."""
        return len(self.sent) + (self.reply is not None)

    def is_continued_by(self, messages: Sequence[Any]) -> bool:
        """Whether ``messages`` begin with this conversation. Fast: one comparison of lists."""
        count = len(self.sent)
        return (
            self.reply is not None
            and len(messages) > count
            and messages[:count] == self.sent
            and self.reply.is_sent_back_as(messages[count])
            and all(_state(message) == before for message, before in self._objects)
        )

    def shared_with(self, messages: Sequence[Any]) -> int:
        """Number of leading messages that are the same, also where their form differs."""
        changed = [message for message, before in self._objects if _state(message) != before]
        for index, (own, other) in enumerate(zip(self.sent, messages, strict=False)):
            if any(other is message for message in changed):
                return index
            if own != other and _readable(own, index) != _readable(other, index):
                return index
        count = min(len(self.sent), len(messages))
        if count == len(self.sent) < len(messages) and self.reply is not None:
            count += self.reply.is_sent_back_as(messages[count])
        return count

    def remember(self, messages: Sequence[Any]) -> None:
        """Add messages of a request to the agent's view, safe against later changes in place."""
        for message in messages:
            if isinstance(message, Mapping):
                plain = all(isinstance(value, str) for value in message.values())
                self.sent.append(dict(message) if plain else copy.deepcopy(message))
            else:  # comparing SDK objects is slow; the same object is equal at once
                self.sent.append(message)
                self._objects.append((message, copy.deepcopy(_state(message))))

    @contextmanager
    def undone_on_error(self) -> Iterator[None]:
        """Leave the conversation as it was when what is done inside fails."""
        names = ("log", "tail", "suffix", "action", "turns", "lineage", "last_user")
        before = [(name, getattr(self, name)) for name in names]
        count = len(self.messages)
        try:
            yield
        except BaseException:
            for name, value in before:
                setattr(self, name, value)
            del self.messages[count:]
            raise

    # -- the model's view ------------------------------------------------------------------------

    def add(self, messages: Sequence[Message]) -> None:
        """Append to the model's view; the tokens follow by ``render`` or ``restart``."""
        for message in messages:
            if message["role"] == "user":
                self.last_user = len(self.messages)
            for call in message.get("tool_calls", ()):
                self.tool_names[call.id or ""] = call.function.name
            self.messages.append(message)

    @property
    def length(self) -> int:
        """Number of tokens of the prompt."""
        return self.log.length + length_of(self.tail) + len(self.suffix)

    def prompt(self) -> tinker.ModelInput:
        """The tokens to continue."""
        return self.log.followed_by([*self.tail, *self.suffix])

    def record(self, action: list[int], reply: Reply, renderer: PromptRenderer) -> None:
        """Take in an action that was delivered; one that was cut gets its end-of-turn token."""
        ended = action + renderer.missing_end(action)
        self.log.extend([*self.tail, *self.suffix, *ended])
        self.tail, self.suffix = [], []
        self.action = ended
        self.reply = reply
        self.add([renderer.escape(reply.parsed)])
        for call in reply.tool_calls:
            self.tool_names[call.id or ""] = call.function.name
        self.turns.append(Turn(len(self.sent), len(self.messages), self.log.length))

    def restart(self, lineage: int, renderer: PromptRenderer) -> None:
        """Begin a new lineage: everything as the renderer shows it now."""
        self.lineage = lineage
        self.log = TokenLog()
        self.turns = []
        self.action = []
        if renderer.renders_tails:
            self.tail = renderer.tail(self.messages, 0, self.last_user)
            self.suffix = renderer.suffix(self.messages, self.last_user)
        else:
            self.tail, self.suffix = renderer.full(self.messages), []

    def render(self, start: int, renderer: PromptRenderer) -> Fit:
        """Make the tail for ``messages[start:]``, which follow the last action.

        Returns ``Fit.CHANGED``, and leaves the tokens alone, when the renderer no longer shows the
        last reply as it was sampled: ``restart`` is then due.
        """
        if renderer.renders_tails:
            return self._render_tail(start, renderer)
        return self._render_whole(start, renderer)

    def _render_tail(self, start: int, renderer: PromptRenderer) -> Fit:
        fit = Fit.EXACT
        if self.action:
            shown = renderer.as_history(self.messages, start - 1, self.last_user)
            fit = _fit(shown, self.action, renderer)
        if fit is not Fit.CHANGED:
            self.tail = self.tail + renderer.tail(self.messages, start, self.last_user)
            self.suffix = renderer.suffix(self.messages, self.last_user)
            self.action = []
        return fit

    def _render_whole(self, start: int, renderer: PromptRenderer) -> Fit:
        """For templates that look at everything: render it all, but keep what was sampled."""
        whole = renderer.full(self.messages)
        tail = _after(whole, self.log.flat())
        fit = Fit.EXACT
        if tail is None and self.action:
            tail = self._after_same_reply(whole, start, renderer)
            fit = Fit.RETOKENISED
        if tail is None:
            return Fit.CHANGED
        self.tail, self.suffix, self.action = tail, [], []
        return fit

    def _after_same_reply(
        self, whole: FlatPrompt, start: int, renderer: PromptRenderer
    ) -> FlatPrompt | None:
        """What follows the last reply in ``whole``, if all up to there stands unchanged."""
        rest = _after(whole, renderer.full(self.messages[: start - 1]))
        ends = [rest.index(end) for end in renderer.end_tokens if rest and end in rest]
        if rest is None or not ends:
            return None
        shown = rest[: min(ends) + 1]
        same = _fit(shown, self.action, renderer) is not Fit.CHANGED
        return rest[len(shown) :] if same else None


def _fit(shown: FlatPrompt, sampled: list[int], renderer: PromptRenderer) -> Fit:
    if shown == sampled:
        return Fit.EXACT
    tokens = [token for token in shown if isinstance(token, int)]
    if len(tokens) < len(shown):
        return Fit.CHANGED
    try:
        (rendered, ended), (said, end) = renderer.parse(tokens), renderer.parse(sampled)
    except RendererError:  # an end of turn in the middle of the action, say: no message at all
        return Fit.CHANGED
    same = ended == end and _without_margins(rendered) == _without_margins(said)
    return Fit.RETOKENISED if same else Fit.CHANGED


def _without_margins(message: Message) -> dict[str, Any]:
    """A reply with tool calls without the white space around its texts.

    Templates set it as they like, between calls and between text and calls; it says nothing.
    """
    content = message["content"]
    if not message.get("tool_calls"):
        return {**message}
    if isinstance(content, list):
        trimmed: list[Any] = []
        for part in content:
            text = {**part, "text": part["text"].strip()} if part["type"] == "text" else part
            if text.get("text") != "":
                trimmed.append(text)
        content = trimmed
        if all(part["type"] == "text" for part in trimmed):
            content = "".join(part["text"] for part in trimmed)
    return {**message, "content": content.strip() if isinstance(content, str) else content}


def _after(whole: FlatPrompt, beginning: Sequence[Any]) -> FlatPrompt | None:
    return whole[len(beginning) :] if whole[: len(beginning)] == beginning else None


def _state(message: Any) -> tuple[dict[str, Any], Any]:
    """All that can change in an SDK object; reasoning is among its extra fields."""
    return vars(message), getattr(message, "__pydantic_extra__", None)


def _readable(message: Any, index: int) -> Message:
    return read_message(message, index, {})
