"""``Person``: a model whose replies are typed by a person at the terminal.

Each line is a reply, unless it ends with a backslash, in which case it continues on the next line.
To call one of the request's tools, type ``name key=value``, quoting values as in a shell. Ctrl-D
ends the episode.
"""

import asyncio
import json
import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.chat.reply import Reply, read_reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.errors import EvertError
from evert.bridge.models.remote import check_no_prefill, new_call_ids


class EndOfInputError(EvertError, EOFError):
    """The person who types the replies closed the input."""


@dataclass
class Person:
    """A person at the terminal who answers one request at a time."""

    _input: bytes = field(default=b"", init=False, repr=False)

    async def __call__(self, request: ChatRequest) -> Reply:
        """Return the typed reply.

        Raises:
            EndOfInputError: The input was closed.
        """
        check_no_prefill(request, "a person")
        lines = [await self._line("you> ")]
        while lines[-1].endswith("\\"):
            lines[-1:] = [lines[-1][:-1], await self._line("...> ")]
        message = typed_message(lines, request.tools or ())
        ids = new_call_ids()
        return read_reply(
            message, truncated=False, call_ids=ids, prompt_tokens=0, completion_tokens=0
        )

    async def _line(self, prompt: str) -> str:
        print(prompt, end="", flush=True)
        while b"\n" not in self._input:
            more = await _read()
            if not more and not self._input:
                raise EndOfInputError("The input was closed, which ends the episode.")
            self._input += more or b"\n"
        line, _, self._input = self._input.partition(b"\n")
        return line.decode("utf-8", "replace")


async def _read() -> bytes:
    """Read from stdin; return b"" at its end. We use no thread, because it would outlive Ctrl-C."""
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()
    ready = asyncio.Event()
    try:
        loop.add_reader(file, ready.set)
    except PermissionError:  # a regular file, which is always ready
        return os.read(file, 2**16)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(file)
    return os.read(file, 2**16)


def typed_message(lines: Sequence[str], tools: Sequence[Any]) -> Message:
    """Convert typed lines to a message. Lines that are not tool calls become the text."""
    offered = {tool["function"]["name"]: tool["function"] for tool in tools}
    calls = [_call(line, offered) for line in lines]
    text = [line for line, call in zip(lines, calls, strict=True) if call is None]
    message = Message(role="assistant", content="\n".join(text))
    if tool_calls := [call for call in calls if call is not None]:
        message["tool_calls"] = tool_calls
    return message


def _call(line: str, offered: dict[str, Any]) -> ToolCall | None:
    """Parse a line as a tool call. Return None if it is text."""
    try:
        words = shlex.split(line)
    except ValueError:  # for example, the text contains an apostrophe
        return None
    if not words or words[0] not in offered or not all("=" in word for word in words[1:]):
        return None
    schemas = (offered[words[0]].get("parameters") or {}).get("properties") or {}
    pairs = [word.split("=", 1) for word in words[1:]]
    arguments = {key: _value(text, schemas.get(key)) for key, text in pairs}
    body = ToolCall.FunctionBody(name=words[0], arguments=json.dumps(arguments))
    return ToolCall(function=body)


def _value(text: str, schema: Any) -> Any:
    """Parse a value as JSON. If it isn't JSON or should be a string, return the text itself."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
