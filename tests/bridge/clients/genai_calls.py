"""Calls and conversations with Google's SDK, written in all the usual styles."""

import typing
from collections.abc import Sequence
from functools import partial
from typing import Any

from google.genai import types

from evert import AgentClient, BlockingAgentClient

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
DECLARED = [
    types.FunctionDeclaration(name=name, description="It.", parameters_json_schema=SCHEMA)
    for name in ("add", "look")
]
CONFIG: dict[str, Any] = {
    "tools": [types.Tool(function_declarations=DECLARED)],
    "thinking_config": {"include_thoughts": True},
    "automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True),
}


def _request(client: Any, contents: Any, config: dict[str, Any]) -> Any:
    return {"model": client.model, "contents": contents, "config": {**CONFIG, **config}}


async def genai_whole(client: AgentClient, contents: Any = "Hello?", **config: Any) -> Any:
    return await client.genai.aio.models.generate_content(**_request(client, contents, config))


async def genai_events(client: AgentClient, contents: Any = "Hello?", **config: Any) -> list[Any]:
    models = client.genai.aio.models
    chunks = await models.generate_content_stream(**_request(client, contents, config))
    return [chunk async for chunk in chunks]


def genai_blocking(client: BlockingAgentClient | AgentClient) -> tuple[Any, list[Any]]:
    fields, models = _request(client, "Hello?", {}), client.genai.models
    return models.generate_content(**fields), [*models.generate_content_stream(**fields)]


def parts_of(response: types.GenerateContentResponse) -> list[types.Part]:
    [candidate] = response.candidates or []
    assert candidate.content is not None
    assert candidate.content.role == "model"
    return candidate.content.parts or []


def assert_genai_typed(response: types.GenerateContentResponse) -> None:
    """Assert that a response and its parts only have fields declared by their classes."""
    assert type(response) is types.GenerateContentResponse
    assert response.sdk_http_response is not None
    assert not response.model_extra
    for part in parts_of(response):
        assert type(part) is types.Part
        assert part.model_fields_set <= {"text", "thought", "function_call"}
        assert not part.model_extra


def said_by(responses: Sequence[Any]) -> tuple[str, str, list[Any]]:
    """Return the text, thoughts and calls, without call ids because those always differ."""
    parts = [part for response in responses for part in parts_of(response)]
    texts = [part.text or "" for part in parts if not part.thought]
    thoughts = [part.text or "" for part in parts if part.thought]
    calls = [part.function_call for part in parts if part.function_call]
    return "".join(texts), "".join(thoughts), [(call.name, call.args) for call in calls]


def _results(chunks: Sequence[Any], number: int, *, has_ids: bool = True) -> list[Any]:
    """Return the parts of the next user message: tool results, or text if no tool was called."""
    calls = [call for chunk in chunks for call in chunk.function_calls or ()]
    for call in calls:
        call.id = call.id if has_ids else None
    results = [
        types.FunctionResponse(id=call.id, name=call.name, response={"result": "größer"})
        for call in calls
    ]
    parts = [types.Part(function_response=result) for result in results]
    return parts or [types.Part(text=f"Go on, {number}.")]


async def conversation(
    client: AgentClient, rounds: int, *, stream: bool, has_ids: bool = True
) -> None:
    """Hold a conversation, appending the content of each answer or of each streamed chunk."""
    contents: list[Any] = [types.UserContent("Hello?")]
    for number in range(rounds):
        ask = genai_events if stream else genai_whole
        answer = await ask(client, contents)
        chunks = answer if isinstance(answer, list) else [answer]
        contents += [chunk.candidates[0].content for chunk in chunks]
        contents.append(types.UserContent(_results(chunks, number, has_ids=has_ids)))


async def chat(client: AgentClient, rounds: int, *, stream: bool) -> None:
    """Hold a conversation through the SDK's chat object, which keeps the history."""
    chat = client.genai.aio.chats.create(model=client.model, config=typing.cast("Any", {**CONFIG}))
    message: Any = "Hello?"
    for number in range(rounds):
        if stream:
            chunks = [chunk async for chunk in await chat.send_message_stream(message)]
        else:
            chunks = [await chat.send_message(message)]
        message = _results(chunks, number)


CONVERSATIONS: dict[str, Any] = {
    "genai": conversation,
    "genai's chat": chat,
    "ids dropped": partial(conversation, has_ids=False),  # LiteLLM drops them
}
