"""Requests in every dialect with slots in place of all texts, and functions to render them.

A slot is a key or value that starts with "@". A slot may occur several times, such as in a tool and
in a call to that tool. ``Json`` is replaced with the JSON text of its value.
"""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import openai
import tinker
from openai.types.chat import ChatCompletionMessage
from tests.bridge.tokens.flagged_tokenizers import make_renderer
from tinker_cookbook.renderers import Message, Renderer

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.messages import read_message, read_tools
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects import chat_completions
from evert.bridge.clients.dialects.api import ApiResponse
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.conversations.matching import ConversationBook
from evert.bridge.episode.agent import inspect_agent
from evert.bridge.episode.episode import Episode
from evert.bridge.tokens.renderer import PromptRenderer


@dataclass(frozen=True)
class Json:
    """Placeholder for a value's JSON text. If ``escaped``, every character is a \\u escape."""

    value: Any
    escaped: bool = False


def hidden(text: str) -> str:
    """Return a string as JSON with all characters written as \\u escapes."""
    units = text.encode("utf-16-be")
    pairs = zip(units[::2], units[1::2], strict=True)
    return '"' + "".join(f"\\u{high:02x}{low:02x}" for high, low in pairs) + '"'


def _hidden_json(value: Any) -> str:
    if isinstance(value, str):
        return hidden(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_hidden_json, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{hidden(k)}: {_hidden_json(v)}' for k, v in value.items())}}}"
    return json.dumps(value)


def filled(value: Any, texts: Mapping[str, str]) -> Any:
    """Fill the slots of a shape. A slot without a text is replaced with its name."""
    if isinstance(value, str):
        return texts.get(value, value[1:]) if value.startswith("@") else value
    if isinstance(value, Json):
        inner = filled(value.value, texts)
        return _hidden_json(inner) if value.escaped else json.dumps(inner)
    if isinstance(value, list):
        return [filled(item, texts) for item in value]
    if isinstance(value, dict):
        return {filled(key, texts): filled(item, texts) for key, item in value.items()}
    return value


def slots(value: Any) -> list[str]:
    """Return the slots of a shape in order."""
    return list(dict.fromkeys(_slots(value)))


def _slots(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from [value] if value.startswith("@") else []
    elif isinstance(value, Json):
        yield from _slots(value.value)
    elif isinstance(value, list):
        for item in value:
            yield from _slots(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _slots(key)
            yield from _slots(item)


# -- shapes --------------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "title": "@schema_title",
    "description": "@schema_description",
    "properties": {
        "@parameter": {"type": "string", "title": "@title", "description": "@parameter_description",
            "enum": ["@enum", "@enum_2"], "default": "@default", "pattern": "@pattern",
            "examples": ["@example"], "@extra_key": "@extra_value",
            "@extra_object": {"@extra_inner": ["@extra_item"]}},
        "deep": {"type": "object",
            "properties": {"@inner": {"type": "array",
                "items": {"type": "string", "description": "@deep"}}},
            "required": ["@inner"]},
        "either": {"anyOf": [{"type": "string", "const": "@const"}, {"type": "null"}]}},
    "required": ["@parameter"],
    "$defs": {"@definition": {"type": "string", "description": "@definition_description"}},
    "@schema_key": {"@schema_inner": "@schema_value"},
}  # fmt: skip
PLAIN_SCHEMA = {
    "type": "object",
    "properties": {"@parameter": {"type": "string", "description": "@parameter_description"},
        "@other": {"type": "string", "enum": ["@enum"], "default": "@default"}},
    "required": ["@parameter"],
}  # fmt: skip
ARGUMENTS: Any = {
    "@key": "@value",
    "list": ["@item", {"@inner_key": "@inner_value"}],
    "deep": {"@deep_key": {"@deeper_key": "@deeper_value"}},
    "number": 1,
}


def said(*contents: Any, **more: Any) -> dict[str, Any]:
    """Return an assistant message. Several arguments become a list of parts."""
    content = contents[0] if len(contents) == 1 else [*contents]
    return {"role": "assistant", "content": content, **more}


def system(slot: Any = "@system", role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": slot}


def user(content: Any = "@asked") -> dict[str, Any]:
    return {"role": "user", "content": content}


def text(slot: str) -> dict[str, Any]:
    return {"type": "text", "text": slot}


def tool(schema: Any = PLAIN_SCHEMA, name: str = "@tool") -> dict[str, Any]:
    function = {"name": name, "description": "@description", "parameters": schema}
    return {"type": "function", "function": function}


def call(arguments: Any, id: str = "@id", name: str = "@tool") -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def calling(arguments: Any, **more: Any) -> list[dict[str, Any]]:
    """Return a question, a reply with a tool call, and the call's result."""
    result = {"role": "tool", "tool_call_id": "@id", "content": "@result"}
    return [user("@task"), said("@said", tool_calls=[call(arguments)], **more), result]


def talk(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


CHAT: dict[str, Any] = {
    "texts": talk(system(), {**user([text("@part"), text("@part_2")]), "name": "@user_name"},
        said("@said", name="@assistant_name"), user(), user("@asked_2")),
    "parts": talk({"role": "system", "content": [text("@system"), text("@system_2")]},
        user("@task"), said(text("@said"), text("@said_2")), user()),
    "developer": talk(system("@developer", "developer"), user()),
    "systems": talk(system(), user("@task"), system("@system_2"), system("@developer", "developer"),
        user()),
    "assistants": talk(user("@task"), said("@said"), said("@said_2"), user()),
    "prefilled": talk(user("@task"), said("@said")),
    "reasoning": talk(user("@task"), said("@said", reasoning_content="@reasoning"), user(),
        said([text("@part")], reasoning="@reasoning_2"), user("@asked_2")),
    "thinking": talk(user("@task"),
        said(text("@said"), {"type": "thinking", "thinking": "@thinking"}, text("@b")), user()),
    "no user": talk(system(), said("@said")),
    "schema": talk(system(), user(), tools=[tool(SCHEMA), tool(name="@tool_2")]),
    "tools": talk(user(), tools=[tool(), tool(name="@tool_2")], tool_choice="required"),
    "calls": talk(*calling(Json(ARGUMENTS)), user(), tools=[tool()]),
    "calls without tools": talk(*calling(Json(ARGUMENTS)), user()),
    "results last": talk(*calling(Json(ARGUMENTS), reasoning_content="@reasoning"), tools=[tool()]),
    "escaped calls": talk(*calling(Json(ARGUMENTS, escaped=True)), user()),
    "calls in calls": talk(*calling(Json(Json(ARGUMENTS))), user()),
    "escaped twice": talk(*calling(Json(Json(ARGUMENTS, escaped=True), escaped=True)), user()),
    "no object": talk(*calling(Json(["@item", "@item_2"])), user()),
    "a string": talk(*calling(Json("@item")), user()),
    "two results": talk(user("@task"),
        said(None,
            tool_calls=[call(Json({"x": "@x_1"}), "@id_1", "@tool_1"),
                call(Json({"x": "@x_2"}), "@id_2", "@tool_2")]),
        {"role": "tool", "tool_call_id": "@id_2", "name": "@result_name", "content": "@result_2"},
        {"role": "tool", "tool_call_id": "@id_1", "content": [text("@result"), text("@part")]},
        user()),
    "a stray result": talk(user("@task"),
        {"role": "tool", "tool_call_id": "@id", "name": "@n", "content": "@result"}),
    "forced": talk(user(), tools=[tool()],
        tool_choice={"type": "function", "function": {"name": "@tool"}}),
    "format": talk(user(),
        response_format={"type": "json_schema",
            "json_schema": {"name": "@format_name", "description": "@format_description",
                "schema": {**PLAIN_SCHEMA, "title": "@schema_title"}}}),
    "settings": talk(user(), stop=["@stop", "@stop_2"], user="@user",
        metadata={"@metadata": "@metadata_value"}, safety_identifier="@identifier",
        prompt_cache_key="@cache_key"),
}  # fmt: skip


def block(slot: str) -> dict[str, Any]:
    return {"type": "input_text", "text": slot}


_CALLED = {"type": "function_call", "call_id": "@id", "name": "@tool", "arguments": Json(ARGUMENTS)}
_OUTPUT = {"type": "function_call_output", "call_id": "@id", "output": "@result"}
_FUNCTION = {"type": "function", "name": "@tool", "description": "@description"}

RESPONSES: dict[str, Any] = {
    "text": {"instructions": "@instructions", "input": "@asked"},
    "items": {"instructions": [{"role": "developer", "content": "@instructions"}],
        "input": [user([block("@part"), block("@part_2")]),
            said([{"type": "output_text", "text": "@said"}]), user("@task"),
            {"type": "message", "role": "assistant",
                "content": [{"type": "refusal", "refusal": "@refusal"}]}, user()]},
    "developer": {"instructions": "@instructions",
        "input": [system("@developer", "developer"), user()]},
    "reasoning": {"input": [user("@task"),
        {"type": "reasoning", "id": "r", "summary": [],
            "content": [{"type": "reasoning_text", "text": "@reasoning"}]},
        {"type": "message", "role": "assistant",
            "content": [{"type": "output_text", "text": "@said"},
                {"type": "output_text", "text": "@b"}]}, user(),
        {"type": "reasoning", "id": "s",
            "summary": [{"type": "summary_text", "text": "@summary"},
                {"type": "summary_text", "text": "@summary_2"}]}, said("@said_2"),
        user("@asked_2")]},
    "schema": {"instructions": "@instructions", "input": "@asked",
        "tools": [{**_FUNCTION, "parameters": SCHEMA, "strict": True},
            {"type": "custom", "name": "@custom", "description": "@custom_description",
                "format": {"type": "grammar", "syntax": "lark", "definition": "@grammar"}},
            {"type": "namespace", "name": "@namespace", "description": "@namespace_description",
                "tools": [{"type": "function", "name": "@inner_tool",
                    "parameters": PLAIN_SCHEMA}]}],
        "tool_choice": {"type": "function", "name": "@tool"}},
    "calls": {
        "input": [user("@task"),
            {"type": "reasoning", "id": "r", "summary": [], "content": [{"text": "@reasoning"}]},
            _CALLED,
            {"type": "custom_tool_call", "call_id": "@id_2", "name": "@custom", "input": "@input",
                "namespace": "@namespace"}, _OUTPUT,
            {"type": "custom_tool_call_output", "call_id": "@id_2", "output": [block("@part")]}],
        "tools": [{**_FUNCTION, "parameters": PLAIN_SCHEMA}]},
    "calls without tools": {"input": [user("@task"), _CALLED, _OUTPUT, user()]},
    "format": {"input": "@asked",
        "text": {"format": {"type": "json_schema", "name": "@format_name", "schema": SCHEMA}}},
    "settings": {"input": "@asked", "metadata": {"@metadata": "@metadata_value"}, "user": "@user",
        "prompt_cache_key": "@cache_key"},
}  # fmt: skip


USED = {"type": "tool_use", "id": "@id", "name": "@tool", "input": ARGUMENTS}


def thinking(slot: str, signature: str = "s") -> dict[str, Any]:
    return {"type": "thinking", "thinking": slot, "signature": signature}


def result(content: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "@id", "content": content}


ANTHROPIC: dict[str, Any] = {
    "texts": {"system": "@system",
        "messages": [user([text("@part"), text("@part_2")]), said("@said"), user()]},
    "blocks": {"system": [text("@system"), text("@system_2")],
        "messages": [user("@task"), said(text("@said"), text("@said_2")), user()]},
    "systems": {"system": "@system",
        "messages": [user("@task"), {"role": "system", "content": [text("@system_2")]}, user()]},
    "thinking": {"messages": [user("@task"),
        said(thinking("@thinking", "@signature"), text("@said"),
            {"type": "redacted_thinking", "data": "@redacted"}, thinking("@thinking_2"),
            text("@said_2")), user()]},
    "schema": {"system": "@system", "messages": [user()],
        "tools": [{"name": "@tool", "description": "@description", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "@tool"}},
    "calls": {
        "messages": [user("@task"), said(thinking("@thinking"), text("@said"), USED),
            user([result([text("@result"), text("@result_2")]), text("@asked")])],
        "tools": [{"name": "@tool", "description": "@description", "input_schema": PLAIN_SCHEMA}]},
    "calls without tools": {"messages": [user("@task"), said([USED]), user([result("@result")])]},
    "format": {"messages": [user()],
        "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    "settings": {"messages": [user()], "stop_sequences": ["@stop"],
        "metadata": {"user_id": "@user_id"}},
}  # fmt: skip
for _shape in ANTHROPIC.values():
    _shape["max_tokens"] = 20


def parts(*texts: Any, role: str = "user") -> dict[str, Any]:
    written = [{"text": part} if isinstance(part, str) else part for part in texts]
    return {"role": role, "parts": written}


_OPENAPI = {
    "type": "OBJECT",
    "description": "@schema_description",
    "properties": {
        "@parameter": {"type": "STRING", "title": "@title", "description": "@parameter_description",
            "enum": ["@enum"], "default": "@default", "format": "@string_format", "nullable": True},
        "list": {"type": "ARRAY",
            "items": {"type": "OBJECT",
                "properties": {"@inner": {"type": "STRING", "description": "@deep"}}}}},
    "required": ["@parameter"],
}  # fmt: skip
_USED = {"functionCall": {"id": "@id", "name": "@tool", "args": ARGUMENTS}}
_RESULT = {
    "functionResponse": {"id": "@id", "name": "@result_name",
        "response": {"@result_key": "@result", "list": ["@result_item"]}},
}  # fmt: skip
_DECLARED = {"name": "@tool", "description": "@description", "parameters": _OPENAPI}

GEMINI: dict[str, Any] = {
    "texts": {"systemInstruction": {"parts": [{"text": "@system"}, {"text": "@system_2"}]},
        "contents": [parts("@part", "@part_2"), parts("@said", "@b", role="model"),
            parts("@asked")]},
    "thoughts": {"contents": [parts("@task"),
        parts({"text": "@thought", "thought": True}, "@said", role="model"),
        parts({"text": "@thought_2", "thought": True, "thoughtSignature": "@s"}, "@b",
            role="model"), parts("@asked")]},
    "schema": {"systemInstruction": {"parts": [{"text": "@system"}]}, "contents": [parts("@asked")],
        "tools": [{"functionDeclarations": [_DECLARED,
            {"name": "@tool_2", "parametersJsonSchema": SCHEMA}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY",
            "allowedFunctionNames": ["@tool"]}}},
    "calls": {
        "contents": [parts("@task"),
            parts({"text": "@thought", "thought": True}, "@said", _USED, role="model"),
            parts(_RESULT, "@asked")],
        "tools": [{"functionDeclarations": [_DECLARED]}]},
    "calls without tools": {"contents": [parts("@task"), parts(_USED, role="model"),
        parts(_RESULT)]},
    "format": {"contents": [parts("@asked")],
        "generationConfig": {"responseMimeType": "application/json", "responseSchema": _OPENAPI}},
    "settings": {"contents": [parts("@asked")], "generationConfig": {"stopSequences": ["@stop"]},
        "labels": {"@label": "@label_value"}},
}  # fmt: skip


def _with_objects(shape: Any) -> Any:
    """Return whether a shape contains replies that could be sent as SDK objects."""
    replies = [message for message in shape["messages"] if message["role"] == "assistant"]
    return any(replies) and not any(isinstance(reply["content"], list) for reply in replies)


SHAPES: dict[str, dict[str, Any]] = {
    "handle": CHAT,
    "objects": {name: shape for name, shape in CHAT.items() if _with_objects(shape)},
    "/v1/chat/completions": CHAT,
    "/v1/responses": RESPONSES,
    "/v1/messages": ANTHROPIC,
    "/v1beta/models/policy:generateContent": GEMINI,
}
"""Shapes by dialect: the native client, the native client with SDK objects, or an endpoint path."""

EVERY = [(dialect, name) for dialect, shapes in SHAPES.items() for name in shapes]

ONCE = [(dialect, name) for dialect, name in EVERY if dialect not in ("objects", "handle")]
"""Like ``EVERY``, but with each distinct request only once."""


# -- prompts -------------------------------------------------------------------------------------


@cache
def prompt_renderer(name: str) -> PromptRenderer:
    """Return the prompt renderer for a renderer name."""
    return PromptRenderer(make_renderer(name))


def read(dialect: str, body: Any) -> ChatRequest:
    """Read a request from its body.

    Raises:
        openai.BadRequestError: The request is rejected.
    """
    if dialect == "handle":
        return chat_completions.read(body, "policy", strict=True)
    if dialect == "objects":
        messages = [_object(message) for message in body["messages"]]
        return chat_completions.read({**body, "messages": messages}, "policy", strict=True)
    episode = Episode(inspect_agent(lambda client: 0.0), _loop(), [["policy"]])
    endpoint = Endpoint(episode, "policy", prompt_renderer("qwen3"))
    call = endpoint.read(endpoint.route("POST", dialect, json.dumps(body).encode()))
    if isinstance(call, ApiResponse):
        raise bad_request(call.content.decode())
    return call.request


def _object(message: Any) -> Any:
    return ChatCompletionMessage(**message) if message["role"] == "assistant" else message


@cache
def _loop() -> asyncio.AbstractEventLoop:
    return asyncio.new_event_loop()


def prompt_of(name: str, dialect: str, body: Any) -> list[int] | None:
    """Return the tokens that the policy would see, or None if the request gets a 400."""
    renderer = prompt_renderer(name)
    try:
        conversation = ConversationBook(renderer).observe(read(dialect, body), "", renderer)
    except openai.BadRequestError:
        return None
    return text_tokens(conversation.prompt())


def text_tokens(prompt: tinker.ModelInput) -> list[int]:
    """Return the text tokens of a prompt."""
    return [token for chunk in prompt.chunks for token in getattr(chunk, "tokens", ())]


def plain_prompt_of(name: str, dialect: str, body: Any) -> list[int] | None:
    """Return the prompt that the Cookbook renderer builds without escaping any texts.

    Returns None if the renderer does not support the request.
    """
    renderer = make_renderer(name)
    if hasattr(renderer, "system_role_as_user"):
        vars(renderer)["system_role_as_user"] = True  # evert sets this too
    try:
        request = read(dialect, body)
        return text_tokens(renderer.build_generation_prompt(_messages(request, renderer)))
    except Exception:
        return None


def _messages(request: ChatRequest, renderer: Renderer) -> list[Message]:
    names: dict[str, str] = {}
    messages: list[Message] = []
    for index, message_sent in enumerate(request.messages):
        message = read_message(message_sent, index, names)
        names |= {call.id or "": call.function.name for call in message.get("tool_calls", ())}
        messages.append(message)
    if request.tools:
        has_system = messages[0]["role"] == "system" and isinstance(messages[0]["content"], str)
        system = str(messages.pop(0)["content"]) if has_system else ""
        tools = read_tools(request.tools)
        messages[:0] = renderer.create_conversation_prefix_with_tools(tools, system)
    return messages if request.format is None else [*messages, request.format.request()]
