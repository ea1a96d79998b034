"""Learns how a chat template formats replies: their start and end, thoughts, frames and calls.

The template renders small made-up conversations. The rendered texts are compared token by token, so
that a difference never starts inside a mark (``<think>``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinker_cookbook.renderers.base import Message

from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens.call_format import CallFormat, FunctionCall
from evert.bridge.tokens.call_kinds import HERMES_CALLS
from evert.bridge.tokens.call_learning import FIRST, TEXT, NotLearnedError, from_table, learn_calls
from evert.bridge.tokens.harmony import STOPS as HARMONY_STOPS
from evert.bridge.tokens.harmony import is_harmony
from evert.bridge.tokens.pretrained import read_json
from evert.bridge.tokens.probes import (
    CALLS,
    PROBE_IDS,
    PROBE_IDS_WITH_NAMES,
    REPLY,
    RESULT,
    THOUGHT,
    TOOL,
    USER,
    carrier,
    probe_call,
    thinking,
)
from evert.bridge.tokens.template_text import BLOCKS, PARTS, TemplateText

_THOUGHT_FORMS = ("reasoning_content", "thinking", "reasoning", PARTS, BLOCKS)
_KNOWN_THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
"""Thought marks, for templates that strip thoughts and for prompts that open a thought."""


class LearnedReplies(TemplateText):
    """How a chat template formats replies. See ``ChatTemplate`` for the arguments.

    Attributes:
        opening: The text that starts a reply.
        stops: Ids of the tokens that end a reply: first the template's token, then the model's
            other end tokens.
        ends_a_thought: Whether the token that ends a reply also occurs inside replies. In that
            case, it is a stop only if the model has no other end token.
        heads: Texts that can come between the opening (or a thought) and the reply's text.
        foot: The text between the reply's text and the end of the reply.
        why_no_calls: Why ``calls`` is None. Shows the probe that failed and how it was rendered.
        harmony: Whether replies consist of several messages (``harmony.py``).
    """

    def __init__(
        self, tokenizer: Any, *, hermes: bool, variables: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tokenizer, hermes=hermes, variables=variables)
        self._ids = {name: number for number, name in self.control.by_id.items()}
        self._probe_ids = PROBE_IDS
        self.opening = self._learn_opening()
        self.harmony = is_harmony(self.control.names)
        self._ends_replies = True
        self.stops = self._learn_stops()
        self.thought = self._learn_thought()
        self.heads, self.foot = self._learn_text_frame()
        self.why_no_calls = ""
        self.calls = HERMES_CALLS if hermes else self._learn_calls()

    def _learn_opening(self) -> str:
        try:
            for takes_parts in (False, True):
                self._takes_parts = takes_parts
                opened = self.text([USER], opens=True)
                if "Qzuser" in opened:
                    return opened.removeprefix(self.shared_prefix(opened, self.text([USER])))
        except Exception as error:
            raise self._unusable(
                f"cannot render a user message: {type(error).__name__}: {error}"
            ) from error
        raise self._unusable(f"renders a user message as {opened!r:.300}, without its text")

    def _unusable(self, why: str) -> RendererMismatchError:
        return RendererMismatchError(
            f"The chat template of {self._tokenizer.name_or_path!r} {why}. Check the model's "
            "chat_template, or pass the Cookbook renderer that the model was trained with as "
            "renderer_name=...."
        )

    def _learn_stops(self) -> list[int]:
        end = self._end_of_a_reply()
        ends = [self._tokenizer.eos_token_id, *_ends_of(self._tokenizer.name_or_path)]
        if self.harmony:
            ends += [self._ids[name] for name in HARMONY_STOPS if name in self._ids]
        inside = {self._ids[name] for name in self._marks_inside_replies()}
        eos = [stop for stop in ends if stop in self.control.by_id and stop not in inside]
        self.ends_a_thought = self._ids[end] in inside
        stops = eos if eos and self.ends_a_thought else [self._ids[end], *eos]
        return list(dict.fromkeys(stops))

    def _end_of_a_reply(self) -> str:
        """Find the control token that ends a reply, preferably one that never occurs within it."""
        inside = self._marks_inside_replies()
        ends: list[tuple[bool, str]] = []
        tail, why = "", ""
        for ends_replies in (True, False):  # some templates end a reply only if a message follows
            try:
                text = self.text([USER, REPLY] if ends_replies else [USER, REPLY, USER])
            except Exception as error:  # some templates need a user message at the end
                why = f"{type(error).__name__}: {error}"
                continue
            tail = text.rpartition("Qzreply")[2]
            marks = self.control.pattern.findall(tail)
            ends += [(ends_replies, mark) for mark in marks]
        if why and not ends:
            raise self._unusable(f"cannot render a reply: {why}")
        choices = [choice for choice in ends if choice[1] not in inside] or ends
        if not choices:
            raise self._unusable(
                f"ends a reply with {tail!r:.100}, which contains no control token, so the model "
                "would never stop"
            )
        self._ends_replies, end = choices[0]
        return end

    def _marks_inside_replies(self) -> set[str]:
        """Return the control tokens between thought and text, and between text and calls."""
        marks: set[str] = set()
        try:
            for self._thought_form in _THOUGHT_FORMS:
                text = self.probed(USER, THOUGHT)
                between = text.rpartition("Qzthought")[2].partition("Qzreply")
                if "Qzthought" in text and between[1]:
                    marks |= set(self.control.pattern.findall(between[0]))
        finally:
            self._thought_form = ""
        reply = Message(role="assistant", content="Qzreply", tool_calls=CALLS["tool_calls"])
        head, _, tail = self.probed(carrier([TOOL], ""), USER, reply).partition("Qzreply")
        if "qzname" in tail and "qzname" not in head.rpartition("Qzuser")[2]:
            marks |= set(self.control.pattern.findall(tail.partition("qzname")[0]))
        return marks

    @property
    def closes_thoughts(self) -> bool:
        """Whether the prompt closes a thought, so that replies start after it."""
        between = self.thought[1].strip() if self.thought is not None else ""
        return bool(between) and between in self.opening

    @property
    def opens_thoughts(self) -> bool:
        """Whether the prompt opens a thought, so that replies start inside it."""
        if self.thought is None or self.closes_thoughts:
            return False
        return self.opening.rstrip().endswith(self.thought[0].strip())

    def marks_end(self, stop: int) -> bool:
        """Return whether the template ends plain replies with this stop token."""
        return self.control.by_id[stop] in self.probed(USER, REPLY).rpartition("Qzreply")[2]

    def reply_to(self, *messages: Message) -> str:
        """Return the last message's text after the opening, or "" if the template rejects it."""
        opened = self.probed(*messages[:-1], opens=True)
        text = self._up_to_end(self.probed(*messages))
        end = self.control.by_id[self.stops[0]]
        return text.removeprefix(self.shared_prefix(text, opened)).removesuffix(end)

    def _up_to_end(self, text: str) -> str:
        """Remove the text after the last reply, because it belongs to the next message."""
        if not self._ends_replies:
            return text
        names = (self.control.by_id[stop] for stop in self.stops)
        ends = (text.rindex(name) + len(name) for name in names if name in text)
        return text[: max(ends, default=len(text))]

    def _learn_thought(self) -> tuple[str, str] | None:
        for self._thought_form in _THOUGHT_FORMS:
            text = self.reply_to(USER, THOUGHT)
            before, thought, tail = text.partition("Qzthought")
            between, reply, _ = tail.partition("Qzreply")
            # A quote before the thought means that the template printed the parts as Python code.
            if thought and reply and before[-1:] not in ("'", '"'):
                return before, self._before_calls(between)
        self._thought_form = ""
        marks = set(self.control.names)
        pairs = (pair for pair in _KNOWN_THOUGHTS if {*pair} <= marks or pair[0] in self.opening)
        return next(pairs, None)

    def _before_calls(self, between: str) -> str:
        """Return the leading part of ``between`` that also occurs between a thought and a call."""
        calls = CALLS["tool_calls"]
        reply = Message(role="assistant", content=thinking("Qzthought", ""), tool_calls=calls)
        tail = self.probed(carrier([TOOL], ""), USER, reply).rpartition("Qzthought")[2]
        shared = self.shared_prefix(between, tail) if "qzname" in tail else ""
        return shared if shared.strip() else between

    def _learn_text_frame(self) -> tuple[list[str], str]:
        plain, _, tail = self.reply_to(USER, REPLY).partition("Qzreply")
        heads = [plain]
        if self._thought_form and self.thought is not None:
            text = self.reply_to(USER, THOUGHT).partition("Qzthought")[2]
            heads.append(text.partition("Qzreply")[0].removeprefix(self.thought[1]))
        heads = sorted({head.strip() for head in heads} - {""}, key=len, reverse=True)
        return heads, tail.strip()

    def _learn_calls(self) -> CallFormat | None:
        offered = carrier([TOOL], "")
        try:
            if "qzname" not in self.text([offered, USER]):
                self.why_no_calls = "it does not render the tools"
                return None
        except Exception as error:  # templates can raise anything
            self.why_no_calls = f"it rejects tools: {error}"
            return None
        for self._arguments_as_text in (False, True):
            for self._probe_ids in (PROBE_IDS, PROBE_IDS_WITH_NAMES):
                try:
                    form = learn_calls(self.render_calls)
                except NotLearnedError as error:
                    self.why_no_calls = self.why_no_calls or str(error)
                else:
                    self.why_no_calls = ""
                    self._short_ids = self._needs_short_ids()
                    return self._without_stop(form)
        self._arguments_as_text = False
        table_form = from_table(self.control.names)
        self.writes_calls = table_form is not None
        return table_form

    def render_calls(self, calls: Sequence[FunctionCall], preface: str = "") -> str:
        """Render a reply with ``preface`` and calls, or raise ValueError if the template can't."""
        offered = carrier([TOOL], "")
        tool_calls = [
            probe_call(self._probe_ids.format(number=number, name=call.name), *call[:2])
            for number, call in enumerate(calls)
        ]
        reply = Message(role="assistant", content=preface, tool_calls=tool_calls)
        try:
            text = self.text([offered, USER, reply])
        except Exception as error:  # templates can raise anything
            raise ValueError(f"{type(error).__name__}: {error!s:.200}") from error
        text = text.removeprefix(self.shared_prefix(text, self.probed(offered, USER, opens=True)))
        ends = (text.rfind(word) + len(word) for word in ("qzend", "qzname", "70002", TEXT))
        last = max((end for end in ends if 0 < end <= len(text)), default=0)
        stops = [text.find(self.control.by_id[stop], last) for stop in self.stops]
        text = text[: min((at for at in stops if at >= 0), default=len(text))]
        text = text.removeprefix(self.shared_prefix(text, self.reply_to(offered, USER, REPLY)))
        if self.thought is not None and (mark := self.thought[1].strip()):
            head, _, tail = text.partition(mark)
            text = tail if "qzname" in tail and "qzname" not in head else text
        return text

    def _needs_short_ids(self) -> bool:
        """Return whether the template rejects OpenAI-style ids and needs short ones."""
        if self._probe_ids != PROBE_IDS:
            return False
        calls = [probe_call("call_0123456789abcdef01234567", *FIRST[:2])]
        reply = Message(role="assistant", content="", tool_calls=calls)
        result: Message = {**RESULT, "tool_call_id": str(calls[0].id)}
        return not self.probed(carrier([TOOL], ""), USER, reply, result)

    def _without_stop(self, form: CallFormat) -> CallFormat:
        """If a token only ends replies that contain calls, move it from the format to the stops."""
        end = next((token for token in reversed(form.after) if not token.isspace()), "")
        if end not in self._ids or end in (form.between or ()):
            return form
        text = self.probed(carrier([TOOL], ""), USER, CALLS).rpartition("qzend")[2]
        if not text or any(self.control.by_id[stop] in text for stop in self.stops):
            return form
        self.stops.append(self._ids[end])
        cut = len(form.after) - 1 - form.after[::-1].index(end)
        return replace(form, after=form.after[:cut])


def _ends_of(folder: str) -> list[int]:
    ends = read_json(Path(folder) / "generation_config.json").get("eos_token_id")
    ids = ends if isinstance(ends, list) else [ends]
    return [end for end in ids if type(end) is int]
