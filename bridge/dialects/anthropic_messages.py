"""Anthropic's messages: what the Anthropic SDK and Claude Code speak.

https://docs.anthropic.com/en/api/messages
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from evert.bridge.dialects.events import deltas, named_events
from evert.bridge.dialects.fields import field_policy, forced_tools, read_flag, read_format
from evert.bridge.formats import ReplyFormat
from evert.bridge.messages import Reply
from evert.bridge.requests import (
    ChatRequest,
    bad_request,
    is_absent,
    read_cap,
    read_messages,
    read_model,
    read_stop,
    read_tool_list,
)

FIELDS = field_policy("anthropic_messages")
"""Of every request field (``fields.toml``)."""

_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicMessages:
    """The dialect over the wire."""

    def __init__(self, default_model: str) -> None:
        self._default_model = default_model

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """The request of a body.

        Raises:
            openai.BadRequestError: A field is refused, or of the wrong form.
        """
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
        return ChatRequest(
            read_model(body.get("model"), self._default_model),
            [*_read_system(body.get("system")), *_read_all(read_messages(body.get("messages")))],
            tools,
            read_cap(body, "max_tokens"),
            read_stop(body.get("stop_sequences"), "stop_sequences"),
            _read_format(body, forced_tools(kind, named, tools)),
            may_call=kind != "none",
        )

    def write(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> Any:
        """The JSON object of a whole answer; ``number`` tells it from the rollout's others."""
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
            "usage": _usage(reply.prompt_tokens, reply.completion_tokens),
        }

    def stream(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> bytes:
        """The same as server-sent events."""
        return named_events(_events(self.write(reply, request, number, body)))

    def error(self, error: Mapping[str, Any]) -> Any:
        """The JSON object of a refusal, from the OpenAI SDK's ``error.body``."""
        kind = error.get("type") or "invalid_request_error"
        return {"type": "error", "error": {"type": kind, "message": error["message"]}}

    def error_event(self, error: Mapping[str, Any]) -> bytes:
        """A refusal in the middle of a stream."""
        return named_events([self.error(error)])


def _usage(prompt_tokens: int, completion_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": prompt_tokens,
        "output_tokens": completion_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


# -- reading -------------------------------------------------------------------------------------


def _read_format(body: Mapping[str, Any], must_call: tuple[str, ...]) -> ReplyFormat | None:
    config = body.get("output_config")
    if not is_absent(config) and not isinstance(config, Mapping):
        raise bad_request(f"'output_config' must be an object, got {config!r:.200}.")
    value = body.get("output_format")
    if isinstance(config, Mapping) and not is_absent(config.get("format")):
        value = config["format"]
    if is_absent(value):
        return read_format(None, None, must_call, "output_config")
    if not isinstance(value, Mapping):
        raise bad_request(
            f"'output_config.format' must be an object, got {value!r:.200}.", param="output_config"
        )
    return read_format(value.get("type", ""), value.get("schema"), must_call, "output_config")


def _read_tool(tool: object, index: int) -> dict[str, Any]:
    """A tool in the form of chat completions."""
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
            raise bad_request(
                f"{place} is {message!r:.200}; expected an object whose role is 'user' or "
                "'assistant'.",
                param=place,
            )
        content = message.get("content")
        if isinstance(content, str):
            yield {"role": role, "content": content}
        elif role == "assistant":
            yield _read_assistant(_block_list(content, place), place)
        else:
            yield from _read_user(_block_list(content, place), role, place)


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
    """The tools' results as messages of their own, then whatever the user said."""
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
    """What a tool returned: its texts, a line each, or parts where there are images."""
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
    raise bad_request(
        f"{place}.source is {source!r:.200}; expected a source of type 'base64' or 'url'.",
        param=place,
    )


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
    raise bad_request(f"{place} is {block!r:.200}; expected a block with a type.", param=place)


def _text(block: object, place: str) -> str:
    if isinstance(block, Mapping) and isinstance(block.get("text"), str):
        return str(block["text"])
    raise bad_request(
        f"{place} is {block!r:.200}; expected {{'type': 'text', 'text': ...}}. Documents, searches "
        "and the API's own tools are not behind the policy.",
        param=place,
    )


# -- writing -------------------------------------------------------------------------------------


def _blocks(reply: Reply) -> Iterator[dict[str, Any]]:
    if reply.reasoning is not None:
        yield {"type": "thinking", "thinking": reply.reasoning, "signature": "evert"}
    if reply.text or not reply.tool_calls:
        yield {"type": "text", "text": reply.text}
    for call in reply.tool_calls:
        try:
            arguments = json.loads(call.function.arguments)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            arguments = {"arguments": call.function.arguments}
        yield {
            "type": "tool_use",
            "id": call.id,
            "name": call.function.name,
            "input": arguments,
        }


def _events(whole: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    usage = whole["usage"]
    opening = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
    yield {"type": "message_start", "message": {**opening, "usage": {**usage, "output_tokens": 0}}}
    for index, block in enumerate(whole["content"]):
        yield {"type": "content_block_start", "index": index, "content_block": _emptied(block)}
        for delta in _block_deltas(block):
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ending = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
    yield {"type": "message_delta", "delta": ending, "usage": usage}
    yield {"type": "message_stop"}


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
