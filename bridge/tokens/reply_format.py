"""How a chat template writes replies: what opens and ends one, thoughts, frames and calls.

It is learned from small made-up conversations that the template renders. Texts are compared token
by token, so that no difference cuts through a mark (``<think>``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinker_cookbook.renderers.base import Message

from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens.call_format import Call, CallFormat
from evert.bridge.tokens.call_kinds import HERMES_CALLS
from evert.bridge.tokens.call_learning import FIRST, SAY, NotLearnedError, learn_calls, of_table
from evert.bridge.tokens.harmony import STOPS as HARMONY_STOPS
from evert.bridge.tokens.harmony import is_harmony
from evert.bridge.tokens.pretrained import read_json
from evert.bridge.tokens.probes import (
    CALLS,
    PROBE_IDS,
    PROBE_IDS_WITH_NAMES,
    RESULT,
    SAID,
    THOUGHTFUL,
    TOOL,
    USER,
    carrier,
    made_up,
    thinking,
)
from evert.bridge.tokens.template_text import BLOCKS, PARTS, TemplateText

_WAYS_OF_THOUGHTS = ("reasoning_content", "thinking", "reasoning", PARTS, BLOCKS)
_KNOWN_THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
"""Marks of thoughts that a template may not show: it strips them, or its prompt opens them."""


class LearnedReplies(TemplateText):
    """The replies of a chat template; ``ChatTemplate`` has the arguments.

    Attributes:
        opening: Text that opens a reply.
        stops: Token ids: the template's end of a reply, then the model's other end tokens.
        ends_a_thought: Whether the template ends a reply with a token that also stands inside one;
            it is a stop only if the model has no other.
        heads: What may stand between the opening, or a thought, and a reply's text.
        foot: What stands between a reply's text and its end.
        why_no_calls: Why ``calls`` is None: which probe failed, and what it saw.
        harmony: Whether replies are made of several messages (``harmony.py``).
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
        self.heads, self.foot = self._learn_frame_of_text()
        self.why_no_calls = ""
        self.calls = HERMES_CALLS if hermes else self._learn_calls()

    def _learn_opening(self) -> str:
        try:
            for takes_parts in (False, True):
                self._takes_parts = takes_parts
                opened = self.text([USER], opens=True)
                if "Qzuser" in opened:
                    return opened.removeprefix(self.common(opened, self.text([USER])))
        except Exception as error:
            raise self._unusable(
                f"cannot show a user's message: {type(error).__name__}: {error}"
            ) from error
        raise self._unusable(f"shows a user's message as {opened!r:.300}, without its text")

    def _unusable(self, why: str) -> RendererMismatchError:
        return RendererMismatchError(
            f"The chat template of {self._tokenizer.name_or_path!r} {why}. Check the model's "
            "chat_template, or name the Cookbook renderer that the model was trained with: "
            "renderer_name=."
        )

    def _learn_stops(self) -> list[int]:
        end = self._end_of_a_reply()
        ends = [self._tokenizer.eos_token_id, *_ends_of(self._tokenizer.name_or_path)]
        if self.harmony:
            ends += [self._ids[name] for name in HARMONY_STOPS if name in self._ids]
        inside = {self._ids[name] for name in self._marks_inside_replies()}
        known = [stop for stop in ends if stop in self.control.by_id and stop not in inside]
        self.ends_a_thought = self._ids[end] in inside
        stops = known if known and self.ends_a_thought else [self._ids[end], *known]
        return list(dict.fromkeys(stops))

    def _end_of_a_reply(self) -> str:
        """The control token that ends a reply, and is not one that stands inside replies."""
        inside = self._marks_inside_replies()
        ends: list[tuple[bool, str]] = []
        rest, why = "", ""
        for ends_replies in (True, False):  # some end a reply only before the next message
            try:
                text = self.text([USER, SAID] if ends_replies else [USER, SAID, USER])
            except Exception as error:  # the last message may have to be the user's
                why = f"{type(error).__name__}: {error}"
                continue
            rest = text.rpartition("Qzreply")[2]
            marks = self.control.pattern.findall(rest)
            ends += [(ends_replies, mark) for mark in marks]
        if why and not ends:
            raise self._unusable(f"cannot show a reply: {why}")
        choices = [choice for choice in ends if choice[1] not in inside] or ends
        if not choices:
            raise self._unusable(
                f"ends a reply with {rest!r:.100}, which holds no control token, so that a reply "
                "would never end"
            )
        self._ends_replies, end = choices[0]
        return end

    def _marks_inside_replies(self) -> set[str]:
        """Control tokens between a reply's thought and its text, or its text and its calls."""
        marks: set[str] = set()
        try:
            for self._way_of_thoughts in _WAYS_OF_THOUGHTS:
                text = self.probed(USER, THOUGHTFUL)
                between = text.rpartition("Qzthought")[2].partition("Qzreply")
                if "Qzthought" in text and between[1]:
                    marks |= set(self.control.pattern.findall(between[0]))
        finally:
            self._way_of_thoughts = ""
        said = Message(role="assistant", content="Qzreply", tool_calls=CALLS["tool_calls"])
        head, _, rest = self.probed(carrier([TOOL], ""), USER, said).partition("Qzreply")
        if "qzname" in rest and "qzname" not in head.rpartition("Qzuser")[2]:
            marks |= set(self.control.pattern.findall(rest.partition("qzname")[0]))
        return marks

    @property
    def closes_thoughts(self) -> bool:
        """Whether the prompt closes a thought, so that a reply begins after it."""
        between = self.thought[1].strip() if self.thought is not None else ""
        return bool(between) and between in self.opening

    @property
    def opens_thoughts(self) -> bool:
        """Whether the prompt opens a thought, so that a reply begins inside it."""
        if self.thought is None or self.closes_thoughts:
            return False
        return self.opening.rstrip().endswith(self.thought[0].strip())

    def marks_end(self, stop: int) -> bool:
        """Whether the template itself ends a plain reply with this stop."""
        return self.control.by_id[stop] in self.probed(USER, SAID).rpartition("Qzreply")[2]

    def reply_to(self, *messages: Message) -> str:
        """The last message's text after the opening; "" if the template refuses."""
        opened = self.probed(*messages[:-1], opens=True)
        text = self._to_its_end(self.probed(*messages))
        end = self.control.by_id[self.stops[0]]
        return text.removeprefix(self.common(text, opened)).removesuffix(end)

    def _to_its_end(self, text: str) -> str:
        """A text up to the end of its last reply; the rest belongs to the next message."""
        if not self._ends_replies:
            return text
        names = (self.control.by_id[stop] for stop in self.stops)
        ends = (text.rindex(name) + len(name) for name in names if name in text)
        return text[: max(ends, default=len(text))]

    def _learn_thought(self) -> tuple[str, str] | None:
        for self._way_of_thoughts in _WAYS_OF_THOUGHTS:
            text = self.reply_to(USER, THOUGHTFUL)
            before, thought, rest = text.partition("Qzthought")
            between, reply, _ = rest.partition("Qzreply")
            if thought and reply and before[-1:] not in ("'", '"'):  # quoted: the parts as they are
                return before, self._before_calls(between)
        self._way_of_thoughts = ""
        marks = set(self.control.names)
        pairs = (pair for pair in _KNOWN_THOUGHTS if {*pair} <= marks or pair[0] in self.opening)
        return next(pairs, None)

    def _before_calls(self, between: str) -> str:
        """What closes a thought, before a text and before a call."""
        calls = CALLS["tool_calls"]
        called = Message(role="assistant", content=thinking("Qzthought", ""), tool_calls=calls)
        rest = self.probed(carrier([TOOL], ""), USER, called).rpartition("Qzthought")[2]
        shared = self.common(between, rest) if "qzname" in rest else ""
        return shared if shared.strip() else between

    def _learn_frame_of_text(self) -> tuple[list[str], str]:
        plain, _, rest = self.reply_to(USER, SAID).partition("Qzreply")
        heads = [plain]
        if self._way_of_thoughts and self.thought is not None:
            text = self.reply_to(USER, THOUGHTFUL).partition("Qzthought")[2]
            heads.append(text.partition("Qzreply")[0].removeprefix(self.thought[1]))
        heads = sorted({head.strip() for head in heads} - {""}, key=len, reverse=True)
        return heads, rest.strip()

    def _learn_calls(self) -> CallFormat | None:
        offered = carrier([TOOL], "")
        try:
            if "qzname" not in self.text([offered, USER]):
                self.why_no_calls = "it does not show the tools that are offered"
                return None
        except Exception as error:  # a template may raise anything
            self.why_no_calls = f"it refuses tools: {error}"
            return None
        for self._arguments_as_text in (False, True):
            for self._probe_ids in (PROBE_IDS, PROBE_IDS_WITH_NAMES):
                try:
                    form = learn_calls(self.shown_calls)
                except NotLearnedError as error:
                    self.why_no_calls = self.why_no_calls or str(error)
                else:
                    self.why_no_calls = ""
                    self._ids_of_nine = self._demands_ids_of_nine()
                    return self._without_its_stop(form)
        self._arguments_as_text = False
        known = of_table(self.control.names)
        self.writes_calls = known is not None
        return known

    def shown_calls(self, calls: Sequence[Call], say: str = "") -> str:
        """The text of calls in a reply, after ``say``. Raises ValueError if they are refused."""
        offered = carrier([TOOL], "")
        written = [
            made_up(self._probe_ids.format(number=number, name=call.name), *call[:2])
            for number, call in enumerate(calls)
        ]
        said = Message(role="assistant", content=say, tool_calls=written)
        try:
            text = self.text([offered, USER, said])
        except Exception as error:  # a template may raise anything
            raise ValueError(f"{type(error).__name__}: {error!s:.200}") from error
        text = text.removeprefix(self.common(text, self.probed(offered, USER, opens=True)))
        ends = (text.rfind(word) + len(word) for word in ("qzend", "qzname", "70002", SAY))
        last = max((end for end in ends if 0 < end <= len(text)), default=0)
        stops = [text.find(self.control.by_id[stop], last) for stop in self.stops]
        text = text[: min((at for at in stops if at >= 0), default=len(text))]
        text = text.removeprefix(self.common(text, self.reply_to(offered, USER, SAID)))
        if self.thought is not None and (mark := self.thought[1].strip()):
            head, _, rest = text.partition(mark)
            text = rest if "qzname" in rest and "qzname" not in head else text
        return text

    def _demands_ids_of_nine(self) -> bool:
        """Whether the template refuses ids in OpenAI's form; all take nine letters and digits."""
        if self._probe_ids != PROBE_IDS:
            return False
        calls = [made_up("call_0123456789abcdef01234567", *FIRST[:2])]
        called = Message(role="assistant", content="", tool_calls=calls)
        result = RESULT | {"tool_call_id": str(calls[0].id)}
        return not self.probed(carrier([TOOL], ""), USER, called, result)

    def _without_its_stop(self, form: CallFormat) -> CallFormat:
        """The format without a token that ends replies with calls only; it becomes a stop."""
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
    found = ends if isinstance(ends, list) else [ends]
    return [end for end in found if type(end) is int]
