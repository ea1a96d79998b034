"""What bodies of all APIs are read into: the forms of chat completions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tinker_cookbook.renderers.base import ToolCall

from evert.bridge.chat.fields import json_object
from evert.bridge.chat.reply import TokenLogprob


def get(value: object, name: str) -> Any:
    """A field of an object; None where there is none, or no object."""
    return value.get(name) if isinstance(value, Mapping) else None


def placed(values: Iterable[Any], place: str) -> Iterator[tuple[Any, str]]:
    """The values of a list, each with where it stands."""
    return ((value, f"{place}[{index}]") for index, value in enumerate(values))


def function_tool(name: object, description: object, parameters: object) -> dict[str, Any]:
    """A tool that is offered."""
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


def function_call(id: object, name: object, arguments: object) -> dict[str, Any]:
    """A call of a tool; the arguments are JSON text."""
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def text_part(text: str) -> dict[str, Any]:
    """A text among the parts of a content."""
    return {"type": "text", "text": text}


def image_part(url: str) -> dict[str, Any]:
    """An image among the parts of a content."""
    return {"type": "image_url", "image_url": {"url": url}}


def system_messages(texts: Sequence[str]) -> list[dict[str, Any]]:
    """The system's message, a paragraph a text."""
    return [{"role": "system", "content": "\n\n".join(texts)}]


def call_arguments(call: ToolCall) -> dict[str, Any]:
    """The arguments as an object, for APIs that write one; text that is none is a field of one."""
    arguments = json_object(call.function.arguments)
    return {"arguments": call.function.arguments} if arguments is None else arguments


def written_logprobs(logprobs: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    """Log-probabilities as both of OpenAI's APIs write them."""
    return [
        {
            "token": one.text,
            "bytes": None if one.raw is None else [*one.raw],
            "logprob": one.logprob,
            "top_logprobs": [],
        }
        for one in logprobs
    ]
