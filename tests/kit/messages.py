"""Messages and tools of the Chat Completions API, and replies of the default renderer's policy."""

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
    """Return a tool that takes any object; ``fields`` go to its function."""
    function = {"name": name, "parameters": {"type": "object"}, **fields}
    return {"type": "function", "function": function}


def calling(name: str, **arguments: Any) -> str:
    """Return the text with which the default renderer's policy calls a tool."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def tokens_of(text: str) -> list[int]:
    """Return the tokens of a complete reply of the default renderer's policy."""
    renderer = prompt_renderer(None)
    return renderer.encode(text) + renderer.end_tokens[:1]
