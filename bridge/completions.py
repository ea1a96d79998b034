"""A ``Reply`` in the shape of OpenAI's chat completions API."""

import time

from openai.types.chat import ChatCompletion, ChatCompletionMessage
from openai.types.chat.chat_completion import Choice
from openai.types.chat.chat_completion_message_function_tool_call import (
    ChatCompletionMessageFunctionToolCall,
    Function,
)
from openai.types.completion_usage import CompletionUsage
from tinker_cookbook.renderers.base import ToolCall

from evert.bridge.messages import Reply


def chat_completion(reply: Reply, *, id: str, model: str) -> ChatCompletion:
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
    return ChatCompletion(
        id=id,
        object="chat.completion",
        created=int(time.time()),
        model=model,
        choices=[Choice(index=0, finish_reason=reply.finish_reason, message=message)],
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
