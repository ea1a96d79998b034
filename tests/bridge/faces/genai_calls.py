"""How Google's SDK asks, and holds a conversation in each way that its users do."""

import json
import typing
from collections.abc import Sequence
from typing import Any

from google.genai import types

from evert import AgentClient, BlockingAgentClient

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
TOOLS = [
    types.Tool(
        function_declarations=[
            types.FunctionDeclaration(name=name, description="It.", parameters_json_schema=SCHEMA)
            for name in ("add", "look")
        ]
    )
]
CONFIG: dict[str, Any] = {
    "tools": TOOLS,
    "thinking_config": {"include_thoughts": True},
    "automatic_function_calling": types.AutomaticFunctionCallingConfig(disable=True),
}


def _asked(client: Any, contents: Any, config: dict[str, Any]) -> Any:
    return {"model": client.model, "contents": contents, "config": {**CONFIG, **config}}


async def genai_whole(client: AgentClient, contents: Any = "Hello?", **config: Any) -> Any:
    return await client.genai.aio.models.generate_content(**_asked(client, contents, config))


async def genai_events(client: AgentClient, contents: Any = "Hello?", **config: Any) -> list[Any]:
    models = client.genai.aio.models
    chunks = await models.generate_content_stream(**_asked(client, contents, config))
    return [chunk async for chunk in chunks]


def genai_blocking(client: BlockingAgentClient | AgentClient) -> tuple[Any, list[Any]]:
    """A whole answer, and the chunks of a stream."""
    asked, models = _asked(client, "Hello?", {}), client.genai.models
    return models.generate_content(**asked), [*models.generate_content_stream(**asked)]


def parts_of(response: types.GenerateContentResponse) -> list[types.Part]:
    [candidate] = response.candidates or []
    assert candidate.content is not None
    assert candidate.content.role == "model"
    return candidate.content.parts or []


def assert_genai_typed(response: types.GenerateContentResponse) -> None:
    """A response, and all of its parts, have no field that their class does not know."""
    assert type(response) is types.GenerateContentResponse
    assert response.sdk_http_response is not None
    assert not response.model_extra
    for part in parts_of(response):
        assert type(part) is types.Part
        assert part.model_fields_set <= {"text", "thought", "function_call"}
        assert not part.model_extra


def said_by(responses: Sequence[Any]) -> tuple[str, str, list[Any]]:
    """The text, the thoughts and the calls (whose ids differ from answer to answer)."""
    parts = [part for response in responses for part in parts_of(response)]
    texts = [part.text or "" for part in parts if not part.thought]
    thoughts = [part.text or "" for part in parts if part.thought]
    calls = [part.function_call for part in parts if part.function_call]
    return "".join(texts), "".join(thoughts), [(call.name, call.args) for call in calls]


def _answered(chunks: Sequence[Any], number: int, *, has_ids: bool = True) -> list[Any]:
    """The parts of the user's next message: results, or a text where nothing was called."""
    calls = [call for chunk in chunks for call in chunk.function_calls or ()]
    for call in calls:
        call.id = call.id if has_ids else None
    results = [
        types.FunctionResponse(id=call.id, name=call.name, response={"result": "größer"})
        for call in calls
    ]
    parts = [types.Part(function_response=result) for result in results]
    return parts or [types.Part(text=f"Go on, {number}.")]


async def _chunks(client: AgentClient, contents: list[Any], stream: bool) -> list[Any]:
    if stream:
        return await genai_events(client, contents)
    return [await genai_whole(client, contents)]


async def conversation(
    client: AgentClient, rounds: int, *, stream: bool, has_ids: bool = True
) -> None:
    """Appends each answer's own content; of a stream, that of each chunk."""
    contents: list[Any] = [types.UserContent("Hello?")]
    for number in range(rounds):
        chunks = await _chunks(client, contents, stream)
        contents += [chunk.candidates[0].content for chunk in chunks]
        contents.append(types.UserContent(_answered(chunks, number, has_ids=has_ids)))


async def conversation_without_ids(client: AgentClient, rounds: int, *, stream: bool) -> None:
    """Drops the ids of calls, as LiteLLM does."""
    await conversation(client, rounds, stream=stream, has_ids=False)


async def chat(client: AgentClient, rounds: int, *, stream: bool) -> None:
    """The SDK's own chat keeps the history."""
    chat = client.genai.aio.chats.create(model=client.model, config=typing.cast("Any", {**CONFIG}))
    message: Any = "Hello?"
    for number in range(rounds):
        if stream:
            chunks = [chunk async for chunk in await chat.send_message_stream(message)]
        else:
            chunks = [await chat.send_message(message)]
        message = _answered(chunks, number)


async def json_conversation(client: AgentClient, rounds: int, *, stream: bool) -> None:
    """Sends the history as plain JSON, as who keeps it in a file does."""
    contents: list[Any] = [{"role": "user", "parts": [{"text": "Hello?"}]}]
    for number in range(rounds):
        chunks = await _chunks(client, contents, stream)
        for chunk in chunks:
            contents.append(json.loads(chunk.candidates[0].content.model_dump_json()))
        parts = [part.model_dump(exclude_none=True) for part in _answered(chunks, number)]
        contents.append({"role": "user", "parts": parts})


CONVERSATIONS: dict[str, Any] = {
    "genai": conversation,
    "genai's chat": chat,
    "JSON": json_conversation,
    "ids dropped": conversation_without_ids,
}
