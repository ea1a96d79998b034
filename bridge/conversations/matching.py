"""Finds the conversation that a call continues, and detects drift.

A *lineage* is a token sequence that only grows, so it becomes a single datum.
``ConversationBook.observe`` finds the reply that an agent's request continues. This is almost
always the caller's latest reply; otherwise, it is the last reply on the request's path through the
``PrefixTree``. If that reply ends its conversation, the conversation is extended. If not, a
new conversation branches off at the reply and shares the tokens up to that point (this is not
drift). If the request does not continue any known reply, all of its messages are rendered.

*Drift* means that a known reply cannot be continued token for token. Possible causes:

    template     same messages, but the renderer shows the history differently (thinking stripped)
    retokenised  same message, different token ids; we keep the sampled ids and the lineage
    completed_arguments  a tool call came back with extra arguments; starts a new lineage, unless
                 an option tells us to keep the sampled ids
    tools        same messages, different tools
    history      a reply was removed, changed, or moved to another conversation

Only changes to an agent's own history count as drift. If another agent (``Speaker``) continues the
history, a new lineage starts, but this counts as a handoff. If other agents have added messages
after the continued reply, this is not drift either.

A reply that the agent sends back is always rendered as sampled, including its thinking.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import Message

from evert.bridge.chat.bad_requests import bad_request, refuse
from evert.bridge.chat.messages import as_fields, read_tools
from evert.bridge.chat.request import ChatRequest
from evert.bridge.conversations.completed_calls import follow_echoes, is_completed
from evert.bridge.conversations.conversation import Conversation, Point, take_snapshots
from evert.bridge.conversations.differences import in_field, in_messages
from evert.bridge.conversations.drift import Break, Drift, cause_of
from evert.bridge.conversations.prefix_tree import START, PrefixTree, Speaker
from evert.bridge.conversations.reading import Entry, read_entries
from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens.images import Images
from evert.bridge.tokens.loop_budget import check_text
from evert.bridge.tokens.prompt_limit import ANY_LENGTH, PromptLimit
from evert.bridge.tokens.renderer import PromptRenderer

RECENT = 32
"""Number of recent conversations to compare with a request before searching the index. Also limits
how many identical replies are considered at each place in the index."""


class ConversationBook:
    """All conversations in one episode.

    Args:
        limit: The maximum prompt length. Longer prompts are refused.
        keeps_completed: Whether to keep the sampled tokens of a reply if its tool calls come back
            with completed arguments.

    Attributes:
        drift: How often each cause of drift occurred.
        handoffs: How often an agent continued another agent's history.
        latest_drift: Drift at the latest observation, or None.
        lineages: Number of lineages started so far.
    """

    def __init__(
        self,
        renderer: PromptRenderer,
        limit: PromptLimit = ANY_LENGTH,
        *,
        keeps_completed: bool = False,
    ) -> None:
        self.renderer = renderer
        self._images = Images()
        self._limit = limit
        self._keeps_completed = keeps_completed
        self.drift: Counter[Drift] = Counter()
        self.handoffs = 0
        self.latest_drift: Break | None = None
        self.lineages = 0
        self._index: PrefixTree[Point] = PrefixTree()
        self._latest: dict[str, Conversation] = {}
        self._recent: dict[Conversation, None] = {}  # oldest first

    def observe(
        self,
        request: ChatRequest,
        caller: str,
        renderer: PromptRenderer,
        max_chars: int | None = None,
    ) -> Conversation:
        """Find the conversation that a call continues, and extend it with the call's messages.

        The observation is the conversation's ``prompt()``.

        Args:
            request: The call.
            caller: The task or thread that made the call. If several conversations match equally
                well, we prefer the caller's own.
            renderer: The renderer to use (``self.renderer``, or a copy for a worker thread).
            max_chars: Maximum number of characters to read and render (None: no limit).

        Raises:
            openai.BadRequestError: A message or a tool cannot be read or rendered, or the prompt is
                too long (code ``context_length_exceeded``).
            LongTextError: More than ``max_chars`` characters must be read or rendered. Nothing is
                changed.
        """
        self.latest_drift = None
        try:
            match = self.match(request, caller, renderer, max_chars)
            self._extend(match, request, caller, renderer, max_chars)
        except (RendererMismatchError, RendererError, UnicodeEncodeError) as error:
            raise bad_request(f"The renderer cannot render this request: {error}") from error
        conversation = self._latest[caller] = match.conversation
        conversation.caller = caller
        self._recent.pop(conversation, None)
        self._recent[conversation] = None
        if len(self._recent) > RECENT:
            del self._recent[next(iter(self._recent))]
        return conversation

    def inject(
        self,
        conversation: Conversation,
        messages: Sequence[Message],
        renderer: PromptRenderer,
        max_chars: int | None = None,
    ) -> None:
        """Append messages that the agent does not see, such as corrections and hook reminders.

        Raises:
            LongTextError: More than ``max_chars`` characters must be rendered. Nothing is changed.
        """
        check_text(list(messages), max_chars)
        escaped = [renderer.escape(message) for message in messages]
        drift = conversation.grow(escaped, renderer, max_chars=max_chars)
        self._record_drift(conversation, None, drift)
        conversation.added += messages

    def forget(self) -> None:
        """Break reference cycles to free the conversations. Call this after the last prompt."""
        for points in self._index.points.values():
            for point in points:
                point.conversation.points = []
        self._index.clear()
        self._latest.clear()
        self._recent.clear()

    # -- what a request continues ----------------------------------------------------------------

    def match(
        self, request: ChatRequest, caller: str, renderer: PromptRenderer, max_chars: int | None
    ) -> "Match":
        """Find the conversation that a request continues, without changing it.

        Raises the same errors as ``observe``.
        """
        messages, latest = request.messages, self._latest.get(caller)
        for conversation in chain([latest] if latest is not None else (), reversed(self._recent)):
            if _has_tools(request, conversation) and conversation.is_continued_by(messages):
                start, names = len(conversation.agent_view), conversation.tool_names
                entries = _read_entries(request, start, names, max_chars)
                if (match := self._next_turn(conversation, entries)) is not None:
                    return match
        entries = _read_entries(request, 0, {}, max_chars)
        return self._match_by_index(request, entries, caller, renderer, max_chars)

    def _next_turn(self, conversation: Conversation, entries: Sequence[Entry]) -> "Match | None":
        """If the entries are the latest reply followed by new messages, return a match.

        If they are not, or if another agent may have written one of the new messages, return None.
        """
        (reply_entry, *new), reply, cause = entries, conversation.points[-1].reply, None
        if any(entry.is_assistants for entry in new):
            return None
        if not reply.is_sent_back_as(*reply_entry):
            if not self._keeps_completed or not is_completed(reply_entry, reply):
                return None
            cause = Drift.COMPLETED_ARGUMENTS
        rendered = [entry.message for entry in new]
        known_count = len(conversation.agent_view)
        return Match(conversation, conversation.speaker, known_count, new, rendered, cause)

    def _match_by_index(
        self,
        request: ChatRequest,
        entries: Sequence[Entry],
        caller: str,
        renderer: PromptRenderer,
        max_chars: int | None,
    ) -> "Match":
        """Continue from the last reply on the request's path, or start a new conversation."""
        entries, places, completed = follow_echoes(
            self._index, entries, renderer, keeps_completed=self._keeps_completed
        )
        last, point = self._last_replies(request, entries, caller, places)
        start = 0 if point is None else point.position + 1
        speaker = Speaker.of(entries, request.tools)
        left_out = self._replaced_speakers(places, entries, speaker)
        rendered, other_authors = self._messages_to_render(entries, places, start, last)
        before = last.conversation.speaker if last is not None and last.position >= start else None
        continues = point is not None and point.is_open
        cause = cause_of(speaker, other_authors, left_out, before, continues=continues)
        if completed == len(places) or (continues and completed == start - 1):
            cause = Drift.COMPLETED_ARGUMENTS
        if point is None:
            conversation = Conversation(self._index, caller, speaker)
        elif point.is_open:
            conversation = point.conversation
        else:
            conversation = Conversation.after(point, caller, renderer, max_chars)
            conversation.place = places[point.position]
        meets_others = bool(other_authors) or before is not None
        is_handoff = point is None and cause is None and meets_others
        return Match(conversation, speaker, 0, entries[start:], rendered, cause, is_handoff)

    def _replaced_speakers(
        self, places: Sequence[int], entries: Sequence[Entry], speaker: Speaker
    ) -> set[Speaker]:
        """Return the agents that received a reply at the place where the known messages end.

        The set is empty if all messages are known, or if the next message is another agent's reply.
        """
        if len(places) == len(entries):
            return set()
        instead = entries[len(places)]
        authors = self._index.replies.get(instead.key) if instead.is_assistants else None
        if authors and all(map(speaker.differs_from, authors)):
            return set()  # the request quotes another agent's conversation
        return self._index.speakers_at.get(places[-1] if places else START, set())

    def _last_replies(
        self, request: ChatRequest, entries: Sequence[Entry], caller: str, places: Sequence[int]
    ) -> tuple[Point | None, Point | None]:
        """Find the last known reply on a request's path, and the last one with the request's tools.

        Among identical replies, prefer one at the end of its conversation, then one from the same
        caller, then the most recent one.
        """
        last: Point | None = None
        for place in reversed(places):
            latest = self._index.points.get(place, ())[-RECENT:]  # there can be thousands
            points = [point for point in latest if point.is_within(entries)]
            points.sort(key=lambda point: (point.is_open, point.conversation.caller == caller))
            for point in reversed(points):
                last = last or point
                if _has_tools(request, point.conversation):
                    return last, point
        return last, None

    def _messages_to_render(
        self, entries: Sequence[Entry], places: Sequence[int], start: int, last: Point | None
    ) -> tuple[list[Message], set[Speaker]]:
        """Return the messages from ``start`` on, with the policy's replies as sampled.

        Some of these replies may not be on the path to ``last``. Also return the agents that
        received those replies.
        """
        path = {point.position: point for point in last.path} if last is not None else {}
        rendered, other_authors = [entry.message for entry in entries[start:]], set[Speaker]()
        for index, entry in enumerate(entries[start:], start):
            is_agent_text = index < len(places) and places[index] in self._index.agent_texts
            if not entry.is_assistants or is_agent_text:
                continue
            point = path.get(index)
            if point is None and entry.key in self._index.replies:
                other_authors |= self._index.replies[entry.key]
                point = self._index.latest_equal(entry, entries[index - 1].key if index else None)
            if point is not None and point.reply.is_sent_back_as(*entry):
                rendered[index - start] = point.message
        return rendered, other_authors

    # -- growing ---------------------------------------------------------------------------------

    def _extend(
        self,
        match: "Match",
        request: ChatRequest,
        caller: str,
        renderer: PromptRenderer,
        max_chars: int | None,
    ) -> None:
        """Extend a conversation with a request. If the request is refused, nothing is changed."""
        conversation = match.conversation
        where = "" if match.cause is None else self._where(match, request, caller)
        escaped = (renderer.escape(message) for message in match.rendered)
        messages = [self._images.check(message, max_chars) for message in escaped]
        if not conversation.messages:
            conversation.tools = _copy_tools(request.tools)
            if request.tools:
                _insert_tools(request.tools, messages, renderer)
        form, added = request.format, list[Message]()
        if form is not None and form.is_asked_for and form != conversation.format:
            check_text(form.schema, max_chars)
            added.append(form.request())
            messages.append(renderer.escape(added[0]))
        snapshots = take_snapshots(request.messages[match.known_count :])
        conversation.prefill = request.prefill
        drift = conversation.grow(messages, renderer, self._limit, max_chars)
        conversation.remember(match.known_count, snapshots)
        for entry in match.new:
            if calls := entry.message.get("tool_calls"):
                conversation.note_calls(calls)
        conversation.place = self._index.enter(conversation.place, match.new)
        conversation.before = match.new[-1].key if match.new else None
        conversation.format, conversation.added = form, added
        conversation.reply = None
        self.handoffs += match.is_handoff
        self._record_drift(conversation, match.cause, drift, where)

    def _record_drift(
        self, conversation: Conversation, cause: Drift | None, drift: Drift | None, where: str = ""
    ) -> None:
        begins = conversation.lineage < 0
        if begins and drift is Drift.RETOKENISED:
            drift = None  # already counted when the reply was first continued
        if begins or drift is Drift.TEMPLATE:
            conversation.lineage = self.lineages
            conversation.first = conversation.length
            self.lineages += 1
        completed = cause is Drift.COMPLETED_ARGUMENTS and drift is Drift.TEMPLATE
        if drift is not None and (cause is None or completed):
            cause, last = drift, conversation.points[-1:]
            where = "".join(f"messages[{turn.position}].content of the assistant" for turn in last)
        if cause is not None:
            self.drift[cause] += 1
            self.latest_drift = Break(cause, where)

    def _where(self, match: "Match", request: ChatRequest, caller: str) -> str:
        """Describe what changed since the agent's last request, or return "" if unknown."""
        speaker = match.speaker
        try:
            recent = [self._latest.get(caller), *reversed(self._recent)]
            same = [past for past in recent if past and not speaker.differs_from(past.speaker)]
            last = min(same, key=lambda past: past.speaker.opening != speaker.opening)
            before = [*last.agent_view, *([] if last.reply is None else [last.reply.as_message()])]
            tools = in_field("tools", last.tools, request.tools)
            after = request.messages[: len(before)]
            sides = ([as_fields(message, 0) for message in side] for side in (before, after))
            return tools if match.cause is Drift.TOOLS else in_messages(*sides) or tools
        except Exception:  # the agent's objects raised, or the agent has no earlier request
            return ""


class Match(NamedTuple):
    """How a request continues a conversation."""

    conversation: Conversation  # the conversation to extend (not changed yet)
    speaker: Speaker
    known_count: int  # number of messages that are already in the conversation
    new: Sequence[Entry]
    rendered: list[Message]  # the new messages, with the policy's replies as sampled
    cause: Drift | None  # the cause of drift, if any
    is_handoff: bool = False  # whether the agent continues another agent's history


def _read_entries(
    request: ChatRequest, start: int, tool_names: Mapping[str, str], max_chars: int | None
) -> list[Entry]:
    check_text([*request.messages[start:], None if start else request.tools], max_chars)
    return read_entries(request.messages, start, tool_names)


def _has_tools(request: ChatRequest, conversation: Conversation) -> bool:
    try:
        return bool(request.tools == conversation.tools)
    except Exception:  # comparing an agent's objects may raise (e.g. NumPy arrays)
        return False


def _copy_tools(tools: list[Any] | None) -> list[Any] | None:
    try:
        return copy.deepcopy(tools)
    except Exception as error:
        refuse("tools", error)


def _insert_tools(tools: list[Any], messages: list[Message], renderer: PromptRenderer) -> None:
    system = ""
    if messages[0]["role"] == "system" and isinstance(messages[0]["content"], str):
        system = messages[0]["content"]
        del messages[0]
    messages[:0] = renderer.tool_prefix(read_tools(tools), system)


def count_tokens(request: ChatRequest, renderer: PromptRenderer) -> int:
    """Return the number of tokens in a request's prompt.

    Raises:
        openai.BadRequestError: The request cannot be read or rendered.
    """
    return ConversationBook(renderer).observe(request, "", renderer).length
