"""Converts agents' messages to the message format of the Cookbook's renderers.

``read_message`` converts one message (a dict or an SDK object), and ``read_tools`` converts the
tools of a request.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from tinker_cookbook.renderers.base import (
    ContentPart,
    ImagePart,
    Message,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolSpec,
)

from evert.bridge.chat.bad_requests import bad_request, refuse, unexpected

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""Maps the roles that agents may send to the roles that renderers support."""

_plain = str.__str__  # turns str subclasses, which may override comparison, into str


class CookbookMessage(dict[str, Any]):
    """A message that is already in the Cookbook's format and is used as is, with any role."""


def as_fields(message: object, index: int) -> Mapping[str, Any]:
    """Return the fields of a message (a dict or an SDK object)."""
    if isinstance(message, Mapping):
        return message
    dump = getattr(message, "model_dump", None)
    if dump is not None:
        return cast("Mapping[str, Any]", dump(exclude_none=True))
    raise bad_request(
        f"messages[{index}] must be a dict with 'role' and 'content', got "
        f"{type(message).__name__}: {message!r:.200}.",
        param=f"messages[{index}]",
    )


def read_message(message: object, index: int, tool_names: Mapping[str, str]) -> Message:
    """Convert a message to the Cookbook's format.

    ``tool_names`` maps the ids of earlier tool calls to function names, because some renderers
    (GPT-OSS) include the tool's name with its result.
    """
    if type(message) is dict and len(message) == 2:  # fast path: only role and text
        role, content = message.get("role"), message.get("content")
        if type(role) is str and type(content) is str and role in ROLES:
            return {"role": ROLES[role], "content": content}
    if type(message) is CookbookMessage:
        return cast("Message", {**message})
    try:
        return _read_message(as_fields(message, index), index, tool_names)
    except Exception as error:
        refuse(f"messages[{index}]", error)


def _read_message(fields: Mapping[str, Any], index: int, tool_names: Mapping[str, str]) -> Message:
    sent_role = fields.get("role")
    role = ROLES.get(sent_role) if isinstance(sent_role, str) else None
    if role is None:
        raise bad_request(
            f"messages[{index}] has role {sent_role!r}; expected one of {', '.join(ROLES)}.",
            param=f"messages[{index}].role",
        )
    result = Message(
        role=role, content=_read_content(fields, index, may_be_empty=role == "assistant")
    )
    if role == "assistant":
        _read_assistant(fields, f"messages[{index}].tool_calls", result)
    elif role == "tool":
        _read_tool_result(fields, tool_names, result)
    elif fields.get("name"):
        result["name"] = _plain(str(fields["name"]))
    return result


def _read_content(
    fields: Mapping[str, Any], index: int, *, may_be_empty: bool
) -> str | list[ContentPart]:
    content = fields.get("content")
    if isinstance(content, str):
        return _plain(content)
    if content is None and may_be_empty:
        refusal = fields.get("refusal")
        return _plain(refusal) if isinstance(refusal, str) else ""
    if isinstance(content, (list, tuple)):
        parts = [_read_part(part, index, number) for number, part in enumerate(content)]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        # Join text parts, because some renderers accept only one part. The text stays the same.
        return "".join(texts) if parts and len(texts) == len(parts) else parts
    raise bad_request(
        f"messages[{index}].content must be a string or a list of parts, got "
        f"{type(content).__name__}: {content!r:.200}.",
        param=f"messages[{index}].content",
    )


def _read_part(part: object, index: int, number: int) -> ContentPart:
    if isinstance(part, Mapping):
        kind = part.get("type")
        if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            return TextPart(type="text", text=_plain(part["text"]))
        if kind == "refusal" and isinstance(part.get("refusal"), str):
            return TextPart(type="text", text=_plain(part["refusal"]))
        if kind == "thinking" and isinstance(part.get("thinking"), str):
            return ThinkingPart(type="thinking", thinking=_plain(part["thinking"]))
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        if kind == "image_url" and isinstance(url, str):
            return ImagePart(type="image", image=_plain(url))
        if kind == "image" and "image" in part:
            return ImagePart(type="image", image=part["image"])
    place = f"messages[{index}].content[{number}]"
    raise unexpected(place, part, "a part of type 'text' or 'image_url'.")


def _read_assistant(fields: Mapping[str, Any], place: str, result: Message) -> None:
    reasoning = fields.get("reasoning_content") or fields.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        content = result["content"]
        text = [TextPart(type="text", text=content)] if isinstance(content, str) else content
        result["content"] = [ThinkingPart(type="thinking", thinking=_plain(reasoning)), *text]
    calls = fields.get("tool_calls")
    if calls and not isinstance(calls, (list, tuple)):
        raise bad_request(f"{place} must be a list of calls, got {calls!r:.200}.", param=place)
    if calls:
        result["tool_calls"] = [
            _read_tool_call(call, f"{place}[{number}]") for number, call in enumerate(calls)
        ]


def _read_tool_call(call: object, place: str) -> ToolCall:
    fields = call if isinstance(call, Mapping) else getattr(call, "model_dump", dict)()
    function = fields.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    if arguments is None or arguments == "":  # some servers omit empty arguments
        arguments = "{}"
    call_id = fields.get("id")
    if (
        not isinstance(name, str)
        or not isinstance(arguments, str)
        or not isinstance(call_id, str | None)
    ):
        form = "{'id': ..., 'type': 'function', 'function': {'name': str, 'arguments': JSON str}}."
        raise unexpected(place, call, form)
    try:
        json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise bad_request(
            f"{place}.function.arguments is not JSON ({error}): {arguments!r:.200}.", param=place
        ) from None
    called = ToolCall.FunctionBody(name=_plain(name), arguments=_plain(arguments))
    return ToolCall(id=call_id and _plain(call_id), function=called)


def _read_tool_result(
    fields: Mapping[str, Any], tool_names: Mapping[str, str], result: Message
) -> None:
    call_id = fields.get("tool_call_id")
    if call_id:
        result["tool_call_id"] = _plain(str(call_id))
    if name := fields.get("name") or tool_names.get(str(call_id)):
        result["name"] = _plain(str(name))


def read_tools(tools: Sequence[Any]) -> list[ToolSpec]:
    """Convert tools in OpenAI's format to the Cookbook's ``ToolSpec``."""
    try:
        return [_read_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    except Exception as error:
        refuse("tools", error)


def _read_tool(tool: object, place: str) -> ToolSpec:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        form = "{'name': str, 'description': str, 'parameters': JSON schema}"
        raise unexpected(place, tool, f"{{'type': 'function', 'function': {form}}}.")
    where = f"{place}.function.parameters"
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise bad_request(
            f"{where} must be a JSON schema of type 'object', got {parameters!r:.200}.",
            param=where,
        )
    try:
        json.dumps(parameters)
    except (TypeError, ValueError) as error:
        raise bad_request(f"{where} cannot be serialized to JSON: {error}.", param=where) from None
    return ToolSpec(
        name=_plain(function["name"]),
        description=_plain(str(function.get("description") or "")),
        parameters=dict(parameters),
    )
