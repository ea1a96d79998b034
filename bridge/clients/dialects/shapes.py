"""Objects in the form of chat completions, to which the requests of all APIs are converted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tinker_cookbook.renderers.base import ToolCall

from evert.bridge.chat.fields import json_object
from evert.bridge.chat.reply import TokenLogprob


def get(value: object, name: str) -> Any:
    """Return a field of an object; None if the field is missing or ``value`` is not an object."""
    return value.get(name) if isinstance(value, Mapping) else None


def placed(values: Iterable[Any], place: str) -> Iterator[tuple[Any, str]]:
    """Yield each value of a list with its path in the request, for example ``tools[0]``."""
    return ((value, f"{place}[{index}]") for index, value in enumerate(values))


def function_tool(
    name: object, description: object, parameters: object, strict: object = None
) -> dict[str, Any]:
    """Return a tool's definition; if ``strict`` is True, its calls must fit ``parameters``."""
    function = {"name": name, "description": description, "parameters": parameters}
    if strict is True:
        function["strict"] = True
    return {"type": "function", "function": function}


def function_call(id: object, name: object, arguments: object) -> dict[str, Any]:
    """Return a tool call; the arguments are JSON text."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_part(text: str) -> dict[str, Any]:
    """Return a text as a part of a message's content."""
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    """Return an image as a part of a message's content."""
    return {"type": "image_url", "image_url": {"url": url}}


def system_messages(texts: Sequence[str]) -> list[dict[str, Any]]:
    """Return the system message, with a paragraph for each text."""
    return [{"role": "system", "content": "\n\n".join(texts)}]


def call_arguments(call: ToolCall) -> dict[str, Any]:
    """Return a call's arguments; if they are not a JSON object, ``{"arguments": text}``."""
    arguments = json_object(call.function.arguments)
    return {"arguments": call.function.arguments} if arguments is None else arguments


def written_logprobs(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Return log-probabilities in the form of OpenAI's APIs."""
    return [
        {
            "token": token.text,
            "bytes": None if token.raw is None else [*token.raw],
            "logprob": token.logprob,
            "top_logprobs": [],
        }
        for token in logprobs
    ]
