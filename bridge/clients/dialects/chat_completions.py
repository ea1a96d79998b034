"""OpenAI's Chat Completions API, used by evert's own client and most frameworks.

https://platform.openai.com/docs/api-reference/chat
"""

import re
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from openai.types.chat import ChatCompletion

from evert.bridge.chat import fields
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.dialect import Dialect
from evert.bridge.clients.dialects.events import Stream, bare_events, deltas
from evert.bridge.clients.dialects.fields import (
    field_policy,
    openai_forced_tools,
    read_format,
)
from evert.bridge.clients.dialects.shapes import function_call, get, written_logprobs

FIELDS = field_policy("chat_completions")
"""How to handle each request field (``fields.toml``)."""

_TOOL_CHOICE = "{'type': 'function', 'function': {'name': ...}}"
_DEPLOYMENT = re.compile(r"/deployments/([^/]+)/chat/completions$")
"""Matches an Azure path, which contains the model name."""

_PLAIN = frozenset({"model", "messages"})


def read(body: Mapping[str, Any], default_model: str, *, strict: bool = False) -> ChatRequest:
    """Validate the fields of a call and parse it. Unknown fields are refused if ``strict``."""
    messages = fields.read_messages(body.get("messages"))
    model = fields.read_model(body.get("model"), default_model)
    if _PLAIN.issuperset(body):  # fast path: most calls have no other fields
        return ChatRequest(model, messages)
    FIELDS.check(body, strict=strict)
    choice = body.get("tool_choice")
    tools = None if choice == "none" else fields.read_tool_list(body.get("tools"))
    name = get(get(choice, "function"), "name")
    must_call = openai_forced_tools(choice, name, tools, _TOOL_CHOICE)
    return ChatRequest(
        model,
        messages,
        tools,
        fields.read_cap(body, "max_tokens", "max_completion_tokens"),
        fields.read_stop(body.get("stop")),
        read_format(
            body.get("response_format"), must_call, "response_format", "json_schema", tools=tools
        ),
        one_call=not fields.read_flag(body, "parallel_tool_calls", absent=True),
        may_call=choice != "none",
        logprobs=fields.read_flag(body, "logprobs"),
        train=fields.read_train(body),
    )


def completion(reply: Reply, *, id: str, model: str) -> ChatCompletion:
    """Convert a reply to the SDK's ``ChatCompletion``.

    The reasoning is in ``message.reasoning_content``. ``usage`` counts the tokens in the
    observation and the action.
    """
    return ChatCompletion.model_validate(_as_json(reply, id, model))


def _as_json(reply: Reply, id: str, model: str) -> dict[str, Any]:
    calls = [
        function_call(call.id or "", call.function.name, call.function.arguments)
        for call in reply.tool_calls
    ]
    message: dict[str, Any] = {
        "role": "assistant",
        "content": reply.text or (None if calls else ""),
        "tool_calls": calls or None,
    }
    if reply.reasoning is not None:
        message["reasoning_content"] = reply.reasoning
    choice: dict[str, Any] = {"index": 0, "finish_reason": reply.finish_reason, "message": message}
    if reply.logprobs is not None:
        choice["logprobs"] = {"content": written_logprobs(reply.logprobs), "refusal": None}
    usage = {
        "prompt_tokens": reply.prompt_tokens,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens": reply.completion_tokens,
        "completion_tokens_details": _COMPLETION_DETAILS,
        "total_tokens": reply.prompt_tokens + reply.completion_tokens,
    }
    head = {"id": id, "object": "chat.completion", "created": int(time.time()), "model": model}
    return {**head, "service_tier": "default", "choices": [choice], "usage": usage}


_COMPLETION_DETAILS = {
    "reasoning_tokens": 0,
    "audio_tokens": 0,
    "accepted_prediction_tokens": 0,
    "rejected_prediction_tokens": 0,
}


class ChatCompletions(Dialect):
    """OpenAI's Chat Completions API."""

    framed = staticmethod(bare_events)
    ending = b"data: [DONE]\n\n"

    def addressed(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the ``model`` from an Azure path to the body."""
        deployment = _DEPLOYMENT.search(path) if body.get("model") is None else None
        return body if deployment is None else {**body, "model": deployment[1]}

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Parse a request body."""
        fields.read_flag(body, "stream")
        fields.read_object(body.get("stream_options"), "stream_options")
        return read(body, self._default_model)

    def write(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Build the JSON object for a ``ChatCompletion``."""
        return _as_json(reply, f"chatcmpl-{number}", request.model)

    def events(self, stream: Stream, body: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Yield the chunks, followed by the usage if ``stream_options`` requests it."""
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return _chunks(stream, include_usage=usage)


async def _chunks(stream: Stream, *, include_usage: bool) -> AsyncIterator[dict[str, Any]]:
    head = {name: stream.head[name] for name in ("id", "created", "model", "service_tier")}
    head["object"] = "chat.completion.chunk"
    if include_usage:
        head["usage"] = None

    def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
        return {**head, "choices": [choice]}

    content = stream.head["choices"][0]["message"]["content"]
    yield chunk({"role": "assistant", "content": None if content is None else ""})
    async for piece in stream.thoughts:
        yield chunk({"reasoning_content": piece})
    async for piece in stream.text:
        yield chunk({"content": piece})
    [choice] = stream.answer["choices"]
    message = choice["message"]
    for index, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        opening = {"name": name, "arguments": ""}
        delta = {"index": index, "id": call["id"], "type": "function", "function": opening}
        yield chunk({"tool_calls": [delta]})
        for piece in deltas(arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    last = chunk({}, choice["finish_reason"])
    if "logprobs" in choice:
        last["choices"][0]["logprobs"] = choice["logprobs"]
    yield last
    if include_usage:
        yield {**head, "choices": [], "usage": stream.answer["usage"]}
