"""Chat Completions messages and tools, and replies in the default renderer's format."""

import json
from typing import Any

from evert.bridge.tokens.renderer import prompt_renderer


def system(text: str) -> dict[str, Any]:
    return {"role": "system", "content": text}


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def tool(name: str, **fields: Any) -> dict[str, Any]:
    """Return a tool that accepts any object. ``fields`` are added to its function."""
    function = {"name": name, "parameters": {"type": "object"}, **fields}
    return {"type": "function", "function": function}


def calling(name: str, **arguments: Any) -> str:
    """Return the text of a tool call in the default renderer's format."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def tokens_of(text: str) -> list[int]:
    """Return the tokens of a complete reply, including the default renderer's end token."""
    renderer = prompt_renderer(None)
    return renderer.encode(text) + renderer.end_tokens[:1]
