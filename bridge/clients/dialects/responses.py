"""OpenAI's Responses API, including the state for ``previous_response_id``.

https://platform.openai.com/docs/api-reference/responses
"""

import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from evert.bridge.chat import fields
from evert.bridge.chat.bad_requests import bad_request, malformed, unexpected
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.dialect import Dialect
from evert.bridge.clients.dialects.events import Stream, deltas
from evert.bridge.clients.dialects.fields import (
    field_policy,
    openai_forced_tools,
    read_format,
)
from evert.bridge.clients.dialects.responses_tools import read_call, read_tools, write_call
from evert.bridge.clients.dialects.shapes import (
    get,
    image_part,
    placed,
    text_part,
    written_logprobs,
)

FIELDS = field_policy("responses")
"""How to handle each request field (``fields.toml``)."""

LOGPROBS = "message.output_text.logprobs"
"""The value in ``include`` that requests log-probabilities. Other values have no effect, because
the data they refer to is either always or never included."""


class Responses(Dialect):
    """OpenAI's Responses API. There is one instance per rollout, which stores its responses."""

    def __init__(self, default_model: str) -> None:
        super().__init__(default_model)
        self._conversations: dict[str, list[Any]] = {}
        self._sizes: dict[str, int] = {}
        self._size = 0
        self.max_characters: int | None = None  # total over all stored responses (None: no limit)

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Parse a request body."""
        FIELDS.check(body, strict=False)
        fields.read_flag(body, "stream")
        choice = body.get("tool_choice")
        offered = None if choice == "none" else fields.read_tool_list(body.get("tools"))
        tools, left_out = read_tools(offered or ())
        must_call = _must_call(choice, tools, left_out)
        text = fields.read_object(body.get("text"), "text") or {}
        return ChatRequest(
            fields.read_model(body.get("model"), self._default_model),
            [*_read_instructions(body.get("instructions")), *self._messages(body)],
            tools or None,
            fields.read_cap(body, "max_output_tokens"),
            (),
            read_format(text.get("format"), must_call, "text.format", tools=tools),
            one_call=not fields.read_flag(body, "parallel_tool_calls", absent=True),
            may_call=choice != "none",
            logprobs=LOGPROBS in fields.read_list(body.get("include"), "include", "strings"),
            train=fields.read_train(body),
            left_out=left_out,
        )

    def _messages(self, body: Mapping[str, Any]) -> list[Any]:
        """Return the conversation, without instructions (they only apply to one response)."""
        new, previous = body.get("input"), body.get("previous_response_id")
        if fields.is_absent(previous):
            return read_input(new)
        history = self._conversations.get(previous) if isinstance(previous, str) else None
        if history is None:
            raise bad_request(
                f"Previous response with id {previous!r:.200} not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            )
        return [*history, *(read_input(new) if new != [] else ())]

    def write(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Build the JSON object for a response, and store it unless ``store`` is false."""
        output = [*_output(reply, number, body.get("tools"))]
        is_cut = reply.finish_reason == "length"
        response = {
            **_head(request, number, body),
            "status": "incomplete" if is_cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
            "output": output,
            "usage": _usage(reply),
        }
        if body.get("store") is not False:
            messages = request.messages[len(_read_instructions(body.get("instructions"))) :]
            latest = next(reversed(self._conversations.values()), [])
            # Agents resend earlier messages, so share the objects to save memory.
            pairs = zip(latest, messages, strict=False)
            shared = [old if old == new else new for old, new in pairs]
            conversation = [*shared, *messages[len(shared) :], *read_input(output)]
            self._conversations[response["id"]] = conversation
            if self.max_characters is not None:
                self._drop(response["id"], self.max_characters)
        return response

    async def events(
        self, stream: Stream, body: Mapping[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the stream events: response start, output items, response end."""
        number = itertools.count()
        async for event in _events(stream):
            yield {**event, "sequence_number": next(number)}

    def counted(self, count: int) -> dict[str, Any]:
        """Build the JSON object for a token count."""
        return {"object": "response.input_tokens", "input_tokens": count}

    def error_event(self, error: Mapping[str, Any], status: int, number: int = 0) -> bytes:
        """Return the event that reports an error in a stream after the first ``number`` events."""
        event = {
            "type": "error",
            "code": error.get("code") or error.get("type"),
            "message": error["message"],
            "param": error.get("param"),
            "sequence_number": number,
        }
        return self.framed([event])

    def _drop(self, latest: str, limit: int) -> None:
        """Drop the oldest responses until at most ``limit`` characters are stored."""
        self._sizes[latest] = len(json.dumps(self._conversations[latest]))
        self._size += self._sizes[latest]
        while self._size > limit:
            oldest = next(iter(self._sizes))
            self._size -= self._sizes.pop(oldest)
            del self._conversations[oldest]


# -- reading -------------------------------------------------------------------------------------


def _read_instructions(value: object) -> list[dict[str, Any]]:
    if fields.is_absent(value) or value == "":
        return []
    if isinstance(value, str):
        return [{"role": "system", "content": value}]
    return read_input(value, "instructions")


def read_input(value: object, name: str = "input") -> list[dict[str, Any]]:
    """Convert input items to chat messages. The items of a reply are merged into one message."""
    if isinstance(value, str):
        return [{"role": "user", "content": value}]
    if not isinstance(value, (list, tuple)) or not value:
        raise malformed(name, "a string or a non-empty list of items", value)
    messages: list[dict[str, Any]] = []
    for item in placed(value, name):
        message = _read_item(*item)
        replies = messages and message["role"] == messages[-1]["role"] == "assistant"
        if not (replies and _merge(messages[-1], message)):
            messages.append(message)
    for message in messages:
        message.setdefault("content", "")
    return messages


_REPLY = ("reasoning_content", "content", "tool_calls")
"""The fields of a reply, in the order in which their items appear."""


def _merge(last: dict[str, Any], message: dict[str, Any]) -> bool:
    """Merge an item into the ``last`` reply. Return False if it belongs to a new reply."""
    [kind] = [kind for kind in _REPLY if kind in message]
    if kind == "tool_calls":
        last.setdefault(kind, []).extend(message[kind])
    elif any(later in last for later in _REPLY[_REPLY.index(kind) :]):
        return False
    else:
        last[kind] = message[kind]
    return True


def _read_item(item: object, place: str) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise unexpected(place, item, "an object.")
    kind = item.get("type", "message")
    if kind == "message":
        return _read_message(item, place)
    if kind == "reasoning":
        return {"role": "assistant", "reasoning_content": _reasoning(item)}
    if kind in ("function_call", "custom_tool_call"):
        return {"role": "assistant", "tool_calls": [read_call(item)]}
    if kind in ("function_call_output", "custom_tool_call_output"):
        content = item.get("output")
        if isinstance(content, (list, tuple)):
            content = [_read_part(part, place) for part in content]
        return {"role": "tool", "tool_call_id": item.get("call_id"), "content": content}
    raise bad_request(
        f"{place} has type {kind!r:.200}; expected a message, reasoning, a function or custom "
        "tool call, or a tool call output. Send complete items instead of references.",
        param=place,
    )


def _read_message(item: Mapping[str, Any], place: str) -> dict[str, Any]:
    content = item.get("content")
    if isinstance(content, (list, tuple)):
        content = [_read_part(part, place) for part in content]
        if all(part.get("type") == "text" for part in content) and item.get("role") == "assistant":
            content = "".join(part["text"] for part in content)
    return {"role": item.get("role"), "content": content}


def _read_part(part: object, place: str) -> dict[str, Any]:
    kind = get(part, "type")
    text = get(part, "refusal" if kind == "refusal" else "text")
    if kind in ("input_text", "output_text", "text", "refusal") and isinstance(text, str):
        return text_part(text)
    if kind == "input_image" and isinstance(url := get(part, "image_url"), str):
        return image_part(url)
    raise bad_request(
        f"{place} contains the part {part!r:.200}; expected 'input_text', 'output_text' or "
        "'input_image' with an image_url.",
        param=place,
    )


def _reasoning(item: Mapping[str, Any]) -> str:
    parts = item.get("content") or item.get("summary") or ()
    if not isinstance(parts, (list, tuple)):
        return ""
    return "\n".join(str(part.get("text") or "") for part in parts if isinstance(part, Mapping))


def _must_call(choice: object, tools: list[Any], left_out: Sequence[str]) -> tuple[str, ...]:
    if choice == "required" and left_out and not tools:
        raise bad_request(
            f"'tool_choice'='required' needs tools to choose from. OpenAI's built-in tools "
            f"({', '.join(left_out)}) are not shown to the policy; define functions instead.",
            param="tools",
        )
    kind = get(choice, "type")
    if kind == "allowed_tools" and get(choice, "mode") == "auto":
        return ()
    name = get(choice, "name") if kind in ("function", "custom") else None
    return openai_forced_tools(choice, name, tools, "{'type': 'function', 'name': ...}")


# -- writing -------------------------------------------------------------------------------------


def _head(request: ChatRequest, number: str, body: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": int(time.time()),
        "error": None,
        "instructions": body.get("instructions"),
        "metadata": body.get("metadata") or {},
        "model": request.model,
        "parallel_tool_calls": body.get("parallel_tool_calls") is not False,
        "previous_response_id": body.get("previous_response_id"),
        "temperature": None,
        "tool_choice": body.get("tool_choice") or "auto",
        "tools": body.get("tools") or [],
        "top_p": None,
        "max_output_tokens": body.get("max_output_tokens"),
        "text": body.get("text") or {"format": {"type": "text"}},
    }


def _usage(reply: Reply) -> dict[str, Any]:
    return {
        "input_tokens": reply.prompt_tokens,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": reply.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }


def _output(reply: Reply, number: str, tools: object) -> Iterator[dict[str, Any]]:
    if reply.reasoning:
        yield _thought(number, reply.reasoning)
    if reply.text or not reply.tool_calls:
        yield {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "status": "incomplete" if reply.finish_reason == "length" else "completed",
            "content": [_output_text(reply)],
        }
    for index, call in enumerate(reply.tool_calls):
        yield write_call(call, tools, f"{number}_{index}")


def _output_text(reply: Reply) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": reply.text, "annotations": []}
    if reply.logprobs is not None:
        part["logprobs"] = written_logprobs(reply.logprobs)
    return part


async def _events(stream: Stream) -> AsyncIterator[dict[str, Any]]:
    opening = {**stream.head, "status": "in_progress", "output": [], "usage": None}
    yield {"type": "response.created", "response": opening}
    yield {"type": "response.in_progress", "response": opening}
    number, thought, index = stream.head["id"].removeprefix("resp_"), "", 0
    async for piece in stream.thoughts:
        place = {"output_index": index, "item_id": f"rs_{number}", "content_index": 0}
        if not thought:
            for event in _start_events(_thought(number, ""), place):
                yield event
        thought += piece
        yield {"type": "response.reasoning_text.delta", **place, "delta": piece}
    if thought:
        for event in _end_events(_thought(number, thought), place, {"text": thought}):
            yield event
        index += 1
    is_open, place = False, {"output_index": index, "item_id": f"msg_{number}", "content_index": 0}
    async for piece in stream.text:
        if not is_open:
            for event in _start_events(_message(number), place):
                yield event
        is_open = True
        yield {"type": "response.output_text.delta", **place, "delta": piece, "logprobs": []}
    for item in stream.answer["output"]:
        if item["type"] == "message":
            [part] = item["content"]
            for event in () if is_open else _start_events(_message(number), place):
                yield event
            result = {"text": part["text"], "logprobs": part.get("logprobs", [])}
            for event in _end_events(item, place, result):
                yield event
            index += 1
        elif item["type"] != "reasoning":
            for event in _call_events(item, index):
                yield event
            index += 1
    yield {"type": f"response.{stream.answer['status']}", "response": stream.answer}


def _start_events(item: dict[str, Any], place: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events that start an item with a single, empty part."""
    [part] = item["content"]
    index, added = place["output_index"], {**item, "content": []}
    yield {"type": "response.output_item.added", "output_index": index, "item": added}
    yield {"type": "response.content_part.added", **place, "part": part}


def _end_events(
    item: Mapping[str, Any], place: Mapping[str, Any], result: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    [part], index = item["content"], place["output_index"]
    yield {"type": f"response.{part['type']}.done", **place, **result}
    yield {"type": "response.content_part.done", **place, "part": part}
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _thought(number: str, text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    return {"id": f"rs_{number}", "type": "reasoning", "summary": [], "content": content}


def _message(number: str) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant"}
    return {**head, "status": "in_progress", "content": [part]}


_EMPTY: dict[str, Any] = {"arguments": "", "input": "", "status": "in_progress"}


def _call_events(item: Mapping[str, Any], index: int) -> Iterator[dict[str, Any]]:
    place = {"output_index": index, "item_id": item["id"]}
    added = {**item, **{name: empty for name, empty in _EMPTY.items() if name in item}}
    yield {"type": "response.output_item.added", "output_index": index, "item": added}
    if item["type"] == "function_call":
        final = {"arguments": item["arguments"], "name": item["name"]}
        yield from _piecewise("response.function_call_arguments", item["arguments"], place, final)
    else:
        final = {"input": item["input"]}
        yield from _piecewise("response.custom_tool_call_input", item["input"], place, final)
    yield {"type": "response.output_item.done", "output_index": index, "item": item}


def _piecewise(
    name: str, text: str, place: Mapping[str, Any], final: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    for piece in deltas(text):
        yield {"type": f"{name}.delta", **place, "delta": piece}
    yield {"type": f"{name}.done", **place, **final}
