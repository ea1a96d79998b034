"""``Index``: the known beginnings of an episode's conversations, found by content.

A *place* is a number that stands for all messages up to a point. The places form a tree, kept in
one dict: it maps a place and the key of the next message to the place after that message. To follow
a request takes one look-up per message, however many conversations there are.

A *speaker* is an agent, identified by its system prompt and its tools. So one agent's reply in
another agent's history can be told from a rewritten history.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar

from tinker_cookbook.renderers.base import Message

from evert.bridge.chat.keys import Key, call_names, key_without_ids, message_key
from evert.bridge.chat.reply import Reply
from evert.bridge.conversations.reading import Heard

P = TypeVar("P")
"""The type that a reply is kept as."""

START = 0
"""The place before every message."""


class Speaker(NamedTuple):
    """An agent, identified by its requests."""

    prompt: tuple[Key, ...]  # of the system messages at the beginning
    tools: frozenset[str]  # names
    opening: Key  # of the message after the prompt, to tell an agent's conversations apart

    @classmethod
    def of(cls, heard: Sequence[Heard], tools: Iterable[Any] | None) -> "Speaker":
        """The agent that makes a request."""
        prompt = list(takewhile(lambda one: one.message["role"] == "system", heard))
        opening = tuple(one.key for one in heard[len(prompt) : len(prompt) + 1])
        return cls(tuple(one.key for one in prompt), frozenset(_names(tools or ())), opening)

    def is_another(self, other: "Speaker") -> bool:
        """Whether the agents differ: other system prompts, or each has a tool that the other lacks.

        An agent that only gains or only loses tools is still the same.
        """
        each_has_own = self.tools - other.tools and other.tools - self.tools
        return self.prompt != other.prompt or bool(each_has_own)


def _names(tools: Iterable[Any]) -> Iterator[str]:
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str):
            yield str.__str__(name)  # as in messages.py


class Index(Generic[P]):
    """The known beginnings of conversations (see the module's docstring).

    Attributes:
        points: Place -> the replies that end there, from old to new.
        asked: Place where replies were given -> the agents that got them.
        replies: Key of each reply -> the agents that got it.
        words: Places after an assistant's message that the agent wrote itself.
    """

    def __init__(self) -> None:
        self.points: defaultdict[int, list[P]] = defaultdict(list)
        self.asked: defaultdict[int, set[Speaker]] = defaultdict(set)
        self.replies: defaultdict[Key, set[Speaker]] = defaultdict(set)
        self.words: set[int] = set()
        self._next: dict[tuple[int, Key], int] = {}
        self._given: dict[tuple[Key, Key], P] = {}
        self._called: defaultdict[tuple[int, Key], list[P]] = defaultdict(list)
        self._alike: dict[tuple[int, Key], P] = {}

    def clear(self) -> None:
        """Forget all replies."""
        self.points.clear()
        self._given.clear()
        self._called.clear()
        self._alike.clear()

    def follow(self, heard: Iterable[Heard], start: int = START) -> list[int]:
        """The place after each message, from ``start`` on, as far as the messages are known."""
        places: list[int] = []
        for one in heard:
            place = self._after(places[-1] if places else start, one)
            if place is None:
                break
            places.append(place)
        return places

    def called(self, place: int, message: Message) -> Iterable[P]:
        """The replies at ``place`` with a message's tool calls, arguments aside; newest first."""
        return reversed(self._called.get((place, call_names(message.get("tool_calls", ()))), ()))

    def alike(self, place: int, heard: Heard) -> P | None:
        """The latest reply at ``place`` that equals a message but for the calls' ids, or None."""
        key = heard.key if heard.message.get("tool_calls") else None
        is_reply = isinstance(key, tuple) and key[0] == "reply"
        return self._alike.get((place, key_without_ids(key))) if is_reply else None

    def enter(self, place: int, heard: Iterable[Heard]) -> int:
        """Add the messages after a place; return the place after them."""
        for one in heard:
            known = self._after(place, one) if one.is_assistants else None
            if known is None:
                key = message_key(one.message) if one.is_assistants else one.key
                known = self._next.setdefault((place, key), len(self._next) + 1)
                if one.is_assistants and one.key not in self.replies:
                    self.words.add(known)
            place = known
        return place

    def _after(self, place: int, heard: Heard) -> int | None:
        known = self._next.get((place, heard.key))
        if known is None and heard.is_assistants:
            return self._next.get((place, message_key(heard.message)))
        return known

    def add(self, point: P, reply: Reply, speaker: Speaker, place: int, before: Key | None) -> int:
        """Add a reply that was given at ``place``; ``before`` is the key of the message before it.

        Returns:
            The place after the reply.
        """
        key = reply.key
        after = self._next.setdefault((place, key), len(self._next) + 1)
        self.points[after].append(point)
        self.asked[place].add(speaker)
        self.replies[key].add(speaker)
        if reply.tool_calls:
            self._called[place, call_names(reply.tool_calls)].append(point)
            self._alike[place, key_without_ids(key)] = point
        self._given[None if reply.tool_calls else before, key] = point
        return after

    def given(self, heard: Heard, before: Key | None) -> P | None:
        """The latest reply that equals an agent's message, or None.

        Replies without tool calls may be equal by chance, so the message before must be equal too.
        """
        return self._given.get((None if heard.message.get("tool_calls") else before, heard.key))
