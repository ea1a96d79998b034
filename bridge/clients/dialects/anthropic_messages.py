"""Anthropic's Messages API, used by the Anthropic SDK and Claude Code.

https://docs.anthropic.com/en/api/messages
"""

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from evert.bridge.chat import fields
from evert.bridge.chat.bad_requests import bad_request, unexpected
from evert.bridge.chat.reply import Reply, reply_message
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects import shapes
from evert.bridge.clients.dialects.dialect import Dialect
from evert.bridge.clients.dialects.events import Stream, deltas
from evert.bridge.clients.dialects.fields import field_policy, forced_tools, read_format

FIELDS = field_policy("anthropic_messages")
"""How to handle each request field (``fields.toml``)."""

UNTHREADED = {"error_code": "thread_unsupported_request", "unsupported": []}
"""Details of the 400 error for the field ``thread``. They make the SDK's tool runner resend the
history."""

_NOTHING_CACHED = {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0}

_FINISH = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class AnthropicMessages(Dialect):
    """Anthropic's Messages API."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Parse a request body."""
        FIELDS.check(body, strict=False)
        fields.read_flag(body, "stream")
        choice = body.get("tool_choice")
        kind = shapes.get(choice, "type")
        if not fields.is_absent(choice) and kind not in ("auto", "none", "any", "tool"):
            raise bad_request(
                f"'tool_choice'={choice!r:.200}; expected an object with type 'auto', 'none', "
                "'any' or 'tool'.",
                param="tool_choice",
            )
        offered = None if kind == "none" else fields.read_tool_list(body.get("tools"))
        tools = [_read_tool(*tool) for tool in shapes.placed(offered or (), "tools")] or None
        tool_name = shapes.get(choice, "name") if kind == "tool" else None
        if kind == "tool" and not isinstance(tool_name, str):
            raise bad_request("'tool_choice' with type 'tool' needs a name.", param="tool_choice")
        messages, prefill = _split(
            _joined([*_read_all(fields.read_messages(body.get("messages")))])
        )
        must_call = forced_tools(kind, tool_name, tools)
        reply_format = read_format(_format_of(body), must_call, "output_config.format", tools=tools)
        if prefill and reply_format is not None and reply_format.is_asked_for:
            raise bad_request(
                "The last message is from the assistant, so it is a prefill of the reply. A "
                "prefill cannot be combined with a required format or tool. End with a user "
                "message.",
                param="messages",
            )
        return ChatRequest(
            fields.read_model(body.get("model"), self._default_model),
            [*_read_system(body.get("system")), *messages],
            tools,
            fields.read_cap(body, "max_tokens"),
            fields.read_stop(body.get("stop_sequences"), "stop_sequences"),
            reply_format,
            one_call=shapes.get(choice, "disable_parallel_tool_use") is True,
            may_call=kind != "none",
            train=fields.read_train(body),
            prefill=prefill,
        )

    def write(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Build the JSON object for a message."""
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
                "cache_creation": _NOTHING_CACHED,
                "service_tier": "standard",
            },
        }

    async def events(
        self, stream: Stream, body: Mapping[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the stream events: message start, content blocks, message end."""
        opening = {**stream.head, "content": [], "stop_reason": None, "stop_sequence": None}
        opening["usage"] = {**stream.head["usage"], "output_tokens": 0}
        yield {"type": "message_start", "message": opening}
        index = 0
        async for event in _block_events(index, _NO_THOUGHT, stream.thoughts):
            yield event
            index += event["type"] == "content_block_stop"
        async for event in _block_events(index, _NO_TEXT, stream.text):
            yield event
            index += event["type"] == "content_block_stop"
        blocks = (
            block for block in stream.answer["content"] if block == _NO_TEXT or "input" in block
        )
        for place, block in enumerate(blocks, index):
            is_call = "input" in block
            yield _block_start(place, {**block, "input": {}} if is_call else block)
            for piece in deltas(json.dumps(block["input"])) if is_call else ():
                yield _block_delta(place, {"type": "input_json_delta", "partial_json": piece})
            yield {"type": "content_block_stop", "index": place}
        ending = {name: stream.answer[name] for name in ("stop_reason", "stop_sequence")}
        usage = stream.answer["usage"]
        counts = {name: count for name, count in usage.items() if isinstance(count, int)}
        yield {"type": "message_delta", "delta": ending, "usage": counts}
        yield {"type": "message_stop"}

    def error(self, error: Mapping[str, Any], status: int) -> dict[str, Any]:
        """Return the JSON object for an error in Anthropic's format."""
        kind = error.get("type") or "invalid_request_error"
        error_fields = {"type": kind, "message": error["message"]}
        if error.get("param") == "thread":
            error_fields["details"] = UNTHREADED
        return {"type": "error", "error": error_fields}


# -- reading -------------------------------------------------------------------------------------


def _format_of(body: Mapping[str, Any]) -> object:
    config = fields.read_object(body.get("output_config"), "output_config") or {}
    present = config.get("format")
    return body.get("output_format") if fields.is_absent(present) else present


def _read_tool(tool: object, place: str) -> dict[str, Any]:
    if not isinstance(tool, Mapping) or tool.get("type") not in (None, "custom"):
        raise bad_request(
            f"{place} is {tool!r:.200}; the hosted API's own tools are not supported. Define "
            "functions instead: {'name': ..., 'input_schema': ...}.",
            param=place,
        )
    schema, strict = tool.get("input_schema"), tool.get("strict")
    return shapes.function_tool(tool.get("name"), tool.get("description"), schema, strict)


def _read_system(system: object) -> list[dict[str, Any]]:
    if fields.is_absent(system):
        return []
    if isinstance(system, str):
        return shapes.system_messages([system])
    return shapes.system_messages([_text(*block) for block in _blocks_of(system, "system", "")])


def _read_all(messages: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for message, place in shapes.placed(messages, "messages"):
        role = shapes.get(message, "role")
        if role not in ("user", "assistant", "system"):
            raise unexpected(place, message, "an object with role 'user' or 'assistant'.")
        content = message.get("content")
        if isinstance(content, str):
            yield {"role": role, "content": content}
        elif role == "assistant":
            yield _read_assistant(_blocks_of(content, place))
        else:
            yield from _read_user(_blocks_of(content, place), role)


def _joined(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge consecutive assistant texts into one message, as the API does."""
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
    """Split off the prefill. Return the other messages and the prefill ("" if there is none).

    If the last message is an assistant message that contains only text and is not the only message,
    it is a prefill. A message with thinking or tool calls is a complete reply.
    """
    if len(messages) > 1 and _is_text(messages[-1]):
        return messages[:-1], str(messages[-1]["content"])
    return messages, ""


def _read_assistant(blocks: Iterator[tuple[Any, str]]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block, where in blocks:
        kind = _kind(block, where)
        if kind == "thinking":
            thoughts.append(str(block.get("thinking") or ""))
        elif kind == "tool_use":
            calls.append(_read_tool_use(block, where))
        elif kind != "redacted_thinking":
            texts.append(_text(block, where))
    return reply_message("".join(texts), "\n".join(thoughts) if thoughts else None, calls)


def _read_tool_use(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    arguments = {} if fields.is_absent(block.get("input")) else block["input"]
    if not isinstance(arguments, Mapping):
        raise bad_request(f"{place}.input must be an object, got {arguments!r:.200}.")
    return shapes.function_call(block.get("id"), block.get("name"), json.dumps(arguments))


def _read_user(blocks: Iterator[tuple[Any, str]], role: str) -> Iterator[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    for block, where in blocks:
        if _kind(block, where) == "tool_result":
            content = _result(block.get("content"), where)
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content}
        else:
            parts.append(_part(block, where))
    if parts:
        yield {"role": role, "content": parts}


def _result(content: object, place: str) -> str | list[dict[str, Any]]:
    """Return a tool result as text joined by newlines, or as a list of parts if it has images."""
    if fields.is_absent(content):
        return ""
    if isinstance(content, str):
        return content
    parts = [_part(*block) for block in _blocks_of(content, place)]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "\n".join(texts) if len(texts) == len(parts) else parts


def _part(block: object, place: str) -> dict[str, Any]:
    if shapes.get(block, "type") == "image":
        return shapes.image_part(_image_url(shapes.get(block, "source"), f"{place}.source"))
    return shapes.text_part(_text(block, place))


def _image_url(source: object, place: str) -> str:
    kind, url, data = (shapes.get(source, name) for name in ("type", "url", "data"))
    if kind == "url" and isinstance(url, str):
        return url
    if kind == "base64" and isinstance(data, str):
        return f"data:{shapes.get(source, 'media_type')};base64,{data}"
    raise unexpected(place, source, "a source with type 'base64' or 'url'.")


def _blocks_of(content: object, place: str, within: str = ".content") -> Iterator[tuple[Any, str]]:
    if isinstance(content, (list, tuple)):
        return shapes.placed(content, f"{place}{within}")
    raise bad_request(
        f"{place}{within} must be a string or a list of blocks, got {content!r:.200}.", param=place
    )


def _kind(block: object, place: str) -> str:
    kind = shapes.get(block, "type")
    if isinstance(kind, str):
        return kind
    raise unexpected(place, block, "a block with a type.")


def _text(block: object, place: str) -> str:
    text = shapes.get(block, "text")
    if isinstance(text, str):
        return text
    expected = "{'type': 'text', 'text': ...}. Documents, searches and the hosted API's own tools"
    raise unexpected(place, block, f"{expected} are not supported.")


# -- writing -------------------------------------------------------------------------------------


def _blocks(reply: Reply) -> Iterator[dict[str, Any]]:
    if reply.reasoning:
        yield {"type": "thinking", "thinking": reply.reasoning, "signature": SIGNATURE}
    if reply.text or not reply.tool_calls:
        yield {"type": "text", "text": reply.text}
    for call in reply.tool_calls:
        identity = {"id": call.id, "name": call.function.name}
        yield {"type": "tool_use", **identity, "input": shapes.call_arguments(call)}


SIGNATURE = "evert"
"""The signature given to all thinking blocks. Clients send it back, but evert does not check it."""

_NO_THOUGHT: Mapping[str, Any] = {"type": "thinking", "thinking": "", "signature": ""}
_NO_TEXT: Mapping[str, Any] = {"type": "text", "text": ""}


async def _block_events(
    index: int, block: Mapping[str, Any], pieces: AsyncIterator[str]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the events of a thinking or text block, or nothing if the block is empty."""
    is_open, kind = False, block["type"]
    async for piece in pieces:
        if not is_open:
            yield _block_start(index, block)
        is_open = True
        yield _block_delta(index, {"type": f"{kind}_delta", kind: piece})
    if is_open and kind == "thinking":
        yield _block_delta(index, {"type": "signature_delta", "signature": SIGNATURE})
    if is_open:
        yield {"type": "content_block_stop", "index": index}


def _block_delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": delta}


def _block_start(index: int, block: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}
