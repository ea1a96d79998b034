"""What a model's chat template can do, to read before a long run: ``evert model check``."""

import json
from collections.abc import Iterator

from tinker_cookbook.renderers.base import Message, get_text_content

from evert.bridge.tokens.call_learning import losses
from evert.bridge.tokens.chat_template import ChatTemplate
from evert.bridge.tokens.probes import (
    CALLS,
    RESULT,
    SAID,
    SYSTEM,
    THOUGHTFUL,
    TOOL,
    USER,
    carrier,
)
from evert.bridge.tokens.template import TemplateRenderer
from evert.bridge.tokens.template_variables import variables_of

Row = tuple[str, str]
"""A subject, and what holds for it."""


def template_report(renderer: TemplateRenderer) -> list[Row]:
    """What a template does with prompts, replies and history, and what would be lost."""
    template = renderer.template
    names = ", ".join(sorted(variables_of(renderer.tokenizer))) or "none"
    stops = " ".join(renderer.tokenizer.convert_ids_to_tokens(template.stops))
    inside = " (it also ends a thought, so that replies end there)"
    ends_early = template.ends_a_thought and template.marks_end(template.stops[0])
    return [
        ("turns", _turns(template)),
        ("system", _shows(template, SYSTEM, "Qzsystem")),
        ("tools", _tools(template)),
        ("thoughts", _thoughts(template)),
        ("stops", stops + (inside if ends_early else "")),
        ("variables", f"{names} (chat_template.NAME=VALUE)"),
        *_replies(renderer),
    ]


def _turns(template: ChatTemplate) -> str:
    kinds = {"plain replies": SAID}
    kinds |= {"thoughts": THOUGHTFUL} if template.thought is not None else {}
    kinds |= {"calls": CALLS} if template.calls is not None else {}
    changed = [kind for kind, reply in kinds.items() if not _extends(template, reply)]
    how = "a turn adds its own tokens" if template.is_additive else "each prompt is rendered whole"
    if not changed:
        return f"{how}; a conversation is one token sequence"
    return f"{how}; history changes {', '.join(changed)}: a new token sequence each turn"


def _extends(template: ChatTemplate, reply: Message) -> bool:
    """Whether the prompt after a reply begins with what ended with the reply."""
    calls = bool(reply.get("tool_calls"))
    before = [carrier([TOOL], ""), USER] if calls else [USER]
    ended = template.probed(*before, reply)
    rest = [RESULT] if calls else [USER]
    whole = template.probed(*before, reply, *rest, opens=True)
    return bool(ended) and whole.startswith(ended.rstrip())


def _shows(template: ChatTemplate, message: Message, word: str) -> str:
    text = template.probed(message, USER)
    if not text:
        return "refused: a request with a system message is a 400"
    return "shown" if word in text else "NOT SHOWN: the model never sees it"


def _tools(template: ChatTemplate) -> str:
    if template.calls is None:
        return f"none: {template.why_no_calls:.300}. renderer_name=template_hermes writes them"
    kind = type(template.calls).__name__.lower()
    if template.harmony or template.writes_calls:
        return f"shown; calls are read ({kind}), by the control tokens of the model"
    lost = losses(template.calls, template.shown_calls)
    return f"shown; calls are read ({kind})" + (f"; LOST: {', '.join(lost)}" if lost else "")


def _thoughts(template: ChatTemplate) -> str:
    if template.thought is None:
        return "not shown"
    last = template.probed(USER, THOUGHTFUL)
    later = template.probed(USER, THOUGHTFUL, USER, opens=True)
    if "Qzthought" not in last:
        return "read from replies; NOT SHOWN in history"
    return "kept in history" if "Qzthought" in later else "shown; dropped from earlier turns"


def _replies(renderer: TemplateRenderer) -> Iterator[Row]:
    """Each kind of reply as it is rendered, and as it is read back."""
    template = renderer.template
    kinds = [("a plain reply", SAID)]
    kinds += [("a thought", THOUGHTFUL)] if template.thought is not None else []
    kinds += [("a call", CALLS)] if template.calls is not None else []
    for kind, reply in kinds:
        calls = bool(reply.get("tool_calls"))
        text = template.reply_to(*([carrier([TOOL], "")] if calls else []), USER, reply)
        end = renderer.tokenizer.convert_ids_to_tokens(template.stops[0])
        tokens = renderer.tokenizer.encode(text.removesuffix(end), add_special_tokens=False)
        stop = next((at for at, token in enumerate(tokens) if token in template.stops), len(tokens))
        message, _ = renderer.parse_response(
            [*tokens[:stop], template.stops[0]], [TOOL] if calls else []
        )
        yield kind, f"{text!r:.120} is read as {_words(message)}"


def _words(message: Message) -> str:
    content = message["content"]
    parts = content if isinstance(content, list) else []
    thought = "".join(part["thinking"] for part in parts if part["type"] == "thinking")
    texts = [f"thought {thought!r}"] if thought else []
    texts += [f"text {text!r}"] if (text := get_text_content(message)) else []
    calls = message.get("tool_calls", ())
    texts += [f"{call.function.name}({json.loads(call.function.arguments)})" for call in calls]
    return ", ".join(texts) or "NOTHING"
