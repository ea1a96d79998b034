"""Made-up conversations that reveal a chat template's format. No template contains their words."""

import json
from typing import Any

from tinker_cookbook.renderers.base import (
    ContentPart,
    Message,
    RenderContext,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolSpec,
)

from evert.bridge.tokens.call_learning import FIRST

TOOLS = "tools"
"""Role of the message that passes tools to a template. Its content is the system prompt."""

SYSTEM = Message(role="system", content="Qzsystem")
USER = Message(role="user", content="Qzuser")
REPLY = Message(role="assistant", content="Qzreply")
TOOL = ToolSpec(
    name="qzname",
    description="Qztool.",
    parameters={"type": "object", "properties": {"qzkey": {"type": "string"}}},
)


PROBE_IDS, PROBE_IDS_WITH_NAMES = "qzcall{number:03}", "functions.{name}:{number}"
"""Ids of made-up calls. The first format (nine letters and digits) works with every template except
those that show the name of a call only in its id."""


def probe_call(call_id: str, name: str, arguments: dict[str, Any]) -> ToolCall:
    """Build a tool call."""
    body = ToolCall.FunctionBody(name=name, arguments=json.dumps(arguments))
    return ToolCall(id=call_id, function=body)


def thinking(thought: str, text: str) -> list[ContentPart]:
    """Build the content of a reply from a thought and text."""
    return [ThinkingPart(type="thinking", thinking=thought), *parts(text)]


def parts(text: str) -> list[ContentPart]:
    """Wrap a text in a list of content parts, which is empty if the text is empty."""
    return [TextPart(type="text", text=text)] if text else []


THOUGHT = Message(role="assistant", content=thinking("Qzthought", "Qzreply"))
CALLS = Message(role="assistant", content="", tool_calls=[probe_call("qzcall000", *FIRST[:2])])
RESULT = Message(role="tool", content="Qzresult", tool_call_id="qzcall000", name="qzname")


def shapes(*, thinks: bool, calls: bool) -> list[list[Message]]:
    """Return an example of every type of conversation that an agent may have."""
    user = [Message(role="user", content=f"Qzuser {n}, please?") for n in range(3)]
    replies = [Message(role="assistant", content=f"Qzreply {n}.") for n in range(3)]
    plain = [user[0], replies[0], user[1], replies[1], user[2]]
    openings: list[list[Message]] = [[], [Message(role="system", content="Qzsystem one.")]]
    shapes = [[*opening, *plain[:end]] for opening in openings for end in (1, 3, 5)]
    shapes += [[user[0], user[1]], [user[0], replies[0]]]
    if thinks:
        thoughtful = Message(role="assistant", content=thinking("Qzthought.", "Qzreply."))
        shapes += [[user[0], thoughtful, *plain[2:end]] for end in (3, 5)]
    for system in ("", "Qzsystem two.") if calls else ():
        opening = carrier([TOOL], system)
        probe_calls = [probe_call(PROBE_IDS.format(number=n), *FIRST[:2]) for n in range(2)]
        single = Message(role="assistant", content="Qzsay.", tool_calls=probe_calls[:1])
        double = Message(role="assistant", content="", tool_calls=probe_calls)
        results = [
            Message(role="tool", content=f"Qz {call.id}", tool_call_id=str(call.id), name="qzname")
            for call in probe_calls
        ]
        shapes += [[opening, *plain], [opening, user[0], single, results[0]]]
        shapes += [[opening, user[0], single, results[0], replies[0], user[1], double, *results]]
        shapes += [[opening, user[0], double, *results, replies[1], user[2]]]
    return shapes


def stand_in(ctx: RenderContext) -> tuple[str, list[Message]]:
    """Return a short conversation to render in place of the preceding messages, and a cache key.

    If there is at most one preceding message, it is used unchanged and the key is "".
    """
    last = ctx.prev_message
    if last is None or ctx.idx == 1:
        return "", [] if last is None else [last]
    role = last["role"]
    if role == "assistant":
        has_calls = bool(last.get("tool_calls"))
        return f"{role} {has_calls}", [USER, CALLS if has_calls else REPLY]
    if role == "tool":
        return role, [USER, CALLS, RESULT]
    return role, [USER, REPLY, Message(role=role, content="Qz")]


def carrier(tools: list[ToolSpec], system_prompt: str) -> Message:
    """Build the message that passes tools to a template."""
    return Message(role=TOOLS, content=system_prompt, tools=tools)  # type: ignore[typeddict-unknown-key]


def is_tool(message: Message | None) -> bool:
    """Return whether a message is a tool result."""
    return message is not None and message["role"] == "tool"


def common_prefix(first: str, second: str) -> str:
    """Return the longest common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return first[: next((at for at, (a, b) in pairs if a != b), min(len(first), len(second)))]
