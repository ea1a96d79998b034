"""OpenAI's chat completions: the dialect the native handle and most frameworks speak.

https://platform.openai.com/docs/api-reference/chat
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice, ChoiceLogprobs
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)
from openai.types.chat.chat_completion_token_logprob import ChatCompletionTokenLogprob
from openai.types.completion_usage import CompletionUsage
from tinker_cookbook.renderers.base import ToolCall

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.fields import (
    is_absent,
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
from evert.bridge.clients.dialects.events import deltas, text_deltas, unnamed_events
from evert.bridge.clients.dialects.fields import (
    field_policy,
    forced_tools,
    read_flag,
    read_format_field,
    written_logprobs,
)

FIELDS = field_policy("chat_completions")
"""Of every request field (``fields.toml``)."""

_PLAIN = frozenset({"model", "messages"})


def read(fields: Mapping[str, Any], default_model: str, *, strict: bool = False) -> ChatRequest:
    """Check the fields of a call and keep what counts."""
    messages = read_messages(fields.get("messages"))
    model = read_model(fields.get("model"), default_model)
    if _PLAIN.issuperset(fields):  # most calls: nothing more to look through
        return ChatRequest(model, messages)
    FIELDS.check(fields, strict=strict)
    choice = fields.get("tool_choice")
    tools = None if choice == "none" else read_tool_list(fields.get("tools"))
    must_call = _must_call(choice, tools)
    return ChatRequest(
        model,
        messages,
        tools,
        read_cap(fields, "max_tokens", "max_completion_tokens"),
        read_stop(fields.get("stop")),
        read_format_field(
            fields.get("response_format"), must_call, "response_format", "json_schema"
        ),
        may_call=choice != "none",
        logprobs=read_flag(fields, "logprobs"),
        train=read_train(fields),
    )


def _must_call(choice: object, tools: list[Any] | None) -> tuple[str, ...]:
    if is_absent(choice) or choice in ("auto", "none"):
        return ()
    if choice == "required":
        return forced_tools(choice, None, tools)
    function = choice.get("function") if isinstance(choice, Mapping) else None
    if isinstance(function, Mapping) and isinstance(function.get("name"), str):
        return forced_tools(None, function["name"], tools)
    raise bad_request(
        f"'tool_choice'={choice!r:.200}; expected 'auto', 'none', 'required' or "
        "{'type': 'function', 'function': {'name': ...}}.",
        param="tool_choice",
    )


def completion(reply: Reply, *, id: str, model: str) -> ChatCompletion:
    """The SDK object an agent gets; reasoning goes to ``message.reasoning_content``.

    Usage is counted in tokens of the observation and of the action.
    """
    message = ChatCompletionMessage(
        role="assistant",
        content=reply.text or (None if reply.tool_calls else ""),
        tool_calls=[_tool_call(call) for call in reply.tool_calls] if reply.tool_calls else None,
    )
    if reply.reasoning is not None:
        message.reasoning_content = reply.reasoning  # type: ignore[attr-defined]
    choice = Choice(index=0, finish_reason=reply.finish_reason, message=message)
    if reply.logprobs is not None:
        tokens = [
            ChatCompletionTokenLogprob(**fields) for fields in written_logprobs(reply.logprobs)
        ]
        choice.logprobs = ChoiceLogprobs(content=tokens, refusal=None)
    return ChatCompletion(
        id=id,
        object="chat.completion",
        created=int(time.time()),
        model=model,
        choices=[choice],
        usage=CompletionUsage(
            prompt_tokens=reply.prompt_tokens,
            completion_tokens=reply.completion_tokens,
            total_tokens=reply.prompt_tokens + reply.completion_tokens,
        ),
    )


def _tool_call(call: ToolCall) -> ChatCompletionMessageFunctionToolCall:
    return ChatCompletionMessageFunctionToolCall(
        id=call.id or "",
        type="function",
        function=Function(name=call.function.name, arguments=call.function.arguments),
    )


class ChatCompletions(Dialect):
    """The dialect over the wire."""

    def read(self, body: Mapping[str, Any]) -> ChatRequest:
        """The request of a body."""
        read_flag(body, "stream")
        read_object(body.get("stream_options"), "stream_options")
        return read(body, self._default_model)

    def write(
        self, reply: Reply, request: ChatRequest, number: str, body: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The JSON object of a ``ChatCompletion``."""
        whole = completion(reply, id=f"chatcmpl-{number}", model=request.model)
        return whole.model_dump(mode="json", exclude_unset=True)

    def events(self, whole: Mapping[str, Any], body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """The chunks, with the usage at their end where it is asked for."""
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return _chunks(whole, include_usage=usage)

    def framed(self, events: Iterable[Mapping[str, Any]]) -> bytes:
        """Chunks without names, then ``[DONE]``."""
        return unnamed_events(events)


def _chunks(whole: Mapping[str, Any], *, include_usage: bool) -> Iterator[dict[str, Any]]:
    [choice] = whole["choices"]
    message = choice["message"]
    head = {name: whole[name] for name in ("id", "created", "model")}
    head["object"] = "chat.completion.chunk"
    if include_usage:
        head["usage"] = None

    def chunk(delta: Mapping[str, Any], finish_reason: str | None = None) -> dict[str, Any]:
        return {
            **head,
            "choices": [{"index": 0, "delta": delta, "finish_reason": finish_reason}],
        }

    yield chunk({"role": "assistant", "content": None if message["content"] is None else ""})
    for piece in deltas(message.get("reasoning_content") or ""):
        yield chunk({"reasoning_content": piece})
    known = choice.get("logprobs")
    for piece, tokens in text_deltas(message["content"] or "", known and known["content"]):
        spoken = chunk({"content": piece})
        if tokens is not None:
            spoken["choices"][0]["logprobs"] = {"content": tokens, "refusal": None}
        yield spoken
    for index, call in enumerate(message.get("tool_calls") or ()):
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        opening = {"name": name, "arguments": ""}
        named = {"index": index, "id": call["id"], "type": "function", "function": opening}
        yield chunk({"tool_calls": [named]})
        for piece in deltas(arguments):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, choice["finish_reason"])
    if include_usage:
        yield {**head, "choices": [], "usage": whole["usage"]}
