"""``chat`` exports a recorded conversation for chat trainers, as ``{"messages", "tools"}``.

When a trainer renders the conversation again, the result must be the recorded prompt and the
sampled reply. If the run used the model's chat template, the trainer (TRL's SFTTrainer) applies the
same template, so the tools go into a separate field. If the run used a different renderer, the
trainer (the Cookbook's chat_sl) uses that renderer without tools, so the messages contain the tools
as written by the renderer.

Replies are exported either with fields (thoughts, tool calls) or as the sampled text. When a
rollout is recorded, ``note_forms`` renders both forms and stores which one reproduces the sampled
tokens. Sometimes neither form does, because the tokenizer encodes the text of a reply differently
from how it was sampled, or because some text spells a control token.
"""

import json
from collections.abc import Mapping
from typing import Any

from tinker_cookbook.renderers.base import Renderer, TrainOnWhat

from evert.bridge.chat.messages import read_tools
from evert.bridge.errors import RecordError
from evert.bridge.records.record import RolloutRecord
from evert.bridge.records.rows import Row
from evert.bridge.tokens.probes import TOOLS
from evert.bridge.tokens.renderer import prompt_renderer
from evert.bridge.tokens.template import TemplateRenderer
from evert.bridge.tokens.template_variables import template_of

FORM, FIELDS, TEXT = "form", "fields", "text"
"""A field of recorded calls, and its values (null if neither form reproduces the tokens)."""


def form_of(record: RolloutRecord, turn: int) -> str:
    """Return the form stored for a conversation (default: ``TEXT``).

    Raises:
        RecordError: The messages were not kept, or neither form reproduces the sampled tokens.
    """
    form: str | None = record.call(turn).get(FORM, TEXT)
    if form is None:
        raise RecordError(
            f"The conversation that ends with turn {turn} cannot be exported, because a trainer "
            "would not render it to the sampled tokens. Either the renderer encodes a reply as "
            "different tokens, or it does not accept the calls or parts in a message. Use "
            "format=atif, which includes the tokens."
        )
    return form


def chat(record: RolloutRecord, turn: int, form: str) -> Row:
    """Return the conversation that ends with a turn's reply, with replies in the given ``form``.

    Raises:
        RecordError: The messages were not kept, or contain more than text.
    """
    messages = record.sampled_messages(turn, parsed=form == FIELDS)
    names = {
        call["id"]: call["function"]["name"]
        for message in [step.get("reply") or {} for step in record.row["steps"]] + messages
        for call in message.get("tool_calls") or ()
    }
    first, *remaining = messages
    if is_shown := first["role"] == TOOLS:
        system = [{"role": "system", "content": first["content"]}] if first["content"] else []
        messages = [*system, *remaining]
    row: Row = {"messages": [_message(message, names) for message in messages]}
    tools = record.tools(turn)
    if is_shown:
        row["tools"] = [{"type": "function", "function": tool} for tool in read_tools(tools)]
    elif tools and "trace" in record.row:  # in traces, the messages do not contain the tools
        row["tools"] = tools
    return row


def _message(message: Mapping[str, Any], names: Mapping[str, str]) -> Row:
    fields: Row = {"role": message["role"], "content": text_of(message)}
    if thought := message.get("reasoning_content"):
        fields["reasoning_content"] = thought
    if calls := message.get("tool_calls"):
        fields["tool_calls"] = [
            {"type": "function", "id": call["id"], "function": {**call["function"], **arguments}}
            for call in calls
            for arguments in [{"arguments": json.loads(call["function"]["arguments"])}]
        ]  # chat templates expect arguments as objects
    if message["role"] == "tool" and (called := message.get("tool_call_id")):
        fields |= {"tool_call_id": called, "name": message.get("name") or names.get(called, "")}
    return fields


def text_of(message: Mapping[str, Any]) -> str:
    """Return a message's text without thinking. Raises RecordError for any other content."""
    content = message.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
    if any(part.get("type") not in ("text", "thinking") for part in parts):
        raise RecordError(
            f"A conversation has a message with role {message['role']} that contains more than "
            f"text: {message!s:.200}."
        )
    return "".join(str(part.get("text", "")) for part in parts)


def note_forms(row: Row, renderer: Renderer) -> None:
    """Store in a row which form reproduces the sampled tokens of each conversation."""
    try:
        record = RolloutRecord(row)
    except RecordError:
        return  # write the row unchanged; the error is raised when it is read
    for turn in record.last_turns():
        if call := row["steps"][turn].get("call"):
            forms = (form for form in (FIELDS, TEXT) if _is_same(record, turn, form, renderer))
            call[FORM] = next(forms, None)


def _is_same(record: RolloutRecord, turn: int, form: str, renderer: Renderer) -> bool:
    prompts, prompt = prompt_renderer(renderer), record.prompts[turn]
    try:
        row = chat(record, turn, form)
        with prompts.lock:
            tokens = _tokens(row, renderer)
    except Exception:  # renderers and templates can raise anything
        return False
    sampled = [token for token in record.action(turn).tokens if token not in prompts.end_tokens]
    reply = prompts.decode(tokens[len(prompt) :])
    return tokens[: len(prompt)] == prompt and reply.startswith(prompts.decode(sampled))


def _tokens(row: Row, renderer: Renderer) -> list[int]:
    """Render a conversation to tokens the way a trainer would."""
    messages = row["messages"]
    if not isinstance(renderer, TemplateRenderer):  # TrainOnWhat only affects the loss weights
        model_input, _ = renderer.build_supervised_example(messages, TrainOnWhat.ALL_MESSAGES)
        return model_input.to_ints()
    text: Any
    if renderer.template.hermes:
        text = renderer.template.text(messages)
    else:
        tokenizer, tools = renderer.tokenizer, row.get("tools")
        template = template_of(tokenizer, tools)
        text = tokenizer.apply_chat_template(
            messages, tools, tokenize=False, chat_template=template
        )
    return list(renderer.tokenizer.encode(text, add_special_tokens=False))
