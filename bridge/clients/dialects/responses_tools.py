"""Tools in OpenAI's Responses API: functions, custom tools (free text), and namespaces.

The policy only sees regular functions. A custom tool becomes a function with one string argument,
and a tool in a namespace is named ``namespace.name``. Calls are converted back to the format of the
original tool.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tinker_cookbook.renderers.base import ToolCall

from evert.bridge.chat.bad_requests import unexpected
from evert.bridge.chat.fields import json_object, warn_once
from evert.bridge.clients.dialects.fields import BUILT_IN_TOOLS
from evert.bridge.clients.dialects.shapes import function_call, function_tool, get, placed

CUSTOM_ARGUMENT = "input"
"""Name of the only argument of a function that represents a custom tool."""

_TOOLS = (
    "{'type': 'function', 'name': ..., 'parameters': ...}, a custom tool, or a namespace of them."
)

_DATED = re.compile(r"_\d{4}_\d{2}_\d{2}$")

_CUSTOM_PARAMETERS = {
    "type": "object",
    "properties": {CUSTOM_ARGUMENT: {"type": "string"}},
    "required": [CUSTOM_ARGUMENT],
}


def read_tools(tools: Sequence[Any]) -> tuple[list[Any], tuple[str, ...]]:
    """Convert tools to the chat completions format. Also return the types of unsupported tools."""
    items = [*_read_tools(tools, "tools", "")]
    left_out = tuple(tool for tool in items if isinstance(tool, str))
    for kind in left_out:
        warn_once(kind, "An agent sent OpenAI's tool %.100r, which the policy cannot use")
    return [tool for tool in items if not isinstance(tool, str)], left_out


def _read_tools(tools: Sequence[Any], place: str, prefix: str) -> Iterator[dict[str, Any] | str]:
    """Yield each tool, or its type if it is not supported."""
    for tool, where in placed(tools, place):
        kind = get(tool, "type")
        if kind == "namespace" and isinstance(tool.get("tools"), list) and not prefix:
            yield from _read_tools(tool["tools"], f"{where}.tools", f"{tool.get('name')}.")
        elif kind in ("function", "custom"):
            schema = _CUSTOM_PARAMETERS if kind == "custom" else tool.get("parameters")
            name = _prefixed(prefix, tool.get("name"))
            yield function_tool(name, tool.get("description"), schema, tool.get("strict"))
        elif not isinstance(kind, str) or _DATED.sub("", kind) not in BUILT_IN_TOOLS:
            raise unexpected(where, tool, _TOOLS)
        else:
            yield kind


def _prefixed(prefix: str, name: object) -> object:
    return f"{prefix}{name}" if prefix and isinstance(name, str) else name


def read_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """Convert an input item to a tool call in the chat completions format."""
    arguments = item.get("arguments")
    if item.get("type") == "custom_tool_call":
        arguments = json.dumps({CUSTOM_ARGUMENT: item.get("input")})
    name, space = item.get("name"), item.get("namespace")
    prefix = f"{space}." if isinstance(space, str) and space != name else ""
    return function_call(item.get("call_id"), _prefixed(prefix, name), arguments)


def write_call(call: ToolCall, tools: object, number: str) -> dict[str, Any]:
    """Convert a call to an output item, in the format of the matching tool in ``tools``."""
    space, tool = _find_tool(call.function.name, tools if isinstance(tools, (list, tuple)) else ())
    name = call.function.name.removeprefix(f"{space}.") if space else call.function.name
    item: dict[str, Any] = {"call_id": call.id, "name": name}
    if space:
        item["namespace"] = space
    if tool.get("type") == "custom":
        arguments = call.function.arguments
        text = (json_object(arguments) or {}).get(CUSTOM_ARGUMENT)
        argument = text if isinstance(text, str) else arguments
        return {"id": f"ctc_{number}", "type": "custom_tool_call", **item, "input": argument}
    return {
        "id": f"fc_{number}",
        "type": "function_call",
        "status": "completed",
        **item,
        "arguments": call.function.arguments,
    }


def _find_tool(name: str, tools: Sequence[Any]) -> tuple[str, Mapping[str, Any]]:
    """Find a tool and its namespace ("" if it has none).

    For tools with ``defer_loading``, the namespace is the tool's own name.
    """
    for tool in tools:
        tool_name = get(tool, "name")
        if get(tool, "type") != "namespace":
            if tool_name == name:
                return (name if tool.get("defer_loading") is True else ""), tool
            continue
        for inner in tool.get("tools") or ():
            if f"{tool_name}.{get(inner, 'name')}" == name:
                return str(tool_name), inner
    return "", {}
