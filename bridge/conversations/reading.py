"""Reads the messages of a request and computes their keys."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tinker_cookbook.renderers.base import Message

from evert.bridge.chat.message_equality import Key, key_as_reply, message_key
from evert.bridge.chat.messages import read_message


class Entry(NamedTuple):
    """A message in a request.

    Attributes:
        message: The message in the Cookbook's format.
        key: Its ``message_key``, or ``key_as_reply`` for an assistant message.
    """

    message: Message
    key: Key

    @classmethod
    def of(cls, message: Message) -> "Entry":
        """Create an entry, computing the key of ``message``."""
        is_reply = message["role"] == "assistant"
        return cls(message, key_as_reply(message) if is_reply else message_key(message))

    @property
    def is_assistants(self) -> bool:
        """Whether this is an assistant message (sampled, or written by the agent itself)."""
        return self.message["role"] == "assistant"


def read_entries(messages: Sequence[Any], start: int, tool_names: Mapping[str, str]) -> list[Entry]:
    """Read the messages of a request, starting at index ``start``.

    Raises:
        openai.BadRequestError: A message cannot be read.
    """
    entries: list[Entry] = []
    for index in range(start, len(messages)):
        message = read_message(messages[index], index, tool_names)
        if calls := message.get("tool_calls"):
            tool_names = {**tool_names, **{call.id or "": call.function.name for call in calls}}
        entries.append(Entry.of(message))
    return entries
