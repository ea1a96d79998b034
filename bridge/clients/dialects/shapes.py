"""Helpers for the chat completions format, to which requests from all APIs are converted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tinker_cookbook.renderers.base import ToolCall

from evert.bridge.chat.fields import json_object
from evert.bridge.chat.reply import TokenLogprob


def get(value: object, name: str) -> Any:
    """Return a field of an object, or None if it is missing or ``value`` is not an object."""
    return value.get(name) if isinstance(value, Mapping) else None


def placed(values: Iterable[Any], place: str) -> Iterator[tuple[Any, str]]:
    """Yield each value in a list with its path in the request, such as ``tools[0]``."""
    return ((value, f"{place}[{index}]") for index, value in enumerate(values))


def function_tool(
    name: object, description: object, parameters: object, strict: object = None
) -> dict[str, Any]:
    """Build a tool definition. If ``strict``, calls are validated against ``parameters``."""
    function = {"name": name, "description": description, "parameters": parameters}
    if strict is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def function_call(id: object, name: object, arguments: object) -> dict[str, Any]:
    """Build a tool call, with arguments given as a JSON string."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_part(text: str) -> dict[str, Any]:
    """Build a text content part."""
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    """Build an image content part."""
    return {"type": "image_url", "image_url": {"url": url}}


def system_messages(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Build a system message with one paragraph per text."""
    return [{"role": "system", "content": "\n\n".join(texts)}]


def call_arguments(call: ToolCall) -> dict[str, Any]:
    """Parse a call's arguments. Returns ``{"arguments": text}`` if they are not a JSON object."""
    arguments = json_object(call.function.arguments)
    return {"arguments": call.function.arguments} if arguments is None else arguments


def written_logprobs(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Convert log-probabilities to OpenAI's format."""
    return [
        {
            "token": token.text,
            "bytes": None if token.raw is None else [*token.raw],
            "logprob": token.logprob,
            "top_logprobs": [],
        }
        for token in logprobs
    ]
