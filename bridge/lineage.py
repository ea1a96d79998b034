"""Which conversation a call continues, and what it means when it continues none.

A *lineage* is one token sequence that only grows: it becomes one datum.
``ConversationBook.observe`` finds the conversation that an agent's request begins with and lets it
grow by the new messages. Where there is none, a new one starts from a whole rendering. If the
request was plainly meant to continue a known conversation, that is *drift*, counted by cause:

    template     same messages, but the renderer shows their history otherwise (thinking stripped)
    retokenised  same message, other token ids; the sampled ids are kept and no lineage starts
    tools        same messages, other tools
    edited       a message of the history was changed
    compacted    messages of the history were dropped or summarised

A request that goes back to an earlier point of a known conversation, to sample again or to explore,
is a *branch*: a new lineage that shares the sampled tokens up to there, and no drift.
"""

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import Message, get_text_content

from evert.bridge.conversation import Conversation, Fit, Turn
from evert.bridge.errors import RendererMismatchError
from evert.bridge.messages import as_fields, read_message, read_tools
from evert.bridge.rendering import PromptRenderer
from evert.bridge.requests import ChatRequest, bad_request, context_length_exceeded


class Drift(StrEnum):
    """Why a conversation could not go on token for token (see the module's docstring)."""

    TEMPLATE = "template"
    RETOKENISED = "retokenised"
    TOOLS = "tools"
    EDITED = "edited"
    COMPACTED = "compacted"


class ConversationBook:
    """All conversations of one episode.

    Args:
        renderer: The renderer of the policy.
        max_length: Most tokens of a prompt; a longer one is refused. None for no limit.

    Attributes:
        drift: How often each cause occurred.
        latest_drift: The cause that the latest observation met; None when it went on as it was.
        lineages: Number of token sequences begun so far.
    """

    def __init__(self, renderer: PromptRenderer, max_length: int | None = None) -> None:
        self.renderer = renderer
        self._max_length = max_length
        self.drift: Counter[Drift] = Counter()
        self.latest_drift: Drift | None = None
        self.lineages = 0
        self._conversations: list[Conversation] = []
        self._latest: dict[str, Conversation] = {}

    def observe(self, request: ChatRequest, caller: str, renderer: PromptRenderer) -> Conversation:
        """The conversation of a call, grown by its new messages; its ``prompt()`` is to be sampled.

        Args:
            request: The call.
            caller: Task or thread that made it; among equal conversations its own comes first.
            renderer: To render with (``self.renderer``, or its copy for worker threads).

        Raises:
            openai.BadRequestError: A message or a tool cannot be read or rendered, or the prompt is
                too long (code ``context_length_exceeded``).
        """
        self.latest_drift = None
        try:
            conversation = self._known(request, caller)
            if conversation is None:
                conversation = self._begin(request, caller, renderer)
            else:
                self._continue(conversation, request, renderer)
        except (RendererMismatchError, RendererError, UnicodeEncodeError) as error:
            raise bad_request(f"The renderer cannot express this request: {error}") from error
        conversation.caller = caller
        conversation.format = request.format
        self._latest[caller] = conversation
        return conversation

    def inject(
        self, conversation: Conversation, messages: Sequence[Message], renderer: PromptRenderer
    ) -> None:
        """Append messages that the agent does not know of (corrections, a hook's reminders)."""
        self._grow(conversation, [renderer.escape(message) for message in messages], renderer)

    # -- finding ---------------------------------------------------------------------------------

    def _by_nearness(self, caller: str) -> list[Conversation]:
        """All conversations: the caller's latest first, then from new to old."""
        own = self._latest.get(caller)
        others = [other for other in reversed(self._conversations) if other is not own]
        return others if own is None else [own, *others]

    def _known(self, request: ChatRequest, caller: str) -> Conversation | None:
        own = self._latest.get(caller)
        if own is not None and own.tools == request.tools and own.is_continued_by(request.messages):
            return own
        for other in self._by_nearness(caller):
            if other.tools == request.tools and other.is_continued_by(request.messages):
                return other
        return None

    def _origin(
        self, request: ChatRequest, caller: str
    ) -> tuple[Conversation | None, int, Drift | None]:
        """Where a request that matches nothing at once comes from.

        Returns the conversation it shares most with (None: it shares nothing), how many leading
        messages they share, and the drift between them (None: a branch, or a new conversation).
        """
        best: Conversation | None = None
        most = 0
        for conversation in self._by_nearness(caller):
            shared = conversation.shared_with(request.messages)
            if shared > most:
                best, most = conversation, shared
        if best is None:
            kept = [c for c in self._by_nearness(caller) if _keeps_reply(c, 0, request.messages)]
            return None, 0, _shortened(kept[0], request.messages) if kept else None
        if best.tools != request.tools:
            return best, most, Drift.TOOLS if most == best.known else None
        return best, most, _history_drift(best, most, request.messages)

    # -- growing ---------------------------------------------------------------------------------

    def _begin(self, request: ChatRequest, caller: str, renderer: PromptRenderer) -> Conversation:
        origin, shared, cause = self._origin(request, caller)
        if origin is not None and cause is None and _is_complete(origin, shared):
            self._continue(origin, request, renderer)  # the same messages, in another form
            return origin
        tools = copy.deepcopy(request.tools)
        conversation = Conversation(self.lineages, caller, tools)
        turn = _last_turn_within(origin, shared)
        if origin is not None and turn is not None and origin.tools == request.tools:
            _share(origin, turn, conversation, request.messages)
        start = len(conversation.sent)
        new = self._read(conversation, request, start, renderer)
        if start and renderer.renders_tails:
            self._grow(conversation, new, renderer)
        else:
            conversation.add(new)
            conversation.restart(self.lineages, renderer)
        self._check_length(conversation)
        conversation.remember(request.messages[start:])
        self.lineages += 1
        self._conversations.append(conversation)
        if cause is not None:
            self._count(cause)
        return conversation

    def _continue(
        self, conversation: Conversation, request: ChatRequest, renderer: PromptRenderer
    ) -> None:
        start = len(conversation.sent)
        with conversation.undone_on_error():  # the agent gets a 400 and may ask otherwise
            new = self._read(conversation, request, start + 1, renderer)
            self._grow(conversation, new, renderer)
            self._check_length(conversation)
            conversation.remember(request.messages[start:])
        conversation.reply = None

    def _grow(
        self, conversation: Conversation, new: list[Message], renderer: PromptRenderer
    ) -> None:
        start = len(conversation.messages)
        conversation.add(new)
        fit = conversation.render(start, renderer)
        if fit is Fit.RETOKENISED:
            self._count(Drift.RETOKENISED)
        elif fit is Fit.CHANGED:
            self._count(Drift.TEMPLATE)
            conversation.restart(self.lineages, renderer)
            self.lineages += 1

    def _count(self, cause: Drift) -> None:
        self.drift[cause] += 1
        self.latest_drift = cause

    def _check_length(self, conversation: Conversation) -> None:
        length = conversation.length
        if self._max_length is not None and length > self._max_length:
            raise context_length_exceeded(length, self._max_length)

    def new_text(self, request: ChatRequest, caller: str) -> int:
        """About how many characters of a request are new (those of the caller's latest are not)."""
        own = self._latest.get(caller)
        new = request.messages[len(own.sent) if own is not None else 0 :]
        contents = [m.get("content") for m in new if isinstance(m, Mapping)]
        return sum(len(content) for content in contents if isinstance(content, str))

    def _read(
        self, conversation: Conversation, request: ChatRequest, start: int, renderer: PromptRenderer
    ) -> list[Message]:
        """The request's messages from ``start`` on as the renderer takes them, tools included."""
        names = conversation.tool_names if start == 0 else dict(conversation.tool_names)
        messages: list[Message] = []
        for index in range(start, len(request.messages)):
            message = read_message(request.messages[index], index, names)
            for call in message.get("tool_calls", ()):
                names[call.id or ""] = call.function.name
            messages.append(renderer.escape(message))
        if start == 0 and request.tools:
            system = ""
            if messages[0]["role"] == "system" and isinstance(messages[0]["content"], str):
                system = messages[0]["content"]
                del messages[0]
            messages[:0] = renderer.tool_prefix(read_tools(request.tools), system)
        if request.format is not None and request.format != conversation.format:
            messages.append(renderer.escape(request.format.request()))
        return messages


def _share(origin: Conversation, turn: Turn, branch: Conversation, messages: Sequence[Any]) -> None:
    """Give ``branch`` all that ``origin`` was right after ``turn``, tokens as sampled."""
    branch.remember(messages[: turn.sent + 1])
    branch.add(origin.messages[: turn.messages])
    branch.tool_names = dict(origin.tool_names)
    branch.log.extend(origin.log.flat()[: turn.tokens])


def _is_complete(origin: Conversation, shared: int) -> bool:
    return origin.reply is not None and shared == origin.known


def _last_turn_within(origin: Conversation | None, shared: int) -> Turn | None:
    turns = [turn for turn in origin.turns if turn.sent < shared] if origin is not None else []
    return turns[-1] if turns else None


# -- drift ---------------------------------------------------------------------------------------


def _history_drift(
    conversation: Conversation, shared: int, messages: Sequence[Any]
) -> Drift | None:
    """What was done to the history after the ``shared`` leading messages; None: nothing."""
    if shared in (len(messages), conversation.known):
        return None  # sampled again from there, or simply continued
    replies = {turn.sent for turn in conversation.turns}
    departs_from_reply = shared in replies
    role = as_fields(messages[shared], shared).get("role")
    if departs_from_reply and role == "assistant":
        return Drift.EDITED
    if _keeps_reply(conversation, shared, messages):
        return _shortened(conversation, messages)
    if shared - 1 in replies:
        return None  # another question after a known reply: a branch
    roles = [as_fields(message, index).get("role") for index, message in enumerate(messages)]
    return _shortened(conversation, messages) if "user" in roles[:shared] else None


def _keeps_reply(conversation: Conversation, shared: int, messages: Sequence[Any]) -> bool:
    """Whether a reply from after the shared beginning turns up in the request."""
    replies = [t.messages - 1 for t in conversation.turns if t.sent >= shared]
    texts = {get_text_content(conversation.messages[reply]) for reply in replies}
    fields = [as_fields(message, index) for index, message in enumerate(messages)][shared:]
    return any(f.get("role") == "assistant" and _text(f.get("content")) in texts for f in fields)


def _text(content: object) -> str | None:
    """The text of a message's content, in whatever form; None for none."""
    if isinstance(content, (list, tuple)):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else None


def _shortened(conversation: Conversation, messages: Sequence[Any]) -> Drift:
    return Drift.COMPACTED if len(messages) < conversation.known else Drift.EDITED
