"""Between the messages agents send and the messages the Cookbook's renderers take.

``read_message`` turns one message of a request (a dict, or an SDK message object that the agent
appended) into a Cookbook ``Message``; ``read_tools`` does the same for tools. ``Reply`` is the
other way: what the policy's tokens say, as the agent gets it.

A reply has two views. The *model's* view (``Reply.parsed``) is the renderer's own parse, thinking
and all, and is what gets rendered again if it must be. The *agent's* view (``Reply.text``,
``tool_calls``) is what an OpenAI client shows; an agent sends it back, and
``Reply.is_sent_back_as`` recognises it.
"""

import hashlib
import json
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NoReturn, cast

from tinker_cookbook.renderers.base import (
    ContentPart,
    ImagePart,
    Message,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolSpec,
    UnparsedToolCall,
)

from evert.bridge.index import Key, key_as_reply, reply_key
from evert.bridge.requests import bad_request, unexpected

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
"""Role an agent may use -> role the renderers know."""

FinishReason = Literal["stop", "length", "tool_calls"]
_plain = str.__str__  # without what a subclass of the agent's does when it is compared


class CookbookMessage(dict[str, Any]):
    """A message that is in the Cookbook's form already: taken as it is, whatever its role."""


def as_fields(message: object, index: int) -> Mapping[str, Any]:
    """The fields of one message: a dict as it is, an SDK object by its attributes.

    Raises:
        openai.BadRequestError: It is neither.
    """
    if isinstance(message, Mapping):
        return message
    dump = getattr(message, "model_dump", None)
    if dump is not None:
        return cast("Mapping[str, Any]", dump(exclude_none=True))
    raise bad_request(
        f"messages[{index}] must be a dict with 'role' and 'content', got "
        f"{type(message).__name__}: {message!r:.200}.",
        param=f"messages[{index}]",
    )


def read_message(message: object, index: int, tool_names: Mapping[str, str]) -> Message:
    """One message of a request in the Cookbook's form.

    Args:
        message: A dict or an SDK message object.
        index: Its place in the request, for messages.
        tool_names: Tool-call id -> function name, from the calls seen before; some templates
            (GPT-OSS) name the function in a tool's result.

    Raises:
        openai.BadRequestError: The role is unknown, or the content or a tool call has no form that
            we can read.
    """
    if type(message) is CookbookMessage:
        return cast("Message", {**message})
    try:
        return _read_message(as_fields(message, index), index, tool_names)
    except Exception as error:
        refuse(f"messages[{index}]", error)


def refuse(what: str, error: Exception) -> NoReturn:
    """Refuse what raised ``error`` when it was read: an agent's own objects may do anything.

    Raises:
        openai.BadRequestError: ``error`` itself, if it is one.
    """
    import openai

    if isinstance(error, openai.BadRequestError):
        raise error
    reason = "".join(traceback.format_exception_only(error)).strip()
    raise bad_request(
        f"{what} cannot be read; send plain JSON values. {reason:.300}", param=what
    ) from error


def _read_message(fields: Mapping[str, Any], index: int, tool_names: Mapping[str, str]) -> Message:
    sent_role = fields.get("role")
    role = ROLES.get(sent_role) if isinstance(sent_role, str) else None
    if role is None:
        raise bad_request(
            f"messages[{index}] has role {sent_role!r}; expected one of {', '.join(ROLES)}.",
            param=f"messages[{index}].role",
        )
    calls = fields.get("tool_calls")
    result = Message(
        role=role, content=_read_content(fields, index, may_be_empty=role == "assistant")
    )
    if role == "assistant":
        _read_assistant(fields, calls, index, result)
    elif role == "tool":
        _read_tool_result(fields, tool_names, result)
    elif fields.get("name"):
        result["name"] = _plain(str(fields["name"]))
    return result


def _read_content(
    fields: Mapping[str, Any], index: int, *, may_be_empty: bool
) -> str | list[ContentPart]:
    content = fields.get("content")
    if isinstance(content, str):
        return _plain(content)
    if content is None and may_be_empty:
        return ""
    if isinstance(content, (list, tuple)):
        parts = [_read_part(part, index, number) for number, part in enumerate(content)]
        texts = [part["text"] for part in parts if part["type"] == "text"]
        # Not every renderer takes several texts, and one text is the same message.
        return "".join(texts) if parts and len(texts) == len(parts) else parts
    raise bad_request(
        f"messages[{index}].content must be a string or a list of parts, got "
        f"{type(content).__name__}: {content!r:.200}.",
        param=f"messages[{index}].content",
    )


def _read_part(part: object, index: int, number: int) -> ContentPart:
    if isinstance(part, Mapping):
        kind = part.get("type")
        if kind in ("text", "input_text", "output_text") and isinstance(part.get("text"), str):
            return TextPart(type="text", text=_plain(part["text"]))
        if kind == "thinking" and isinstance(part.get("thinking"), str):
            return ThinkingPart(type="thinking", thinking=_plain(part["thinking"]))
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, Mapping) else image
        if kind == "image_url" and isinstance(url, str):
            return ImagePart(type="image", image=_plain(url))
        if kind == "image" and "image" in part:
            return ImagePart(type="image", image=part["image"])
    place = f"messages[{index}].content[{number}]"
    raise bad_request(
        f"{place} is {part!r:.200}; expected a part of type 'text' or 'image_url'.", param=place
    )


def _read_assistant(fields: Mapping[str, Any], calls: Any, index: int, result: Message) -> None:
    reasoning = fields.get("reasoning_content") or fields.get("reasoning")
    if isinstance(reasoning, str) and reasoning:
        content = result["content"]
        text = [TextPart(type="text", text=content)] if isinstance(content, str) else content
        result["content"] = [ThinkingPart(type="thinking", thinking=_plain(reasoning)), *text]
    if calls and not isinstance(calls, (list, tuple)):
        raise bad_request(
            f"messages[{index}].tool_calls must be a list of calls, got {calls!r:.200}.",
            param=f"messages[{index}].tool_calls",
        )
    if calls:
        result["tool_calls"] = [
            _read_tool_call(call, f"messages[{index}].tool_calls[{number}]")
            for number, call in enumerate(calls)
        ]


def _read_tool_call(call: object, place: str) -> ToolCall:
    fields = call if isinstance(call, Mapping) else getattr(call, "model_dump", dict)()
    function = fields.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    arguments = function.get("arguments") if isinstance(function, Mapping) else None
    call_id = fields.get("id")
    if (
        not isinstance(name, str)
        or not isinstance(arguments, str)
        or not isinstance(call_id, str | None)
    ):
        form = "{'id': ..., 'type': 'function', 'function': {'name': str, 'arguments': JSON str}}."
        raise unexpected(place, call, form)
    try:
        json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise bad_request(
            f"{place}.function.arguments is no JSON ({error}): {arguments!r:.200}.", param=place
        ) from None
    called = ToolCall.FunctionBody(name=_plain(name), arguments=_plain(arguments))
    return ToolCall(id=call_id and _plain(call_id), function=called)


def _read_tool_result(
    fields: Mapping[str, Any], tool_names: Mapping[str, str], result: Message
) -> None:
    call_id = fields.get("tool_call_id")
    if call_id:
        result["tool_call_id"] = _plain(str(call_id))
    if name := fields.get("name") or tool_names.get(str(call_id)):
        result["name"] = _plain(str(name))


def read_tools(tools: Sequence[Any]) -> list[ToolSpec]:
    """The Cookbook's tool specs for OpenAI's tool dicts.

    Raises:
        openai.BadRequestError: A tool is no function with a name and an object schema.
    """
    try:
        return [_read_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
    except Exception as error:
        refuse("tools", error)


def _read_tool(tool: object, place: str) -> ToolSpec:
    function = tool.get("function") if isinstance(tool, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        form = "{'name': str, 'description': str, 'parameters': JSON schema}"
        raise unexpected(place, tool, f"{{'type': 'function', 'function': {form}}}.")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping) or parameters.get("type", "object") != "object":
        raise bad_request(
            f"{place}.function.parameters must be a JSON schema of type 'object', got "
            f"{parameters!r:.200}.",
            param=f"{place}.function.parameters",
        )
    try:
        json.dumps(parameters)
    except (TypeError, ValueError) as error:
        raise bad_request(
            f"{place}.function.parameters cannot be written as JSON: {error}.",
            param=f"{place}.function.parameters",
        ) from None
    return ToolSpec(
        name=function["name"],
        description=str(function.get("description") or ""),
        parameters=dict(parameters),
    )


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token of a reply's visible text.

    Attributes:
        text: What it adds to the text; "" for the beginning of a character of several tokens.
        logprob: Natural logarithm of the probability it was sampled with.
    """

    text: str
    logprob: float


@dataclass(frozen=True, slots=True)
class Reply:
    """What the policy said in one action, as the agent gets it.

    Attributes:
        parsed: The renderer's own parse of the action (the model's view).
        text: Visible text.
        reasoning: Thinking, or None when there was none.
        tool_calls: Calls that parsed, each with an id.
        unparsed: Tool calls that did not parse; their markup stays in ``text``.
        finish_reason: "length" when the action was cut, "tool_calls" when there are any.
        prompt_tokens: Length of the observation.
        completion_tokens: Length of the action.
        stop_string: The agent's own stop string that cut the text; None when none did.
        logprobs: Of the tokens of ``text``, where they were asked for and are known; else None.
        prefill: What the agent itself began it with; ``parsed`` has it, ``text`` goes on from it.
        tokens: As sampled, where they were asked for and are known; else None.
    """

    parsed: Message
    text: str
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    unparsed: tuple[UnparsedToolCall, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    stop_string: str | None = None
    logprobs: tuple[TokenLogprob, ...] | None = None
    prefill: str = ""
    tokens: tuple[int, ...] | None = None

    def with_calls(self, count: int) -> "Reply":
        """The reply with its first ``count`` tool calls; without any it simply stops."""
        calls = self.tool_calls[:count]
        ends = self.finish_reason == "tool_calls" and not calls
        return replace(self, tool_calls=calls, finish_reason="stop" if ends else self.finish_reason)

    @property
    def key(self) -> Key:
        """What an agent sees of it, to find it by."""
        return reply_key(self.prefill + self.text, self.tool_calls)

    def after(self, prefill: str) -> "Reply":
        """The reply to an agent that began it itself, and gets the rest.

        Where a renderer's prompt opens a thought, the thought begins with it.
        """
        reasoning, text, stripped = self.reasoning, self.text, prefill.strip()
        if text.startswith(stripped):  # a parser may strip what it reads
            text = text.removeprefix(prefill if text.startswith(prefill) else stripped)
        elif reasoning is not None and reasoning.startswith(stripped):
            begun = prefill if reasoning.startswith(prefill) else stripped
            reasoning = reasoning.removeprefix(begun)
        return replace(self, prefill=prefill, text=text, reasoning=reasoning)

    def is_sent_back_as(self, message: object) -> bool:
        """Whether ``message`` of a later request is this reply.

        Agents strip what they get, so white space at the ends of a text is no change. They rarely
        send reasoning back, so a missing one is none either; a different one is.
        """
        try:
            if (
                message == {"role": "assistant", "content": self.prefill + self.text}
                and not self.tool_calls
            ):
                return True  # most of them
            sent = read_message(message, 0, {})
        except Exception:  # no message, or an agent's object that does not like to be compared
            return False
        if sent["role"] != "assistant" or key_as_reply(sent) != self.key:
            return False
        thoughts = _thoughts(sent["content"])
        return not thoughts or thoughts.strip() in ("", (self.reasoning or "").strip())


def _thoughts(content: str | list[ContentPart]) -> str | None:
    parts = content if isinstance(content, list) else []
    thoughts = [part["thinking"] for part in parts if part["type"] == "thinking"]
    return "\n".join(thoughts) if thoughts else None


def read_reply(
    parsed: Message,
    *,
    truncated: bool,
    call_ids: str,
    prompt_tokens: int,
    completion_tokens: int,
) -> Reply:
    """The reply that a renderer's parse stands for.

    Args:
        parsed: From ``renderer.parse_response``; its content may be text or a list of parts.
        truncated: The action was cut at its token cap.
        call_ids: What the ids of tool calls are made of whose format has none; of each reply
            another.
        prompt_tokens: Length of the observation.
        completion_tokens: Length of the action.
    """
    content = parsed["content"]
    text = content if isinstance(content, str) else ""
    if not isinstance(content, str):
        text = "".join(part["text"] for part in content if part["type"] == "text")
    reasoning = _thoughts(content)
    calls = tuple(
        call if call.id else call.model_copy(update={"id": call_id(f"{call_ids}-{number}")})
        for number, call in enumerate(parsed.get("tool_calls") or ())
    )
    if calls:
        text = text.strip()  # the white space that formats have around calls says nothing
    finish: FinishReason = "length" if truncated else "tool_calls" if calls else "stop"
    unparsed = tuple(parsed.get("unparsed_tool_calls") or ())
    lost = "".join(call.raw_text for call in unparsed if call.raw_text not in text)
    if lost:  # an agent must see what could not be parsed, and so must the model in its history
        text += lost
        parsed = _with_text(parsed, lost)
    return Reply(parsed, text, reasoning, calls, unparsed, finish, prompt_tokens, completion_tokens)


def call_id(name: str) -> str:
    """An id in the form of OpenAI's, the same for the same name."""
    return f"call_{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}"


def _with_text(message: Message, text: str) -> Message:
    content = message["content"]
    if isinstance(content, str):
        return {**message, "content": content + text}
    return {**message, "content": [*content, TextPart(type="text", text=text)]}
