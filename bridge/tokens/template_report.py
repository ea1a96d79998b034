"""A report on a model's chat template, to read before a long run (``evert model check``).

It renders made-up conversations to find out what the template loses. A setting is only suggested if
it recovers something without losing anything that the template shows now.
"""

import json
from collections.abc import Iterator

from tinker_cookbook.renderers.base import Message, get_text_content

from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens.bases import HERMES
from evert.bridge.tokens.call_learning import losses
from evert.bridge.tokens.probes import CALLS, REPLY, RESULT, SYSTEM, THOUGHT, TOOL, USER, thinking
from evert.bridge.tokens.template import TemplateRenderer
from evert.bridge.tokens.template_variables import variables_of

Row = tuple[str, str]
"""(topic, finding)"""

SYSTEM_PROMPTS, TOOLS, SEVERAL_CALLS = "system prompts", "tools", "several calls in one reply"
PAST_THOUGHTS, STOPS_EARLY = "thoughts of earlier turns", "text after a stop token within a reply"
ONE_SEQUENCE = "one token sequence for a whole conversation"
"""Things that a template may lose."""

_MAX_SHOWN = 300
"""Rendered replies and errors are shortened to this many characters."""


def template_report(renderer: TemplateRenderer) -> list[Row]:
    """Report how a template renders conversations, what it loses, and which settings help."""
    template = renderer.template
    lost = lost_by(renderer)
    names = ", ".join(sorted(variables_of(renderer.tokenizer)))
    return [
        ("turns", _turns(renderer)),
        ("system", _system(renderer, lost)),
        ("tools", _tools(renderer, lost)),
        ("thoughts", _thoughts(renderer, lost)),
        ("stops", " ".join(renderer.tokenizer.convert_ids_to_tokens(template.stops))),
        ("variables", f"{names} (chat_template.NAME=VALUE)" if names else "none"),
        *_replies(renderer),
        *_remedies(renderer, lost),
    ]


def lost_by(renderer: TemplateRenderer) -> list[str]:
    """Return the list of things that a template loses."""
    template = renderer.template
    prefix = _tool_prefix(renderer)
    lost = [] if "Qzsystem" in template.probed(SYSTEM, USER) else [SYSTEM_PROMPTS]
    if not prefix:
        lost.append(TOOLS)
    elif template.calls is not None and not (template.harmony or template.writes_calls):
        lost += losses(template.calls, template.render_calls)
    if template.thought is not None and not template.closes_thoughts:
        later = template.probed(USER, THOUGHT, USER, opens=True)
        lost += [] if "Qzthought" in later else [PAST_THOUGHTS]
    if template.ends_a_thought and template.marks_end(template.stops[0]):
        lost.append(STOPS_EARLY)
    return lost + ([ONE_SEQUENCE] if _changed_kinds(renderer) else [])


def _tool_prefix(renderer: TemplateRenderer) -> list[Message]:
    """Return messages that offer a tool, or [] if the template does not support tools."""
    try:
        prefix = renderer.create_conversation_prefix_with_tools([TOOL])
    except NotImplementedError:
        return []
    return prefix if "qzname" in renderer.template.probed(*prefix, USER, opens=True) else []


def _kinds_of_replies(renderer: TemplateRenderer) -> dict[str, Message]:
    """Return one example of every type of reply that the model can write."""
    template, call = renderer.template, CALLS
    kinds = {} if template.opens_thoughts else {"plain replies": REPLY}
    if template.thought is not None and not template.closes_thoughts:
        kinds["thoughts"] = THOUGHT
    if template.opens_thoughts:
        content = thinking("Qzthought", "")
        call = Message(role="assistant", content=content, tool_calls=CALLS["tool_calls"])
    return kinds | ({"calls": call} if _tool_prefix(renderer) else {})


def _changed_kinds(renderer: TemplateRenderer) -> list[str]:
    """Return the types of replies that are changed when they become part of the history."""
    kinds = _kinds_of_replies(renderer)
    return [kind for kind, reply in kinds.items() if not _extends(renderer, reply)]


def _extends(renderer: TemplateRenderer, reply: Message) -> bool:
    """Return whether the next prompt starts with the previous prompt followed by the reply."""
    template, calls = renderer.template, bool(reply.get("tool_calls"))
    before = [*(_tool_prefix(renderer) if calls else []), USER]
    opened, ended = template.probed(*before, opens=True), template.probed(*before, reply).rstrip()
    shows_all = isinstance(reply["content"], str) or "Qzthought" in ended
    prompt = template.probed(*before, reply, RESULT if calls else USER, opens=True)
    return shows_all and ended.startswith(opened.rstrip()) and prompt.startswith(ended)


def _turns(renderer: TemplateRenderer) -> str:
    is_additive, kinds = renderer.template.is_additive, _changed_kinds(renderer)
    how = "each turn adds its own tokens" if is_additive else "each prompt is rendered as a whole"
    if not kinds:
        return f"{how} and extends the previous prompt"
    return f"{how}; the history changes {', '.join(kinds)}, so the next turn starts a new sequence"


def _system(renderer: TemplateRenderer, lost: list[str]) -> str:
    if SYSTEM_PROMPTS not in lost:
        return "shown"
    text = renderer.template.probed(SYSTEM, USER)
    return "NOT SHOWN" if text else "rejected: requests with a system prompt get a 400"


def _tools(renderer: TemplateRenderer, lost: list[str]) -> str:
    template = renderer.template
    if TOOLS in lost or template.calls is None:
        return f"none: {_shorten(template.why_no_calls or 'the template cannot show the tools')}"
    kind = type(template.calls).__name__.lower()
    how = ", using the model's control tokens" if template.harmony or template.writes_calls else ""
    how = ", in Hermes format" if template.hermes else how
    number = "one call per reply" if SEVERAL_CALLS in lost else "several calls per reply"
    return f"shown; calls can be parsed ({kind}{how}); {number}"


def _thoughts(renderer: TemplateRenderer, lost: list[str]) -> str:
    template = renderer.template
    if template.thought is None:
        return "not shown; evert does not know how the model marks its thoughts"
    if template.closes_thoughts:
        return "the prompt already closes the thought, so the model does not write any"
    if "Qzthought" not in template.probed(USER, THOUGHT):
        return "parsed from replies; NOT SHOWN in the history"
    return "dropped from earlier turns" if PAST_THOUGHTS in lost else "kept in the history"


def _replies(renderer: TemplateRenderer) -> Iterator[Row]:
    """Yield each type of reply, as rendered and as parsed."""
    template, end = renderer.template, renderer.template.stops[0]
    for kind, reply in _kinds_of_replies(renderer).items():
        prefix = _tool_prefix(renderer) if reply.get("tool_calls") else []
        text = template.reply_to(*prefix, USER, reply)
        text = text.removesuffix(str(renderer.tokenizer.convert_ids_to_tokens(end)))
        if template.thought is not None and kind == "thoughts" and "Qzthought" not in text:
            before, between = template.thought  # the template drops it, but the model writes it
            text = f"{'' if template.opens_thoughts else before}Qzthought{between}{text}"
        tokens = renderer.tokenizer.encode(text, add_special_tokens=False)
        stop = next((at for at, token in enumerate(tokens) if token in template.stops), len(tokens))
        message, _ = renderer.parse_response([*tokens[:stop], end], [TOOL] if prefix else [])
        yield kind, f"{_shorten(repr(text))}\nis parsed as {_words(message)}"


def _words(message: Message) -> str:
    content = message["content"]
    parts = content if isinstance(content, list) else []
    thought = "".join(part["thinking"] for part in parts if part["type"] == "thinking")
    texts = [f"thought {thought!r}"] if thought else []
    texts += [f"text {text!r}"] if (text := get_text_content(message)) else []
    calls = message.get("tool_calls", ())
    texts += [f"{call.function.name}({json.loads(call.function.arguments)})" for call in calls]
    return ", ".join(texts) or "NOTHING"


def _shorten(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]} ..."


# -- what helps ----------------------------------------------------------------------------------


def _remedies(renderer: TemplateRenderer, lost: list[str]) -> Iterator[Row]:
    """Yield a row for each setting that helps, best first, then a row for the other losses."""
    remaining = list(lost)
    settings = [*_settings(renderer, lost)] if lost else []
    while remaining and settings:
        setting, lost_then = max(settings, key=lambda option: len(set(remaining) - set(option[1])))
        saved = set(remaining) - set(lost_then)
        if not saved:
            break
        helped = [loss for loss in remaining if loss in saved]
        yield "lost", f"{'; '.join(helped)}\n{setting}"
        remaining = [loss for loss in remaining if loss not in saved]
    if remaining:
        yield "lost", f"{'; '.join(remaining)}\nnone of this template's settings help"
    if not lost:
        yield "lost", "nothing"


def _settings(renderer: TemplateRenderer, lost: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the description and the remaining losses of each setting that causes no new losses."""
    template, names = renderer.template, sorted(variables_of(renderer.tokenizer))
    changes: list[tuple[bool, dict[str, bool]]] = [(True, {})] if TOOLS in lost else []
    changes += [(False, {name: value}) for name in names for value in (True, False)]
    for hermes, variable in changes:
        try:
            variant = TemplateRenderer(
                renderer.tokenizer,
                hermes=hermes or template.hermes,
                chat_template={**template.variables, **variable},
            )
        except RendererMismatchError:
            continue
        if variant.template.thought is None and template.thought is not None:
            continue  # this setting hides all thoughts
        closes = variant.template.closes_thoughts and not template.closes_thoughts
        remaining = lost_by(variant) + ([PAST_THOUGHTS] if closes else [])
        gains_tools = TOOLS in lost and TOOLS not in remaining  # calls may change in history
        if {*lost, *([ONE_SEQUENCE] if gains_tools else [])}.issuperset(remaining):
            pairs = [f"chat_template.{name}={value}" for name, value in variable.items()]
            setting = f"renderer_name={HERMES}" if hermes else "".join(pairs)
            yield f"{setting} helps" + ("; the model then writes no thoughts" * closes), remaining
