"""Anthropic's messages: what the Anthropic SDK and Claude Code speak.

https://docs.anthropic.com/en/api/messages
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evert.bridge.chat.bad_requests import bad_request, unexpected
from evert.bridge.chat.fields import (
    is_absent,
    json_object,
    read_cap,
    read_messages,
    read_model,
    read_object,
    read_stop,
    read_tool_list,
    read_train,
)
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.dialect import Dialect
from evert.bridge.clients.dialects.events import deltas
from evert.bridge.clients.dialects.fields import (
    field_policy,
    forced_tools,
    read_flag,
    read_format_field,
)

FIELDS = field_policy("anthropic_messages")
"""Of every request field (``fields.toml``)."""

_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicMessages(Dialect):
    """The dialect over the wire."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """The request of a body."""
        FIELDS.check(body, strict=False)
        read_flag(body, "stream")
        choice = body.get("tool_choice")
        kind = choice.get("type") if isinstance(choice, Mapping) else None
        if not is_absent(choice) and kind not in ("auto", "none", "any", "tool"):
            raise bad_request(
                f"'tool_choice'={choice!r:.200}; expected an object of type 'auto', 'none', 'any' "
                "or 'tool'.",
                param="tool_choice",
            )
        offered = None if kind == "none" else read_tool_list(body.get("tools"))
        tools = [_read_tool(tool, index) for index, tool in enumerate(offered or ())] or None
        named = choice.get("name") if kind == "tool" and isinstance(choice, Mapping) else None
        if kind == "tool" and not isinstance(named, str):
            raise bad_request("'tool_choice' of type 'tool' needs a name.", param="tool_choice")
        messages, prefill = _split(_joined([*_read_all(read_messages(body.get("messages")))]))
        wanted = read_format_field(
            _format_of(body), forced_tools(kind, named, tools), "output_config"
        )
        if prefill and wanted is not None:
            raise bad_request(
                "The last message is the assistant's, to begin the reply with, and a format or a "
                "tool is asked for: only one of both. End with the user's message.",
                param="messages",
            )
        return ChatRequest(
            read_model(body.get("model"), self._default_model),
            [*_read_system(body.get("system")), *messages],
            tools,
            read_cap(body, "max_tokens"),
            read_stop(body.get("stop_sequences"), "stop_sequences"),
            wanted,
            may_call=kind != "none",
            train=read_train(body),
            prefill=prefill,
        )

    def write(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The JSON object of a message."""
        stop_reason = _FINISH[reply.finish_reason]
        if reply.stop_string is not None and reply.finish_reason == "stop":
            stop_reason = "stop_sequence"
        return {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": request.model,
            "content": [*_blocks(reply)],
            "stop_reason": stop_reason,
            "stop_sequence": reply.stop_string if stop_reason == "stop_sequence" else None,
            "usage": {
                "input_tokens": reply.prompt_tokens,
                "output_tokens": reply.completion_tokens,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 0,
            },
        }

    def events(self, whole: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The message and its blocks as they come to be."""
        usage = whole["usage"]
        opening = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
        opening["usage"] = {**usage, "output_tokens": 0}
        yield {"type": "message_start", "message": opening}
        for index, block in enumerate(whole["content"]):
            yield {"type": "content_block_start", "index": index, "content_block": _emptied(block)}
            for delta in _block_deltas(block):
                yield {"type": "content_block_delta", "index": index, "delta": delta}
            yield {"type": "content_block_stop", "index": index}
        ending = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
        yield {"type": "message_delta", "delta": ending, "usage": usage}
        yield {"type": "message_stop"}

    def error(self, error: Mapping[str, Any], status: int) -> dict[str, Any]:
        """The JSON object of a refusal, by Anthropic's names."""
        kind = error.get("type") or "invalid_request_error"
        return {"type": "error", "error": {"type": kind, "message": error["message"]}}


# -- reading -------------------------------------------------------------------------------------


def _format_of(body: Mapping[str, Any]) -> object:
    config = read_object(body.get("output_config"), "output_config") or {}
    present = config.get("format")
    wanted = body.get("output_format") if is_absent(present) else present
    if is_absent(wanted) or isinstance(wanted, Mapping):
        return wanted
    raise bad_request(
        f"'output_config.format' must be an object, got {wanted!r:.200}.", param="output_config"
    )


def _read_tool(tool: object, index: int) -> dict[str, Any]:
    place = f"tools[{index}]"
    if not isinstance(tool, Mapping) or tool.get("type") not in (None, "custom"):
        raise bad_request(
            f"{place} is {tool!r:.200}; the API's own tools are not behind the policy: offer "
            "functions, {'name': ..., 'input_schema': ...}.",
            param=place,
        )
    return {
        "type": "function",
        "function": {
            "name": tool.get("name"),
            "description": tool.get("description"),
            "parameters": tool.get("input_schema"),
        },
    }


def _read_system(system: object) -> list[dict[str, Any]]:
    if is_absent(system):
        return []
    if isinstance(system, str):
        return [{"role": "system", "content": system}]
    blocks = _block_list(system, "system")
    texts = [_text(block, f"system[{index}]") for index, block in enumerate(blocks)]
    return [{"role": "system", "content": "\n\n".join(texts)}]


def _read_all(messages: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for index, message in enumerate(messages):
        place = f"messages[{index}]"
        role = message.get("role") if isinstance(message, Mapping) else None
        if role not in ("user", "assistant", "system"):
            raise unexpected(place, message, "an object whose role is 'user' or 'assistant'.")
        content = message.get("content")
        if isinstance(content, str):
            yield {"role": role, "content": content}
        elif role == "assistant":
            yield _read_assistant(_block_list(content, place), place)
        else:
            yield from _read_user(_block_list(content, place), role, place)


def _joined(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Join consecutive texts of the assistant's into one message, as the API does."""
    joined: list[dict[str, Any]] = []
    for message in messages:
        if joined and _is_text(message) and _is_text(joined[-1]):
            joined[-1] = {**message, "content": joined[-1]["content"] + message["content"]}
        else:
            joined.append(message)
    return joined


def _is_text(message: Mapping[str, Any]) -> bool:
    return message["role"] == "assistant" and {*message} == {"role", "content"}


def _split(messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The messages before the reply, and the text that the reply begins with; "" for none.

    Only a text after the user's message is a beginning: thoughts and tool calls are finished
    messages.
    """
    if len(messages) > 1 and _is_text(messages[-1]):
        return messages[:-1], str(messages[-1]["content"])
    return messages, ""


def _read_assistant(blocks: Sequence[Any], place: str) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{place}.content[{index}]"
        kind = _kind(block, where)
        if kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            calls.append(_read_tool_use(block, where))
        elif kind != "redacted_thinking":
            texts.append(_text(block, where))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _read_tool_use(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    if not isinstance(block.get("input"), Mapping):
        raise bad_request(f"{place}.input must be an object, got {block.get('input')!r:.200}.")
    arguments = json.dumps(block["input"])
    return {
        "id": block.get("id"),
        "type": "function",
        "function": {"name": block.get("name"), "arguments": arguments},
    }


def _read_user(blocks: Sequence[Any], role: str, place: str) -> Iterator[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for index, block in enumerate(blocks):
        where = f"{place}.content[{index}]"
        kind = _kind(block, where)
        if kind == "tool_result":
            yield {
                "role": "tool",
                "tool_call_id": block.get("tool_use_id"),
                "content": _result(block.get("content"), where),
            }
        else:
            parts.append(_part(block, where))
    if parts:
        yield {"role": role, "content": parts}


def _result(content: object, place: str) -> str | list[dict[str, Any]]:
    """A tool's result: its texts, a line each, or parts where there are images."""
    if is_absent(content):
        return ""
    if isinstance(content, str):
        return content
    blocks = _block_list(content, place)
    parts = [_part(block, f"{place}.content[{i}]") for i, block in enumerate(blocks)]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _part(block: object, place: str) -> dict[str, Any]:
    if isinstance(block, Mapping) and block.get("type") == "image":
        return {"type": "image_url", "image_url": {"url": _image_url(block, place)}}
    return {"type": "text", "text": _text(block, place)}


def _image_url(block: Mapping[str, Any], place: str) -> str:
    source = block.get("source")
    if isinstance(source, Mapping):
        if source.get("type") == "url" and isinstance(source.get("url"), str):
            return str(source["url"])
        if source.get("type") == "base64" and isinstance(source.get("data"), str):
            return f"data:{source.get('media_type')};base64,{source['data']}"
    raise unexpected(f"{place}.source", source, "a source of type 'base64'.")


def _block_list(content: object, place: str) -> Sequence[Any]:
    if isinstance(content, (list, tuple)):
        return content
    raise bad_request(
        f"{place}.content must be a string or a list of blocks, got {content!r:.200}.", param=place
    )


def _kind(block: object, place: str) -> str:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if isinstance(kind, str):
        return kind
    raise unexpected(place, block, "a block with a type.")


def _text(block: object, place: str) -> str:
    if isinstance(block, Mapping) and isinstance(block.get("text"), str):
        return str(block["text"])
    expected = "{'type': 'text', 'text': ...}. Documents, searches and the API's own tools are not"
    raise unexpected(place, block, f"{expected} behind the policy.")


# -- writing -------------------------------------------------------------------------------------


def _blocks(reply: Reply) -> Iterator[dict[str, Any]]:
    if reply.reasoning is not None:
        yield {"type": "thinking", "thinking": reply.reasoning, "signature": "evert"}
    if reply.text or not reply.tool_calls:
        yield {"type": "text", "text": reply.text}
    for call in reply.tool_calls:
        arguments = json_object(call.function.arguments)
        if arguments is None:
            arguments = {"arguments": call.function.arguments}
        yield {
            "type": "tool_use",
            "id": call.id,
            "name": call.function.name,
            "input": arguments,
        }


def _emptied(block: Mapping[str, Any]) -> dict[str, Any]:
    if block["type"] == "tool_use":
        return {**block, "input": {}}
    if block["type"] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _block_deltas(block: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if block["type"] == "tool_use":
        for piece in deltas(json.dumps(block["input"])):
            yield {"type": "input_json_delta", "partial_json": piece}
    elif block["type"] == "thinking":
        for piece in deltas(block["thinking"]):
            yield {"type": "thinking_delta", "thinking": piece}
        yield {"type": "signature_delta", "signature": block["signature"]}
    else:
        for piece in deltas(block["text"]):
            yield {"type": "text_delta", "text": piece}
