"""Converts messages to the format that a chat template expects, and renders them."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from tinker_cookbook.renderers.base import Message, ToolCall, ToolSpec, get_text_content

from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens.call_format import CallFormat, FunctionCall
from evert.bridge.tokens.escaping import MARK, ControlTokens
from evert.bridge.tokens.probes import TOOLS, common_prefix, is_tool, parts, thinking
from evert.bridge.tokens.template_variables import check_variables, template_of

PARTS, BLOCKS = "parts", "blocks"
"""How to pass a thought to the template: as a content part (Ministral) or a block (Apertus)."""

_EDGE = re.compile(r"\s|[>\]|]")


class TemplateText:
    """Renders messages with a chat template. See ``ChatTemplate`` for the arguments.

    Attributes:
        control: The tokenizer's control tokens.
        thought: The text before a thought, and the text between a thought and the rest of the
            reply. None if it is not known how the model marks its thoughts.
        calls: The format of tool calls. None if the template does not render tools, or if its calls
            cannot be parsed.
        writes_calls: Whether evert writes calls into the text because the template does not.
    """

    def __init__(
        self, tokenizer: Any, *, hermes: bool, variables: Mapping[str, Any] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise RendererMismatchError(
                f"The tokenizer {tokenizer.name_or_path!r} has no chat template, so the model's "
                "prompt format is unknown. Use a model that was tuned for chat, or pass the "
                "Cookbook renderer that the model was trained with as renderer_name=...."
            )
        self.hermes = hermes
        self.variables = {**(variables or {})}
        check_variables(tokenizer, self.variables)
        self.control = ControlTokens(tokenizer)
        self.thought: tuple[str, str] | None = None
        self.calls: CallFormat | None = None
        self.writes_calls = hermes
        self._thought_form, self._takes_parts = "", False
        self._short_ids = self._arguments_as_text = False

    def text(self, messages: Sequence[Message], *, opens: bool = False) -> str:
        """Render messages. ``opens`` adds the start of a reply. Template errors are not caught."""
        tools: list[Any] | None = None
        chat: list[Any] = []
        before: Message | None = None
        for message in messages:
            if message["role"] == TOOLS:
                specs: list[ToolSpec] = message["tools"]  # type: ignore[typeddict-item]
                tools = [{"type": "function", "function": dict(tool)} for tool in specs]
                if message["content"]:
                    chat.append({"role": "system", "content": message["content"]})
            elif self.hermes and is_tool(message):
                result = f"<tool_response>\n{get_text_content(message)}\n</tool_response>"
                if is_tool(before):  # join results: some templates require alternating roles
                    chat[-1]["content"] += "\n" + result
                else:
                    chat.append({"role": "user", "content": result})
            else:
                chat.append(self._as_chat(message))
            before = message
        return str(
            self._tokenizer.apply_chat_template(
                chat,
                tools=tools,
                tokenize=False,
                add_generation_prompt=opens,
                chat_template=template_of(self._tokenizer, tools),
                **self.variables,
            )
        )

    def probed(self, *messages: Message, opens: bool = False) -> str:
        """Render made-up messages, or return "" if the template rejects them."""
        try:
            return self.text(messages, opens=opens)
        except Exception:  # templates can raise anything
            return ""

    def shared_prefix(self, text: str, other_text: str) -> str:
        """Return the longest common prefix that does not end inside a mark or a word."""
        shared = common_prefix(text, other_text)
        size = len(shared)
        for mark in self.control.pattern.finditer(text):
            if mark.start() < size < mark.end():
                return text[: mark.start()]
        edges = [match.end() for match in _EDGE.finditer(shared)]
        if shared in (text, other_text) or _EDGE.match(text, size) or edges[-1:] == [size]:
            return shared
        return text[: edges[-1] if edges else 0]

    def _as_chat(self, message: Message) -> dict[str, Any]:
        text = get_text_content(message)
        chat: dict[str, Any] = {"role": message["role"], "content": text}
        calls = [self._as_call(*call) for call in enumerate(message.get("tool_calls", ()))]
        if calls and self.writes_calls and self.calls is not None:
            text_calls = [FunctionCall(**call["function"], id=call["id"]) for call in calls]
            chat["content"] = "\n".join(filter(None, [text, self.calls.write(text_calls)]))
        elif calls:
            chat["tool_calls"] = calls
        if not isinstance(content := message["content"], str):
            thought = "".join(part["thinking"] for part in content if part["type"] == "thinking")
            chat |= self._with_thought(thought, str(chat["content"])) if thought else {}
        chat |= {key: message[key] for key in ("name", "tool_call_id") if key in message}
        if self._short_ids and "tool_call_id" in chat:
            chat["tool_call_id"] = short_id(chat["tool_call_id"])
        if self._takes_parts and isinstance(chat["content"], str):
            chat["content"] = parts(chat["content"])
        return chat

    def _with_thought(self, thought: str, text: str) -> dict[str, Any]:
        """Return the message fields that contain the thought, as the template expects them."""
        if self._thought_form == PARTS:
            return {"content": thinking(thought, text)}
        if self._thought_form == BLOCKS:
            blocks = [{"type": "thoughts", "text": thought}, {"type": "response", "text": text}]
            return {"content": {"blocks": blocks}}
        if self._thought_form:
            return {self._thought_form: thought}
        return {} if self.thought is None else {"content": thought.join(self.thought) + text}

    def _as_call(self, number: int, call: ToolCall) -> dict[str, Any]:
        arguments: Any = call.function.arguments
        with suppress(ValueError, RecursionError):
            arguments = arguments if self._arguments_as_text else json.loads(arguments)
        call_id = call.id
        if self._short_ids:
            call_id = short_id(call_id or f"{call.function.name} {number}")
        function = {"name": call.function.name, "arguments": arguments}
        return {"type": "function", "id": call_id, "function": function}


def short_id(call_id: str) -> str:
    """Convert a call id to nine letters and digits, a format that every template accepts."""
    plain = call_id.replace(MARK, "")
    if re.fullmatch(r"[a-zA-Z0-9]{9}", plain):
        return call_id
    return hashlib.blake2b(plain.encode(errors="replace"), digest_size=5).hexdigest()[:9]
