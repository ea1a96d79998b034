"""A report on a model's chat template, to read before a long run: ``evert model check``.

The report measures on made-up conversations what the template loses. It suggests a setting only if
the template then loses less, and loses nothing that it shows now.
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
"""A subject, and what was found."""

SYSTEM_PROMPTS, TOOLS, SEVERAL_CALLS = "system prompts", "tools", "several calls in one reply"
PAST_THOUGHTS, STOPS_EARLY = "thoughts of earlier turns", "what follows a stop inside a reply"
ONE_SEQUENCE = "one token sequence for a whole conversation"
"""What a template may lose."""

_MAX_SHOWN = 300
"""Maximum number of characters to show of a rendered reply or an error."""


def template_report(renderer: TemplateRenderer) -> list[Row]:
    """Report how a template shows prompts, replies and history, what it loses, and what helps."""
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
    """Return what a template loses; empty if it loses nothing."""
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
    """Return the messages that offer a tool; empty if tools are not shown or calls not readable."""
    try:
        prefix = renderer.create_conversation_prefix_with_tools([TOOL])
    except NotImplementedError:
        return []
    return prefix if "qzname" in renderer.template.probed(*prefix, USER, opens=True) else []


def _kinds_of_replies(renderer: TemplateRenderer) -> dict[str, Message]:
    """Return a reply of each kind that a model may write after the template's opening."""
    template, call = renderer.template, CALLS
    kinds = {} if template.opens_thoughts else {"plain replies": REPLY}
    if template.thought is not None and not template.closes_thoughts:
        kinds["thoughts"] = THOUGHT
    if template.opens_thoughts:
        content = thinking("Qzthought", "")
        call = Message(role="assistant", content=content, tool_calls=CALLS["tool_calls"])
    return kinds | ({"calls": call} if _tool_prefix(renderer) else {})


def _changed_kinds(renderer: TemplateRenderer) -> list[str]:
    """Return the kinds of replies that the history does not show as they were sampled."""
    kinds = _kinds_of_replies(renderer)
    return [kind for kind, reply in kinds.items() if not _extends(renderer, reply)]


def _extends(renderer: TemplateRenderer, reply: Message) -> bool:
    """Return whether the prompt after a reply begins with the prompt before it and the reply."""
    template, calls = renderer.template, bool(reply.get("tool_calls"))
    before = [*(_tool_prefix(renderer) if calls else []), USER]
    opened, ended = template.probed(*before, opens=True), template.probed(*before, reply).rstrip()
    shows_all = isinstance(reply["content"], str) or "Qzthought" in ended
    prompt = template.probed(*before, reply, RESULT if calls else USER, opens=True)
    return shows_all and ended.startswith(opened.rstrip()) and prompt.startswith(ended)


def _turns(renderer: TemplateRenderer) -> str:
    is_additive, kinds = renderer.template.is_additive, _changed_kinds(renderer)
    how = "a turn adds its own tokens" if is_additive else "each prompt is rendered whole"
    if not kinds:
        return f"{how}, and begins with the last one"
    return f"{how}; history changes {', '.join(kinds)}, so the next turn is a new token sequence"


def _system(renderer: TemplateRenderer, lost: list[str]) -> str:
    if SYSTEM_PROMPTS not in lost:
        return "shown"
    text = renderer.template.probed(SYSTEM, USER)
    return "NOT SHOWN" if text else "refused: a request with a system prompt is a 400"


def _tools(renderer: TemplateRenderer, lost: list[str]) -> str:
    template = renderer.template
    if TOOLS in lost or template.calls is None:
        return f"none: {_shorten(template.why_no_calls or 'it refuses the message with the tools')}"
    kind = type(template.calls).__name__.lower()
    how = ", by the model's control tokens" if template.harmony or template.writes_calls else ""
    how = ", in the format of Hermes" if template.hermes else how
    number = "one call a reply" if SEVERAL_CALLS in lost else "several calls in one reply"
    return f"shown; calls are read ({kind}{how}); {number}"


def _thoughts(renderer: TemplateRenderer, lost: list[str]) -> str:
    template = renderer.template
    if template.thought is None:
        return "not shown; their marks are unknown"
    if template.closes_thoughts:
        return "the prompt closes them: the model writes none"
    if "Qzthought" not in template.probed(USER, THOUGHT):
        return "read from replies; NOT SHOWN in history"
    return "dropped from earlier turns" if PAST_THOUGHTS in lost else "kept in history"


def _replies(renderer: TemplateRenderer) -> Iterator[Row]:
    """Yield each kind of reply, as rendered and as parsed."""
    template, end = renderer.template, renderer.template.stops[0]
    for kind, reply in _kinds_of_replies(renderer).items():
        prefix = _tool_prefix(renderer) if reply.get("tool_calls") else []
        text = template.reply_to(*prefix, USER, reply)
        text = text.removesuffix(str(renderer.tokenizer.convert_ids_to_tokens(end)))
        if template.thought is not None and kind == "thoughts" and "Qzthought" not in text:
            before, between = template.thought  # the template hides it, but the model writes it
            text = f"{'' if template.opens_thoughts else before}Qzthought{between}{text}"
        tokens = renderer.tokenizer.encode(text, add_special_tokens=False)
        stop = next((at for at, token in enumerate(tokens) if token in template.stops), len(tokens))
        message, _ = renderer.parse_response([*tokens[:stop], end], [TOOL] if prefix else [])
        yield kind, f"{_shorten(repr(text))}\nis read as {_words(message)}"


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
    """Yield a row per setting that helps, best first, and a row for what no setting recovers."""
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
        yield "lost", f"{'; '.join(remaining)}\nno setting of this template helps"
    if not lost:
        yield "lost", "nothing"


def _settings(renderer: TemplateRenderer, lost: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield settings that lose nothing more, their costs in words, and what each still loses."""
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
            continue  # it hides all thoughts
        closes = variant.template.closes_thoughts and not template.closes_thoughts
        remaining = lost_by(variant) + ([PAST_THOUGHTS] if closes else [])
        gains_tools = TOOLS in lost and TOOLS not in remaining  # calls may change in history
        if {*lost, *([ONE_SEQUENCE] if gains_tools else [])}.issuperset(remaining):
            pairs = [f"chat_template.{name}={value}" for name, value in variable.items()]
            setting = f"renderer_name={HERMES}" if hermes else "".join(pairs)
            yield f"{setting} helps" + (": the model then writes no thoughts" * closes), remaining
