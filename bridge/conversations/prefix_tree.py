"""``Index``: which beginnings of conversations an episode knows, found by content.

A *place* is a number that stands for all messages up to a point. One dict, from a place and the key
of the next message to the place after it, holds them all as a tree: to follow a request costs one
look-up a message, with two conversations as with two thousand.

A *speaker* is who asks: an agent is known by its system prompt and its tools, so that one agent's
reply in another's history can be told from a history that was rewritten.
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
"""What a reply is kept as."""

START = 0
"""The place before every message."""


class Speaker(NamedTuple):
    """An agent, as far as its requests tell."""

    prompt: tuple[Key, ...]  # the system messages with which it begins
    tools: frozenset[str]  # names
    opening: Key  # of the message after them, which tells its conversations apart

    @classmethod
    def of(cls, heard: Sequence[Heard], tools: Iterable[Any] | None) -> "Speaker":
        """Who makes a request."""
        prompt = list(takewhile(lambda one: one.message["role"] == "system", heard))
        opening = tuple(one.key for one in heard[len(prompt) : len(prompt) + 1])
        return cls(tuple(one.key for one in prompt), frozenset(_names(tools or ())), opening)

    def is_another(self, other: "Speaker") -> bool:
        """Whether this is another agent: another system prompt, or each has tools of its own.

        An agent whose tools become fewer or more is still the same.
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
    """The beginnings that are known (see the module's docstring).

    Attributes:
        points: The replies that end at a place, from old to new.
        asked: Place where replies were given -> to whom.
        replies: Key of each reply -> to whom it was given.
        words: Places after an assistant's message that was of the agent's own making.
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
        """The places after each of the messages, as far as they are known from ``start`` on."""
        places: list[int] = []
        for one in heard:
            place = self._after(places[-1] if places else start, one)
            if place is None:
                break
            places.append(place)
        return places

    def called(self, place: int, message: Message) -> Iterable[P]:
        """The replies given at ``place`` with the same calls, arguments aside; the newest first."""
        return reversed(self._called.get((place, call_names(message.get("tool_calls", ()))), ()))

    def alike(self, place: int, heard: Heard) -> P | None:
        """The latest reply given at ``place`` that a message is but for the ids of its calls."""
        key = heard.key if heard.message.get("tool_calls") else None
        is_reply = isinstance(key, tuple) and key[0] == "reply"
        return self._alike.get((place, key_without_ids(key))) if is_reply else None

    def enter(self, place: int, heard: Iterable[Heard]) -> int:
        """Make the messages that follow on a place known; the place after them."""
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
        """Make a reply known that was given at ``place`` to the message ``before`` it.

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
        """The latest reply that an agent's message is.

        A text alone may be like another by chance: it has to follow on the same message.
        """
        return self._given.get((None if heard.message.get("tool_calls") else before, heard.key))
