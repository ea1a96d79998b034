"""Renders texts with a tokenizer's chat template, and learns the template's format.

When a ``ChatTemplate`` is created, it renders a few small made-up conversations. They show what
opens and ends a reply, how a thought and a tool call are written, what separates messages, and
whether a message always adds the same text, whatever comes before it.

For a template the date is always ``TODAY``, so that a run can be resumed on another day.
"""

import json
from collections.abc import Sequence
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
from evert.bridge.tokens.call_format import (
    HERMES_CALLS,
    Call,
    CallFormat,
    common,
    find_format,
    hermes_text,
)
from evert.bridge.tokens.escaping import ControlTokens
from evert.bridge.tokens.pretrained import read_json
from evert.bridge.tokens.probes import (
    RESULT,
    SAID,
    SYSTEM,
    TOOL,
    TOOLS,
    USER,
    carrier,
    is_tool,
    made_up,
    parts,
    shapes,
    stand_in,
    thinking,
)

TODAY = datetime(2024, 7, 26)
"""The date that a template gets: the one that Llama's templates use without a clock."""

_KEYS_OF_THOUGHTS = ("reasoning_content", "thinking", "reasoning")


class ChatTemplate:
    """The chat template of a tokenizer.

    Args:
        tokenizer: The model's, with its ``chat_template``.
        hermes: Whether to write tools, calls and results into the messages' texts in Hermes'
            format, for a template that ignores them.

    Attributes:
        opening: Text that opens a reply.
        stops: Token ids: the template's end of a reply, then the model's other end tokens.
        thought: Texts before a thought, and between it and the reply; None: thoughts are not shown.
        calls: Format of tool calls; None: tools are not shown, or calls cannot be read back.
        frames: Texts without a control token that separate messages (``[/INST]``).
        is_additive: Whether each message adds its own text and changes no other text.

    Raises:
        RendererMismatchError: There is no template, or it cannot be used; the message says why.
    """

    def __init__(self, tokenizer: Any, *, hermes: bool) -> None:
        self._tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise RendererMismatchError(
                f"The tokenizer {tokenizer.name_or_path!r} has no chat template, so the format of "
                "prompts for its model is unknown. Take a model that was tuned for chat, or name "
                "the Cookbook renderer that it was trained with: renderer_name=."
            )
        self.hermes = hermes
        self._control = ControlTokens(tokenizer)
        self._thought_key, self._takes_parts = "", False
        self._stand_ins: dict[tuple[str, bool], str] = {}  # rendered texts of ``stand_in``
        self.opening = self._learn_opening()
        self._ends_replies = True
        self.stops = self._learn_stops()
        self.thought = self._learn_thought()
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
            )
        )

    def _as_chat(self, message: Message) -> dict[str, Any]:
        chat: dict[str, Any] = {"role": message["role"], "content": get_text_content(message)}
        if not isinstance(content := message["content"], str):
            thought = "".join(part["thinking"] for part in content if part["type"] == "thinking")
            if thought and self._thought_key:
                chat[self._thought_key] = thought
            elif thought and self.thought is not None:
                chat["content"] = thought.join(self.thought) + chat["content"]
        calls = [_as_call(call) for call in message.get("tool_calls", ())]
        if calls and self.hermes:
            functions = [json.dumps(call["function"]) for call in calls]
            chat["content"] = "\n".join(filter(None, [chat["content"], hermes_text(functions)]))
        elif calls:
            chat["tool_calls"] = calls
        chat |= {key: message[key] for key in ("name", "tool_call_id") if key in message}
        if self._takes_parts:
            chat["content"] = parts(chat["content"])
        return chat

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
        name = self._control.by_id[self.stops[0]]
        return text[: text.rindex(name) + len(name)]

    # -- the template's format ---------------------------------------------------------------------

    def _learn_opening(self) -> str:
        try:
            for takes_parts in (False, True):
                self._takes_parts = takes_parts
                opened = self.text([USER], opens=True)
                if "Qzuser" in opened:
                    return opened.removeprefix(common(opened, self.text([USER])))
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
        found = None
        for shape in ([USER, SAID], [USER, SAID, USER]):  # some end it only before the next message
            rest = self.text(shape).rpartition("Qzreply")[2]
            found = self._control.pattern.search(rest)
            if found is not None:
                break
            self._ends_replies = False
        if found is None:
            raise self._unusable(
                f"ends a reply with {rest!r:.100}, which holds no control token, so that a reply "
                "would never end"
            )
        ids = {name: number for number, name in self._control.by_id.items()}
        stops = [
            ids[found[0]],
            self._tokenizer.eos_token_id,
            *_ends_of(self._tokenizer.name_or_path),
        ]
        return list(dict.fromkeys(stop for stop in stops if stop in self._control.by_id))

    def _reply_to(self, *messages: Message) -> str:
        """The last message's text after the opening; "" if the template refuses."""
        try:
            opened = self.text(messages[:-1], opens=True)
            text = self._to_its_end(self.text(messages))
        except Exception:  # a template may raise anything
            return ""
        end = self._control.by_id[self.stops[0]]
        return text.removeprefix(common(text, opened)).removesuffix(end)

    def _learn_thought(self) -> tuple[str, str] | None:
        said = Message(role="assistant", content=thinking("Qzthought", "Qzreply"))
        for key in _KEYS_OF_THOUGHTS:
            self._thought_key = key
            before, found, rest = self._reply_to(USER, said).partition("Qzthought")
            between, found_too, _ = rest.partition("Qzreply")
            if found and found_too:
                return before, between
        self._thought_key = ""
        known = {"<think>", "</think>"} <= set(self._control.names)
        return ("<think>", "</think>") if known or "<think>" in self.opening else None

    def _learn_calls(self) -> CallFormat | None:
        offered = carrier([TOOL], "")
        try:
            if "qzname" not in self.text([offered, USER]):
                return None
        except Exception:  # a template may raise anything
            return None

        def shown(calls: list[Call]) -> str:
            written = [made_up(number, *call) for number, call in enumerate(calls)]
            said = Message(role="assistant", content="", tool_calls=written)
            text = self._reply_to(offered, USER, said)
            return text.removeprefix(common(text, plain))

        plain = self._reply_to(offered, USER, SAID)
        return find_format(shown)

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
                if not self._control.pattern.search(frame):
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
        ends = self._control.by_id
        is_safe = not opening or tokens[-1][0] in ends or tokens[-2][-1] in ends
        return is_safe and [*chain(*tokens)] == encode(whole)


def _as_call(call: ToolCall) -> dict[str, Any]:
    try:
        arguments = json.loads(call.function.arguments)
    except ValueError:
        arguments = call.function.arguments
    function = {"name": call.function.name, "arguments": arguments}
    return {"type": "function", "id": call.id, "function": function}


def _ends_of(folder: str) -> list[int]:
    ends = read_json(Path(folder) / "generation_config.json").get("eos_token_id")
    found = ends if isinstance(ends, list) else [ends]
    return [end for end in found if type(end) is int]
