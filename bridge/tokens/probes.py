"""Made-up conversations that show a chat template's format, in words that no template has."""

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
"""Role of the message that carries tools to a template; its content is the system prompt."""

SYSTEM = Message(role="system", content="Qzsystem")
USER = Message(role="user", content="Qzuser")
SAID = Message(role="assistant", content="Qzreply")
TOOL = ToolSpec(
    name="qzname",
    description="Qztool.",
    parameters={"type": "object", "properties": {"qzkey": {"type": "string"}}},
)


PROBE_IDS, PROBE_IDS_WITH_NAMES = "qzcall{number:03}", "functions.{name}:{number}"
"""Ids of made-up calls. Every template takes the first form, nine letters and digits, but for those
that show a call's name only in its id."""


def made_up(call_id: str, name: str, arguments: dict[str, Any]) -> ToolCall:
    """A tool call."""
    body = ToolCall.FunctionBody(name=name, arguments=json.dumps(arguments))
    return ToolCall(id=call_id, function=body)


def thinking(thought: str, text: str) -> list[ContentPart]:
    """A reply's content, made of a thought and a text."""
    return [ThinkingPart(type="thinking", thinking=thought), *parts(text)]


def parts(text: str) -> list[ContentPart]:
    """A text as a list of parts, which is empty for an empty text."""
    return [TextPart(type="text", text=text)] if text else []


THOUGHTFUL = Message(role="assistant", content=thinking("Qzthought", "Qzreply"))
CALLS = Message(role="assistant", content="", tool_calls=[made_up("qzcall000", *FIRST[:2])])
RESULT = Message(role="tool", content="Qzresult", tool_call_id="qzcall000", name="qzname")


def shapes(*, thinks: bool, calls: bool) -> list[list[Message]]:
    """Conversations of each kind that an agent may have."""
    user = [Message(role="user", content=f"Qzuser {n}, please?") for n in range(3)]
    said = [Message(role="assistant", content=f"Qzreply {n}.") for n in range(3)]
    plain = [user[0], said[0], user[1], said[1], user[2]]
    openings: list[list[Message]] = [[], [Message(role="system", content="Qzsystem one.")]]
    shapes = [[*opening, *plain[:end]] for opening in openings for end in (1, 3, 5)]
    shapes += [[user[0], user[1]], [user[0], said[0]]]
    if thinks:
        thoughtful = Message(role="assistant", content=thinking("Qzthought.", "Qzreply."))
        shapes += [[user[0], thoughtful, *plain[2:end]] for end in (3, 5)]
    for system in ("", "Qzsystem two.") if calls else ():
        opening = carrier([TOOL], system)
        made = [made_up(PROBE_IDS.format(number=n), *FIRST[:2]) for n in range(2)]
        one = Message(role="assistant", content="Qzsay.", tool_calls=made[:1])
        two = Message(role="assistant", content="", tool_calls=made)
        results = [
            Message(role="tool", content=f"Qz {call.id}", tool_call_id=str(call.id), name="qzname")
            for call in made
        ]
        shapes += [[opening, *plain], [opening, user[0], one, results[0]]]
        shapes += [[opening, user[0], one, results[0], said[0], user[1], two, *results]]
        shapes += [[opening, user[0], two, *results, said[1], user[2]]]
    return shapes


def stand_in(ctx: RenderContext) -> tuple[str, list[Message]]:
    """The kind of a short conversation, and the conversation, in place of all messages before one.

    A kind of "" means that nothing is replaced: there is at most one message before.
    """
    last = ctx.prev_message
    if last is None or ctx.idx == 1:
        return "", [] if last is None else [last]
    role = last["role"]
    if role == "assistant":
        called = bool(last.get("tool_calls"))
        return f"{role} {called}", [USER, CALLS if called else SAID]
    if role == "tool":
        return role, [USER, CALLS, RESULT]
    return role, [USER, SAID, Message(role=role, content="Qz")]


def carrier(tools: list[ToolSpec], system_prompt: str) -> Message:
    """The message that carries tools to a template."""
    return Message(role=TOOLS, content=system_prompt, tools=tools)  # type: ignore[typeddict-unknown-key]


def is_tool(message: Message | None) -> bool:
    """Whether a message is a tool's result."""
    return message is not None and message["role"] == "tool"


def common(text: str, other: str) -> str:
    """The longest common prefix."""
    pairs = enumerate(zip(text, other, strict=False))
    return text[: next((at for at, (one, two) in pairs if one != two), min(len(text), len(other)))]
