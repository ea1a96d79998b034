"""Finds the conversation that a call continues, and any drift.

A *lineage* is one token sequence that only grows: it becomes one datum.
``ConversationBook.observe`` finds the reply that an agent's request continues: nearly always the
caller's latest, else the last one on the request's path through the ``Index``. If a conversation
ends with that reply, it grows by the new messages. From any other reply a new one branches off,
which shares the tokens up to there; that is no drift. Without such a reply, all is rendered.

*Drift* keeps a known reply from being continued token for token. It has one of these causes:

    template     same messages, but the renderer shows the history differently (thinking stripped)
    retokenised  same message, other token ids; the sampled ids are kept and no lineage starts
    completed_arguments  a tool call came back with arguments added; the sampled ids are kept if an
                 option says so, else a lineage starts
    tools        same messages, other tools
    history      a reply was left out or changed, or is in a history that is not its own

Only an agent's own past counts. If another agent (``Speaker``) continues a history, it was handed
over: a lineage starts, which counts as a handoff and not as drift. Messages that other agents added
after the reply that a request continues are not drift either.

A reply that comes back is always rendered as the policy gave it, with its thinking.
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
from evert.bridge.conversations.conversation import Conversation, Point, keep
from evert.bridge.conversations.differences import in_field, in_messages
from evert.bridge.conversations.drift import Break, Drift, cause_of
from evert.bridge.conversations.prefix_tree import START, Index, Speaker
from evert.bridge.conversations.reading import Heard, hear
from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens.images import Images
from evert.bridge.tokens.loop_budget import check_text
from evert.bridge.tokens.prompt_limit import ANY_LENGTH, PromptLimit
from evert.bridge.tokens.renderer import PromptRenderer

RECENT = 32
"""Number of recent conversations that a request is compared with before the index is searched, and
number of equal replies that it is compared with there."""


class ConversationBook:
    """All conversations of one episode.

    Args:
        limit: Limit of the prompts' length; a longer prompt is refused.
        keeps_completed: Whether a reply stays as sampled if its tool calls come back completed.

    Attributes:
        drift: How often each cause occurred.
        handoffs: How often an agent continued another agent's history.
        latest_drift: The drift of the latest observation; None if there was none.
        lineages: Number of token sequences begun so far.
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
        self._index: Index[Point] = Index()
        self._latest: dict[str, Conversation] = {}
        self._recent: dict[Conversation, None] = {}  # from old to new

    def observe(
        self, request: ChatRequest, caller: str, renderer: PromptRenderer, most: int | None = None
    ) -> Conversation:
        """The conversation of a call, with its new messages; its ``prompt()`` is the observation.

        Args:
            request: The call.
            caller: Task or thread that made it; of equal conversations, its own is preferred.
            renderer: The renderer to use (``self.renderer``, or its copy for worker threads).
            most: Most characters to read and render here; None for any number.

        Raises:
            openai.BadRequestError: A message or a tool cannot be read or rendered, or the prompt is
                too long (code ``context_length_exceeded``).
            LongTextError: There are more than ``most``; nothing has changed.
        """
        self.latest_drift = None
        try:
            match = self.match(request, caller, renderer, most)
            self._accept(match, request, caller, renderer, most)
        except (RendererMismatchError, RendererError, UnicodeEncodeError) as error:
            raise bad_request(f"The renderer cannot express this request: {error}") from error
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
        most: int | None = None,
    ) -> None:
        """Append messages that the agent does not see (corrections, a hook's reminders).

        Raises:
            LongTextError: More than ``most`` characters are to be rendered; nothing has changed.
        """
        check_text(list(messages), most)
        escaped = [renderer.escape(message) for message in messages]
        self._note(conversation, None, conversation.grow(escaped, renderer, most=most))
        conversation.added += messages

    def forget(self) -> None:
        """Free the conversations, which refer to each other, after the last prompt."""
        for points in self._index.points.values():
            for point in points:
                point.conversation.points = []
        self._index.clear()
        self._latest.clear()
        self._recent.clear()

    # -- what a request continues ----------------------------------------------------------------

    def match(
        self, request: ChatRequest, caller: str, renderer: PromptRenderer, most: int | None
    ) -> "Match":
        """Find what a request continues, without any change. Raises as ``observe``."""
        sent, own = request.messages, self._latest.get(caller)
        for conversation in chain([own] if own is not None else (), reversed(self._recent)):
            if _offers(request, conversation) and conversation.is_continued_by(sent):
                heard = _heard(request, len(conversation.sent), conversation.tool_names, most)
                if (match := self._next_turn(conversation, heard)) is not None:
                    return match
        heard = _heard(request, 0, {}, most)
        return self._from_a_reply(request, heard, caller, renderer, most)

    def _next_turn(self, conversation: Conversation, heard: Sequence[Heard]) -> "Match | None":
        """Match a conversation's plain next turn: its latest reply, and the messages after it.

        None if another assistant message follows, since it may be another agent's.
        """
        (said, *new), reply, cause = heard, conversation.points[-1].reply, None
        if any(one.is_assistants for one in new):
            return None
        if not reply.is_sent_back_as(*said):
            if not self._keeps_completed or not is_completed(said, reply):
                return None
            cause = Drift.COMPLETED_ARGUMENTS
        rendered = [one.message for one in new]
        return Match(
            conversation, conversation.speaker, len(conversation.sent), new, rendered, cause
        )

    def _from_a_reply(
        self,
        request: ChatRequest,
        heard: Sequence[Heard],
        caller: str,
        renderer: PromptRenderer,
        most: int | None,
    ) -> "Match":
        """Match the last reply on the request's path through the index, or a new conversation."""
        heard, places, completed = follow_echoes(
            self._index, heard, renderer, keeps_completed=self._keeps_completed
        )
        last, point = self._last_replies(request, heard, caller, places)
        start = 0 if point is None else point.sent + 1
        speaker = Speaker.of(heard, request.tools)
        left_out = self._asked_instead(places, heard, speaker)
        rendered, others = self._as_given(heard, places, start, last)
        before = last.conversation.speaker if last is not None and last.sent >= start else None
        goes_on = point is not None and point.is_open
        cause = cause_of(speaker, others, left_out, before, goes_on=goes_on)
        if completed == len(places) or (goes_on and completed == start - 1):
            cause = Drift.COMPLETED_ARGUMENTS
        if point is None:
            conversation = Conversation(self._index, caller, speaker)
        elif point.is_open:
            conversation = point.conversation
        else:
            conversation = Conversation.after(point, caller, renderer, most)
            conversation.place = places[point.sent]
        meets_others = bool(others) or before is not None
        is_handed = point is None and cause is None and meets_others
        return Match(conversation, speaker, 0, heard[start:], rendered, cause, is_handed)

    def _asked_instead(
        self, places: Sequence[int], heard: Sequence[Heard], speaker: Speaker
    ) -> set[Speaker]:
        """Agents that got a reply where a request leaves the known messages, if it does.

        None of them if another agent's reply stands there.
        """
        if len(places) == len(heard):
            return set()
        instead = heard[len(places)]
        authors = self._index.replies.get(instead.key) if instead.is_assistants else None
        if authors and all(map(speaker.is_another, authors)):
            return set()  # the request reads another agent's conversation
        return self._index.asked.get(places[-1] if places else START, set())

    def _last_replies(
        self, request: ChatRequest, heard: Sequence[Heard], caller: str, places: Sequence[int]
    ) -> tuple[Point | None, Point | None]:
        """The last known reply on a request's path, and the last one with the same tools.

        Of equal replies: one that ends its conversation, then one of the caller's, then the newest.
        """
        last: Point | None = None
        for place in reversed(places):
            latest = self._index.points.get(place, ())[-RECENT:]  # there may be thousands
            here = [point for point in latest if point.is_within(heard)]
            here.sort(key=lambda point: (point.is_open, point.conversation.caller == caller))
            for point in reversed(here):
                last = last or point
                if _offers(request, point.conversation):
                    return last, point
        return last, None

    def _as_given(
        self, heard: Sequence[Heard], places: Sequence[int], start: int, last: Point | None
    ) -> tuple[list[Message], set[Speaker]]:
        """The messages from ``start`` on, with the policy's replies as it gave them.

        Also the agents that got those replies which are not on the path to ``last``.
        """
        path = {point.sent: point for point in last.path} if last is not None else {}
        rendered, others = [one.message for one in heard[start:]], set[Speaker]()
        for index, one in enumerate(heard[start:], start):
            is_words = index < len(places) and places[index] in self._index.words
            if not one.is_assistants or is_words:
                continue
            point = path.get(index)
            if point is None and one.key in self._index.replies:
                others |= self._index.replies[one.key]
                point = self._index.given(one, heard[index - 1].key if index else None)
            if point is not None and point.reply.is_sent_back_as(*one):
                rendered[index - start] = point.message
        return rendered, others

    # -- growing ---------------------------------------------------------------------------------

    def _accept(
        self,
        match: "Match",
        request: ChatRequest,
        caller: str,
        renderer: PromptRenderer,
        most: int | None,
    ) -> None:
        """Extend a conversation by a request. A refused request changes nothing."""
        conversation = match.conversation
        where = "" if match.cause is None else self._where(match, request, caller)
        escaped = (renderer.escape(message) for message in match.rendered)
        messages = [self._images.shown(message, most) for message in escaped]
        if not conversation.messages:
            conversation.tools = _kept_tools(request.tools)
            if request.tools:
                _offer_tools(request.tools, messages, renderer)
        wanted, added = request.format, list[Message]()
        if wanted is not None and wanted.is_asked_for and wanted != conversation.format:
            check_text(wanted.schema, most)
            added.append(wanted.request())
            messages.append(renderer.escape(added[0]))
        kept = keep(request.messages[match.kept :])
        conversation.prefill = request.prefill
        drift = conversation.grow(messages, renderer, self._limit, most)
        conversation.remember(match.kept, kept)
        for one in match.new:
            if calls := one.message.get("tool_calls"):
                conversation.note_calls(calls)
        conversation.place = self._index.enter(conversation.place, match.new)
        conversation.before = match.new[-1].key if match.new else None
        conversation.format, conversation.added = wanted, added
        conversation.reply = None
        self.handoffs += match.is_handed
        self._note(conversation, match.cause, drift, where)

    def _note(
        self, conversation: Conversation, cause: Drift | None, drift: Drift | None, where: str = ""
    ) -> None:
        begins = conversation.lineage < 0
        if begins and drift is Drift.RETOKENISED:
            drift = None  # counted when the reply was first continued
        if begins or drift is Drift.TEMPLATE:
            conversation.lineage = self.lineages
            conversation.first = conversation.length
            self.lineages += 1
        completed = cause is Drift.COMPLETED_ARGUMENTS and drift is Drift.TEMPLATE
        if drift is not None and (cause is None or completed):
            cause, last = drift, conversation.points[-1:]
            where = "".join(f"messages[{one.sent}].content of the assistant" for one in last)
        if cause is not None:
            self.drift[cause] += 1
            self.latest_drift = Break(cause, where)

    def _where(self, match: "Match", request: ChatRequest, caller: str) -> str:
        """Which field differs from what the agent sent before; "" if unknown."""
        speaker = match.speaker
        try:
            known = [self._latest.get(caller), *reversed(self._recent)]
            own = [one for one in known if one and not speaker.is_another(one.speaker)]
            own.sort(key=lambda one: one.speaker.opening != speaker.opening)
            reply = own[0].reply
            then = [*own[0].sent, *([] if reply is None else [reply.as_message()])]
            tools = in_field("tools", own[0].tools, request.tools)
            now = request.messages[: len(then)]
            sides = ([as_fields(one, 0) for one in side] for side in (then, now))
            return tools if match.cause is Drift.TOOLS else in_messages(*sides) or tools
        except Exception:  # an agent's objects may raise anything; it may have sent nothing before
            return ""


class Match(NamedTuple):
    """The conversation that a request continues, and how."""

    conversation: Conversation  # the one to extend; not changed yet
    speaker: Speaker
    kept: int  # number of the request's messages that the conversation holds as they were sent
    new: Sequence[Heard]
    rendered: list[Message]  # the new messages, with the policy's replies as it gave them
    cause: Drift | None  # None: no drift
    is_handed: bool = False  # whether an agent starts with another agent's history


def _heard(
    request: ChatRequest, start: int, tool_names: Mapping[str, str], most: int | None
) -> list[Heard]:
    check_text([*request.messages[start:], None if start else request.tools], most)
    return hear(request.messages, start, tool_names)


def _offers(request: ChatRequest, conversation: Conversation) -> bool:
    try:
        return bool(request.tools == conversation.tools)
    except Exception:  # an agent's objects may raise when compared (arrays)
        return False


def _kept_tools(tools: list[Any] | None) -> list[Any] | None:
    try:
        return copy.deepcopy(tools)
    except Exception as error:
        refuse("tools", error)


def _offer_tools(tools: list[Any], messages: list[Message], renderer: PromptRenderer) -> None:
    system = ""
    if messages[0]["role"] == "system" and isinstance(messages[0]["content"], str):
        system = messages[0]["content"]
        del messages[0]
    messages[:0] = renderer.tool_prefix(read_tools(tools), system)


def count_tokens(request: ChatRequest, renderer: PromptRenderer) -> int:
    """Number of tokens of a request's prompt.

    Raises:
        openai.BadRequestError: The request cannot be read or rendered.
    """
    return ConversationBook(renderer).observe(request, "", renderer).length
