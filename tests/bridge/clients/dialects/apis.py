"""The four APIs under test, each with a minimal request body and its fields, and sample replies."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_overloads

import openai
import pytest
from anthropic.resources.beta.messages import Messages as BetaMessages
from anthropic.resources.messages import AsyncMessages, Messages
from google.genai import types
from openai.resources.chat.completions import AsyncCompletions, Completions
from openai.resources.responses import AsyncResponses
from openai.resources.responses import Responses as SDKResponses
from tinker_cookbook.renderers.base import Message, ToolCall

from evert.bridge.chat.fields import FieldPolicy
from evert.bridge.chat.reply import FinishReason, Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients.dialects import anthropic_messages, chat_completions, gemini, responses
from evert.bridge.clients.dialects.dialect import Dialect

Fields = dict[str, Any]

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
HI = {"role": "user", "content": "Hi"}
HI_PARTS = {"role": "user", "parts": [{"text": "Hi"}]}


@dataclass(frozen=True)
class Api:
    """One of the four APIs."""

    dialect: type[Dialect]
    least: Fields
    settings: dict[str, FieldPolicy]
    """Field policies, keyed by the enclosing field's name ("" for the top level of the body)."""
    sdk: Callable[[], set[str]]

    def read(self, **fields: Any) -> ChatRequest:
        """Read the minimal body with these fields added."""
        return self.dialect("policy").read({**self.least, **fields})

    def refusal(self, **fields: Any) -> openai.BadRequestError:
        """Return the 400 error raised for these fields."""
        try:
            request = self.read(**fields)
        except openai.BadRequestError as error:
            return error
        pytest.fail(f"{fields} is not refused: {request}")


def parameters(*methods: Any) -> set[str]:
    functions = [function for method in methods for function in (method, *get_overloads(method))]
    signatures = map(inspect.signature, functions)
    return {name for signature in signatures for name in signature.parameters} - {"self"}


THE_SDKS_OWN = {
    "httpOptions",
    "shouldReturnHttpResponse",
    "automaticFunctionCalling",
    "automaticContinuation",
}
"""Settings that Google's SDK handles itself and does not send."""


def _geminis() -> set[str]:
    models = (types.GenerateContentConfig, types.GenerationConfig)
    names = {str(field.alias) for model in models for field in model.model_fields.values()}
    return names - THE_SDKS_OWN


APIS = {
    "chat": Api(chat_completions.ChatCompletions, {"messages": [HI]}, {"": chat_completions.FIELDS},
        lambda: parameters(Completions.create, AsyncCompletions.create)),
    "responses": Api(responses.Responses, {"input": "Hi"}, {"": responses.FIELDS},
        lambda: parameters(SDKResponses.create, AsyncResponses.create)),
    "anthropic": Api(anthropic_messages.AnthropicMessages, {"messages": [HI], "max_tokens": 9},
        {"": anthropic_messages.FIELDS},
        lambda: parameters(Messages.create, AsyncMessages.create, BetaMessages.create)),
    "gemini": Api(gemini.Gemini, {"contents": [HI_PARTS]},
        {"": gemini.FIELDS, "generationConfig": gemini.CONFIG_FIELDS}, _geminis),
}  # fmt: skip
CHAT, RESPONSES, ANTHROPIC, GEMINI = APIS.values()
every_api = pytest.mark.parametrize("name", APIS)


def called(call_id: str | None, name: str = "add", arguments: str = "{}") -> Fields:
    function = {"name": name, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def reply(
    text: str = "Hello.",
    *,
    reasoning: str | None = None,
    calls: tuple[tuple[str, str], ...] = (),
    finish_reason: FinishReason = "stop",
    stop_string: str | None = None,
) -> Reply:
    """Return a reply with 11 prompt tokens and 3 sampled tokens."""
    tool_calls = tuple(
        ToolCall(
            id=f"call-{number}", function=ToolCall.FunctionBody(name=name, arguments=arguments)
        )
        for number, (name, arguments) in enumerate(calls)
    )
    parsed = Message(role="assistant", content=text)
    return Reply(parsed, text, reasoning, tool_calls, (), finish_reason, 11, 3, stop_string)


REPLIES = {
    "text": reply(),
    "long": reply("The quick brown fox jumps over the lazy dog."),
    "empty": reply(""),
    "margins": reply("\n\n  I edit. \n"),
    "white space": reply("\n\n"),
    "cut": reply(finish_reason="length"),
    "reasoning": reply(reasoning="Hm, let me think about it."),
    "empty reasoning": reply(reasoning=""),
    "call": reply("", calls=(("add", '{"x": 1}'),), finish_reason="tool_calls"),
    "text and calls": reply("Both.", calls=(("add", '{ "x":1 }'), ("look", "{}"))),
    "everything": reply(reasoning="Hm.", calls=(("add", '{ "x":1 }'), ("look", "{}"))),
}  # fmt: skip
