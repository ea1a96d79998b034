"""Renders texts with a tokenizer's chat template, and learns the template's format.

When a ``ChatTemplate`` is created, it renders a few small made-up conversations. They show what
opens and ends a reply, how a thought and a tool call are written, what frames a text, what
separates messages, and whether a message always adds the same text, whatever comes before it.
Texts are compared token by token, so that no difference cuts through a mark (``<think>``).

For a template the date is always ``TODAY``, so that a run can be resumed on another day.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from tinker_cookbook.renderers.base import (
    Message,
    RenderContext,
    ToolCall,
    ToolSpec,
    get_text_content,
)

from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens.call_format import HERMES_CALLS, Call, CallFormat
from evert.bridge.tokens.call_learning import FIRST, SAY, NotLearnedError, learn_calls, of_table
from evert.bridge.tokens.escaping import MARK, ControlTokens
from evert.bridge.tokens.harmony import STOPS as HARMONY_STOPS
from evert.bridge.tokens.harmony import is_harmony
from evert.bridge.tokens.pretrained import read_json
from evert.bridge.tokens.probes import (
    CALLS,
    PROBE_IDS,
    PROBE_IDS_WITH_NAMES,
    RESULT,
    SAID,
    SYSTEM,
    THOUGHTFUL,
    TOOL,
    TOOLS,
    USER,
    carrier,
    common,
    is_tool,
    made_up,
    parts,
    shapes,
    stand_in,
    thinking,
)
from evert.bridge.tokens.template_variables import check_variables

TODAY = datetime(2024, 7, 26)
"""The date that a template gets: the one that Llama's templates use without a clock."""

PARTS, BLOCKS = "parts", "blocks"
"""Ways to hand over a thought: a part of the content (Ministral), a block of it (Apertus)."""

_EDGE = re.compile(r"\s|[>\]|]")
_WAYS_OF_THOUGHTS = ("reasoning_content", "thinking", "reasoning", PARTS, BLOCKS)
_KNOWN_THOUGHTS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|inner_prefix|>", "<|inner_suffix|>"),
)
"""Marks of thoughts that a template may not show: it strips them, or its prompt opens them."""


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: The model's, with its ``chat_template``.
        hermes: Whether to write tools, calls and results into the messages' texts in Hermes'
            format, for a template that ignores them.
        variables: Values of variables that the template reads, such as ``enable_thinking``.

    Attributes:
        control: The tokenizer's control tokens.
        opening: Text that opens a reply.
        stops: Token ids: the template's end of a reply, then the model's other end tokens.
        ends_a_thought: Whether the template ends a reply with a token that also stands inside one;
            it is a stop only if the model has no other.
        thought: Texts before a thought, and between it and the reply; None: thoughts are not shown.
        heads: What may stand between the opening, or a thought, and a reply's text.
        foot: What stands between a reply's text and its end.
        calls: Format of tool calls; None: tools are not shown, or calls cannot be read back.
        why_no_calls: Why ``calls`` is None: which probe failed, and what it saw.
        writes_calls: Whether calls are written into the texts, since the template shows none.
        harmony: Whether replies are made of several messages (``harmony.py``).
        frames: Texts without a control token that separate messages (``[/INST]``).
        is_additive: Whether each message adds its own text and changes no other text.

    Raises:
        RendererMismatchError: There is no template, or it cannot be used; the message says why.
    """

    def __init__(
        self, tokenizer: Any, *, hermes: bool, variables: Mapping[str, Any] | None = None
    ) -> None:
        self._tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise RendererMismatchError(
                f"The tokenizer {tokenizer.name_or_path!r} has no chat template, so the format of "
                "prompts for its model is unknown. Take a model that was tuned for chat, or name "
                "the Cookbook renderer that it was trained with: renderer_name=."
            )
        self.hermes = hermes
        self.variables = {**(variables or {})}
        check_variables(tokenizer, self.variables)
        self.control = ControlTokens(tokenizer)
        self._ids = {name: number for number, name in self.control.by_id.items()}
        self._way_of_thoughts, self._takes_parts = "", False
        self._ids_of_nine = self._arguments_as_text = False
        self._probe_ids, self.writes_calls = PROBE_IDS, hermes
        self._stand_ins: dict[tuple[str, bool], str] = {}  # rendered texts of ``stand_in``
        self.opening = self._learn_opening()
        self.harmony = is_harmony(self.control.names)
        self._ends_replies = True
        self.stops = self._learn_stops()
        self.thought = self._learn_thought()
        self.heads, self.foot = self._learn_frame_of_text()
        self.why_no_calls = ""
        self.calls = HERMES_CALLS if hermes else self._learn_calls()
        self._opens_alone = self._can_open_alone()
        self.frames = self._learn_frames()
        kinds = shapes(thinks=self.thought is not None, calls=self.calls is not None)
        self.is_additive = self._ends_replies and all(map(self._adds_up, kinds))

    def text(self, messages: Sequence[Message], *, opens: bool = False) -> str:
        """The messages' text; ``opens`` adds a reply's opening. Raises what the template raises."""
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
                if is_tool(before):  # one message for several results: roles may have to alternate
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
                strftime_now=TODAY.strftime,
                **self.variables,
            )
        )

    def _as_chat(self, message: Message) -> dict[str, Any]:
        text = get_text_content(message)
        chat: dict[str, Any] = {"role": message["role"], "content": text}
        calls = [self._as_call(*call) for call in enumerate(message.get("tool_calls", ()))]
        if calls and self.writes_calls and self.calls is not None:
            written = [Call(**call["function"], id=call["id"]) for call in calls]
            chat["content"] = "\n".join(filter(None, [text, self.calls.written(written)]))
        elif calls:
            chat["tool_calls"] = calls
        if not isinstance(content := message["content"], str):
            thought = "".join(part["thinking"] for part in content if part["type"] == "thinking")
            chat |= self._with_thought(thought, str(chat["content"])) if thought else {}
        chat |= {key: message[key] for key in ("name", "tool_call_id") if key in message}
        if self._ids_of_nine and "tool_call_id" in chat:
            chat["tool_call_id"] = id_of_nine(chat["tool_call_id"])
        if self._takes_parts and isinstance(chat["content"], str):
            chat["content"] = parts(chat["content"])
        return chat

    def _with_thought(self, thought: str, text: str) -> dict[str, Any]:
        """The fields of a message with a thought, in the template's way."""
        if self._way_of_thoughts == PARTS:
            return {"content": thinking(thought, text)}
        if self._way_of_thoughts == BLOCKS:
            blocks = [{"type": "thoughts", "text": thought}, {"type": "response", "text": text}]
            return {"content": {"blocks": blocks}}
        if self._way_of_thoughts:
            return {self._way_of_thoughts: thought}
        return {} if self.thought is None else {"content": thought.join(self.thought) + text}

    def _as_call(self, number: int, call: ToolCall) -> dict[str, Any]:
        arguments: Any = call.function.arguments
        with suppress(ValueError, RecursionError):
            arguments = arguments if self._arguments_as_text else json.loads(arguments)
        call_id = call.id
        if self._ids_of_nine:
            call_id = id_of_nine(call_id or f"{call.function.name} {number}")
        function = {"name": call.function.name, "arguments": arguments}
        return {"type": "function", "id": call_id, "function": function}

    # -- one message at a time -------------------------------------------------------------------

    def shown(self, message: Message, ctx: RenderContext) -> str:
        """The text that one message adds. If tool results share a frame, the last adds its end."""
        added = self.added(ctx, message)
        if is_tool(message) and is_tool(ctx.next_message):
            return common(added, self.added(ctx, message, RESULT))
        return added

    def added(self, ctx: RenderContext, *after: Message) -> str:
        """The text that the messages ``after`` add; without any, the text that opens a reply."""
        kind, before = stand_in(ctx)
        if after and not before and self._is_held_back(after[0]):
            return ""  # the next message shows it
        if after:
            whole = self.text([*before, *after])
            whole = self._to_its_end(whole) if after[-1]["role"] == "assistant" else whole
        else:
            whole = self._remembered(kind, before, opens=True)
        if not before or (ctx.idx == 1 and self._is_held_back(before[0])):
            return whole
        begins = self._remembered(kind, before)
        if before[-1]["role"] == "assistant":
            begins = self._to_its_end(begins)
        elif after and is_tool(before[-1]) and is_tool(after[0]):
            begins = common(begins, whole)  # several results may share one frame
        if not whole.startswith(begins):
            raise RendererMismatchError("The template changes a message when others follow.")
        return whole[len(begins) :]

    def _remembered(self, kind: str, messages: list[Message], *, opens: bool = False) -> str:
        text = self._stand_ins.get((kind, opens)) or self.text(messages, opens=opens)
        if kind:
            self._stand_ins[kind, opens] = text
        return text

    def _is_held_back(self, message: Message) -> bool:
        """Whether a template shows a conversation's first message only with the second."""
        role = message["role"]
        return role == TOOLS or (role == "system" and not self._opens_alone)

    def _to_its_end(self, text: str) -> str:
        """A text up to the end of its last reply; the rest belongs to the next message."""
        if not self._ends_replies:
            return text
        names = (self.control.by_id[stop] for stop in self.stops)
        ends = (text.rindex(name) + len(name) for name in names if name in text)
        return text[: max(ends, default=len(text))]

    # -- the template's format ---------------------------------------------------------------------

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

    def common(self, text: str, other: str) -> str:
        """The longest common prefix that cuts through no mark and no word."""
        shared = common(text, other)
        for mark in self.control.pattern.finditer(text):
            if mark.start() < len(shared) < mark.end():
                return text[: mark.start()]
        edges = [match.end() for match in _EDGE.finditer(shared)]
        if shared in (text, other) or _EDGE.match(text, len(shared)) or edges[-1:] == [len(shared)]:
            return shared
        return text[: edges[-1] if edges else 0]

    def probed(self, *messages: Message, opens: bool = False) -> str:
        """The text of made-up messages; "" if the template refuses them."""
        try:
            return self.text(messages, opens=opens)
        except Exception:  # a template may raise anything
            return ""

    def marks_end(self, stop: int) -> bool:
        """Whether the template itself ends a plain reply with this stop."""
        return self.control.by_id[stop] in self.probed(USER, SAID).rpartition("Qzreply")[2]

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

    def reply_to(self, *messages: Message) -> str:
        """The last message's text after the opening; "" if the template refuses."""
        opened = self.probed(*messages[:-1], opens=True)
        text = self._to_its_end(self.probed(*messages))
        end = self.control.by_id[self.stops[0]]
        return text.removeprefix(self.common(text, opened)).removesuffix(end)

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
        form_of_table = of_table(self.control.names)
        self.writes_calls = form_of_table is not None
        return form_of_table

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

    def _can_open_alone(self) -> bool:
        try:
            alone = self.text([SYSTEM])
            return "Qzsystem" in alone and self.text([SYSTEM, USER]).startswith(alone)
        except Exception:  # a template may raise anything
            return False

    def _learn_frames(self) -> list[str]:
        found: dict[str, None] = {}
        for shape in ([USER, SAID, USER, SAID], [SYSTEM, USER, SAID]):
            try:
                rest = self.text(shape)
            except Exception:  # it has no system message
                continue
            for before, after in pairwise(shape):
                rest = rest.partition(str(before["content"]))[2]
                frame = rest.partition(str(after["content"]))[0]
                if not self.control.pattern.search(frame):
                    found[frame.strip()] = None
        return [frame for frame in found if len(frame) > 1]

    def _adds_up(self, messages: list[Message]) -> bool:
        """Whether the messages' own tokens, one after the other, equal those of the whole."""
        try:
            whole = self.text(messages, opens=True)
        except Exception:  # the template refuses such conversations, so there are none
            return True
        contexts = [
            RenderContext(idx=at, is_last=False, prev_message=before, next_message=after)
            for at, (before, after) in enumerate(
                zip([None, *messages], [*messages[1:], None, None], strict=True)
            )
        ]
        try:
            texts = [self.shown(*one) for one in zip(messages, contexts, strict=False)]
            opening = self.added(contexts[-1])
        except Exception:  # a template may raise anything
            return False
        encode = partial(self._tokenizer.encode, add_special_tokens=False)
        runs = [""]  # texts that are encoded at once, each up to a reply's end
        for message, text in zip(messages, texts, strict=True):
            runs[-1] += text
            runs += [""] if message["role"] == "assistant" else []
        tokens = [run for run in map(encode, [*runs, opening]) if run]
        ends = self.control.by_id
        is_safe = not opening or tokens[-1][0] in ends or tokens[-2][-1] in ends
        return is_safe and [*chain(*tokens)] == encode(whole)


def _ends_of(folder: str) -> list[int]:
    ends = read_json(Path(folder) / "generation_config.json").get("eos_token_id")
    found = ends if isinstance(ends, list) else [ends]
    return [end for end in found if type(end) is int]


def id_of_nine(call_id: str) -> str:
    """A call's id as nine letters and digits, which every template takes; made from the id."""
    plain = call_id.replace(MARK, "")
    if re.fullmatch(r"[a-zA-Z0-9]{9}", plain):
        return call_id
    return hashlib.blake2b(plain.encode(errors="replace"), digest_size=5).hexdigest()[:9]
