"""Gemini's ``generateContent`` API, used by google-genai and Google's Agent Development Kit.

https://ai.google.dev/api/generate-content

The path contains the model name and specifies whether to stream
(``/models/NAME:streamGenerateContent``). Generation settings are in ``generationConfig``.
"""

import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

from evert.bridge.chat import fields
from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.formats import ANY_VALUE, ReplyFormat
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects.dialect import Dialect
from evert.bridge.clients.dialects.events import Stream, bare_events
from evert.bridge.clients.dialects.fields import field_policy, schema_text
from evert.bridge.clients.dialects.gemini_contents import read_contents, read_system
from evert.bridge.clients.dialects.gemini_tools import (
    CallIds,
    read_calling,
    read_fields,
    read_tools,
    schema_in,
)
from evert.bridge.clients.dialects.shapes import call_arguments

FIELDS = field_policy("gemini")
"""How to handle each request field (``fields.toml``)."""

CONFIG_FIELDS = field_policy("gemini_generation_config")
"""How to handle each field in ``generationConfig``."""

METHOD = re.compile(
    r"/(?:models|tunedModels|endpoints)/(.+):(generateContent|streamGenerateContent|countTokens)$"
)
"""Matches the end of a path, which contains the model name and the method."""


def method_of(path: str) -> re.Match[str] | None:
    """Match the model and the method at the end of a path. Returns None for other paths."""
    # Check the suffix first, because the pattern alone is slow (it tries every slash).
    ends = (":generateContent", ":streamGenerateContent", ":countTokens")
    return METHOD.search(path) if path.endswith(ends) else None


_SAMPLING = {"temperature": "temperature", "top_p": "topP", "top_k": "topK", "seed": "seed"}

_FINISH = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP"}

STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    413: "INVALID_ARGUMENT",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
"""Google's names for HTTP status codes."""


class Gemini(Dialect):
    """Gemini's API. There is one instance per rollout, which stores the ids of tool calls."""

    ping = b"\n"  # Google's SDK cannot handle comments in a stream
    framed = staticmethod(bare_events)

    def __init__(self, default_model: str) -> None:
        super().__init__(default_model)
        self._ids = CallIds()

    def addressed(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add ``model`` and ``stream`` from the path to the body."""
        match = method_of(path)
        if match is None:
            return body
        request = body.get("generateContentRequest")  # for countTokens
        inner = request if isinstance(request, Mapping) else body
        return {**inner, "model": match[1], "stream": match[2] == "streamGenerateContent"}

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """Parse a request body."""
        request = read_fields(body, "body")
        FIELDS.check(request, strict=False)
        config = read_fields(request.get("generationConfig", {}), "generationConfig")
        CONFIG_FIELDS.check(config, strict=False)
        tools = read_tools(request.get("tools"))
        may_call, must_call = read_calling(request.get("toolConfig"), tools)
        messages = [
            *read_system(request.get("systemInstruction")),
            *read_contents(fields.read_messages(request.get("contents"), "contents")),
        ]
        self._ids.restore(messages)
        return ChatRequest(
            fields.read_model(request.get("model"), self._default_model),
            messages,
            tools if tools and may_call else None,
            fields.read_cap(config, "maxOutputTokens"),
            fields.read_stop(config.get("stopSequences"), "stopSequences"),
            _read_format(config, must_call),
            may_call=may_call,
            logprobs=fields.read_flag(config, "responseLogprobs"),
            train=fields.read_train(request),
        )

    def write(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Build the JSON object for a ``GenerateContentResponse``."""
        parts = [*_parts(reply, thoughts=_wants_thoughts(body))]
        self._ids.remember(request.messages, parts)
        candidate = {**_candidate(parts), "finishReason": _FINISH[reply.finish_reason]}
        if reply.logprobs is not None:
            candidate["logprobsResult"] = {
                "chosenCandidates": [
                    {"token": token.text, "logProbability": token.logprob}
                    for token in reply.logprobs
                ]
            }
        return {
            "candidates": [candidate],
            "usageMetadata": {
                "promptTokenCount": reply.prompt_tokens,
                "promptTokensDetails": [{"modality": "TEXT", "tokenCount": reply.prompt_tokens}],
                "candidatesTokenCount": reply.completion_tokens,
                "totalTokenCount": reply.prompt_tokens + reply.completion_tokens,
            },
            "modelVersion": request.model,
            "responseId": number,
        }

    async def events(
        self, stream: Stream, body: Mapping[str, Any]
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield one response per piece. The last response has all fields of the complete reply."""
        head = {name: stream.head[name] for name in ("modelVersion", "responseId")}
        async for piece in stream.thoughts:
            if _wants_thoughts(body):
                yield {"candidates": [_candidate([{"text": piece, "thought": True}])], **head}
        last: dict[str, Any] = {"text": ""}
        async for piece in stream.text:
            if last["text"]:
                yield {"candidates": [_candidate([last])], **head}
            last = {"text": piece}
        [candidate] = stream.answer["candidates"]
        calls = [part for part in candidate["content"]["parts"] if "functionCall" in part]
        *earlier, last = [last, *calls] if last["text"] or not calls else calls
        for part in earlier:
            yield {"candidates": [_candidate([part])], **head}
        yield {**stream.answer, "candidates": [{**candidate, **_candidate([last])}]}

    def sampling(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the client's sampling parameters."""
        config = body.get("generationConfig") or {}
        return super().sampling({name: config.get(field) for name, field in _SAMPLING.items()})

    def counted(self, count: int) -> dict[str, Any]:
        """Build the JSON object for a ``CountTokensResponse``."""
        return {"totalTokens": count}

    def error(self, error: Mapping[str, Any], status: int) -> dict[str, Any]:
        """Return the JSON object for an error, in the format of ``google.rpc.Status``."""
        reason = error.get("code") or error.get("type") or "invalid_request_error"
        kind = "type.googleapis.com/google.rpc.ErrorInfo"
        return {
            "error": {
                "code": status,
                "message": error["message"],
                "status": STATUSES.get(status, "UNKNOWN"),
                "details": [{"@type": kind, "reason": reason, "domain": "evert"}],
            }
        }


# -- reading -------------------------------------------------------------------------------------


def _read_format(config: Mapping[str, Any], must_call: tuple[str, ...]) -> ReplyFormat | None:
    kind = config.get("responseMimeType", "text/plain")
    names = ("responseJsonSchema", "responseSchema")
    name = next((name for name in names if name in config), None)
    if kind not in ("text/plain", "application/json"):
        raise bad_request(
            f"'responseMimeType' is {kind!r:.200}; expected 'text/plain' or 'application/json'. "
            "To choose from several words, use 'application/json' and a schema with an enum.",
            param="responseMimeType",
        )
    if name is None:
        schema = None if kind == "text/plain" else ANY_VALUE
        return ReplyFormat(schema, must_call) if schema or must_call else None
    if kind == "text/plain":
        raise bad_request(f"'{name}' needs responseMimeType='application/json'.", param=name)
    return ReplyFormat(schema_text(schema_in(config, *names), name), must_call)


# -- writing -------------------------------------------------------------------------------------


def _wants_thoughts(body: Mapping[str, Any]) -> bool:
    config = read_fields(read_fields(body, "body").get("generationConfig", {}), "generationConfig")
    thinking = config.get("thinkingConfig")
    if not isinstance(thinking, Mapping):
        return False
    return read_fields(thinking, "thinkingConfig").get("includeThoughts") is True


def _candidate(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"content": {"role": "model", "parts": parts}, "index": 0}


def _parts(reply: Reply, *, thoughts: bool) -> Iterator[dict[str, Any]]:
    if thoughts and reply.reasoning:
        yield {"text": reply.reasoning, "thought": True}
    if reply.text or not reply.tool_calls:
        yield {"text": reply.text}
    for call in reply.tool_calls:
        identity = {"id": call.id, "name": call.function.name}
        yield {"functionCall": {**identity, "args": call_arguments(call)}}
