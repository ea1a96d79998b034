"""``PrefixTree``: an index of all conversation prefixes in an episode.

A *place* is an integer that identifies a sequence of messages, like a node in a trie. The tree is
stored in a single dict that maps (place, key of the next message) to the place after that message.
Following a request takes one lookup per message, no matter how many conversations there are.

A *speaker* is an agent, identified by its system prompt and its tools. Speakers let us distinguish
a rewritten history from a history that contains another agent's reply.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, Generic, NamedTuple, TypeVar

from tinker_cookbook.renderers.base import Message

from evert.bridge.chat.message_equality import Key, call_names, key_without_ids, message_key
from evert.bridge.chat.reply import Reply
from evert.bridge.conversations.reading import Entry

P = TypeVar("P")
"""The type of the stored replies."""

START = 0
"""The root: the place before the first message."""


class Speaker(NamedTuple):
    """An agent, identified by the content of its requests."""

    prompt: tuple[Key, ...]  # keys of the leading system messages
    tools: frozenset[str]  # tool names
    opening: Key  # key of the first non-system message; distinguishes an agent's conversations

    @classmethod
    def of(cls, entries: Sequence[Entry], tools: Iterable[Any] | None) -> "Speaker":
        """Return the agent that made a request."""
        prompt = list(takewhile(lambda entry: entry.message["role"] == "system", entries))
        opening = tuple(entry.key for entry in entries[len(prompt) : len(prompt) + 1])
        return cls(tuple(entry.key for entry in prompt), frozenset(_names(tools or ())), opening)

    def differs_from(self, speaker: "Speaker") -> bool:
        """Return whether two requests come from different agents.

        Agents are different if their system prompts differ, or if each has a tool that the other
        one lacks. An agent that only gains or only loses tools is still the same agent.
        """
        both_gained = self.tools - speaker.tools and speaker.tools - self.tools
        return self.prompt != speaker.prompt or bool(both_gained)


def _names(tools: Iterable[Any]) -> Iterator[str]:
    for tool in tools:
        function = tool.get("function") if isinstance(tool, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if isinstance(name, str):
            yield str.__str__(name)  # as in messages.py


class PrefixTree(Generic[P]):
    """All known conversation prefixes (see the module docstring).

    Attributes:
        points: Maps a place to the replies that end there, oldest first.
        speakers_at: Maps a place to the agents that received a reply there.
        replies: Maps a reply's key to the agents that received it.
        agent_texts: Places after an assistant message that was written by the agent itself.
    """

    def __init__(self) -> None:
        self.points: defaultdict[int, list[P]] = defaultdict(list)
        self.speakers_at: defaultdict[int, set[Speaker]] = defaultdict(set)
        self.replies: defaultdict[Key, set[Speaker]] = defaultdict(set)
        self.agent_texts: set[int] = set()
        self._next: dict[tuple[int, Key], int] = {}
        self._by_key: dict[tuple[Key, Key], P] = {}
        self._by_calls: defaultdict[tuple[int, Key], list[P]] = defaultdict(list)
        self._by_content: dict[tuple[int, Key], P] = {}

    def clear(self) -> None:
        """Remove all stored replies."""
        self.points.clear()
        self._by_key.clear()
        self._by_calls.clear()
        self._by_content.clear()

    def follow(self, entries: Iterable[Entry], start: int = START) -> list[int]:
        """Return the place after each message, up to the first unknown message."""
        places: list[int] = []
        for entry in entries:
            place = self._place_after(places[-1] if places else start, entry)
            if place is None:
                break
            places.append(place)
        return places

    def with_same_calls(self, place: int, message: Message) -> Iterable[P]:
        """Return the replies at ``place`` with the same call ids and functions, newest first."""
        return reversed(self._by_calls.get((place, call_names(message.get("tool_calls", ()))), ()))

    def with_same_content(self, place: int, entry: Entry) -> P | None:
        """Return the latest reply at ``place`` that matches a message except for its call ids."""
        key = entry.key if entry.message.get("tool_calls") else None
        is_reply = isinstance(key, tuple) and key[0] == "reply"
        return self._by_content.get((place, key_without_ids(key))) if is_reply else None

    def enter(self, place: int, entries: Iterable[Entry]) -> int:
        """Add messages to the tree, starting at ``place``, and return the place after them."""
        for entry in entries:
            next_place = self._place_after(place, entry) if entry.is_assistants else None
            if next_place is None:
                key = message_key(entry.message) if entry.is_assistants else entry.key
                next_place = self._next.setdefault((place, key), len(self._next) + 1)
                if entry.is_assistants and entry.key not in self.replies:
                    self.agent_texts.add(next_place)
            place = next_place
        return place

    def _place_after(self, place: int, entry: Entry) -> int | None:
        next_place = self._next.get((place, entry.key))
        if next_place is None and entry.is_assistants:
            return self._next.get((place, message_key(entry.message)))
        return next_place

    def add(self, point: P, reply: Reply, speaker: Speaker, place: int, before: Key | None) -> int:
        """Add a reply at ``place``. ``before`` is the key of the message before it.

        Returns:
            The place after the reply.
        """
        key = reply.key
        after = self._next.setdefault((place, key), len(self._next) + 1)
        self.points[after].append(point)
        self.speakers_at[place].add(speaker)
        self.replies[key].add(speaker)
        if reply.tool_calls:
            self._by_calls[place, call_names(reply.tool_calls)].append(point)
            self._by_content[place, key_without_ids(key)] = point
        self._by_key[None if reply.tool_calls else before, key] = point
        return after

    def latest_equal(self, entry: Entry, before: Key | None) -> P | None:
        """Return the latest reply that matches an agent's message, if any.

        Replies without tool calls can be identical by chance, so the messages before them must
        match as well.
        """
        return self._by_key.get((None if entry.message.get("tool_calls") else before, entry.key))
