"""Renders whole conversations or single messages with a chat template.

Made-up conversations are rendered to find out what separates messages, and whether the text added
by a message depends on the messages before it.
"""

from collections.abc import Mapping
from functools import partial
from itertools import chain, pairwise
from typing import Any

from tinker_cookbook.renderers.base import Message, RenderContext

from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens.probes import (
    REPLY,
    RESULT,
    SYSTEM,
    TOOLS,
    USER,
    common_prefix,
    is_tool,
    shapes,
    stand_in,
)
from evert.bridge.tokens.reply_format import LearnedReplies


class ChatTemplate(LearnedReplies):
    """A tokenizer's chat template.

    Args:
        tokenizer: The model's tokenizer, which must have a ``chat_template``.
        hermes: Whether to write tools, calls and results into the message text in Hermes format.
            Use this if the template ignores them.
        variables: Values for the template's variables, such as ``enable_thinking``.

    Attributes:
        frames: Separators between messages, without control tokens, such as ``[/INST]``.
        is_additive: Whether a message only adds text, without changing the text before it.

    Raises:
        RendererMismatchError: The tokenizer has no usable template.
    """

    def __init__(
        self, tokenizer: Any, *, hermes: bool, variables: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(tokenizer, hermes=hermes, variables=variables)
        self._stand_ins: dict[tuple[str, bool], str] = {}  # rendered ``stand_in`` conversations
        self._opens_alone = self._can_open_alone()
        self.frames = self._learn_frames()
        kinds = shapes(thinks=self.thought is not None, calls=self.calls is not None)
        self.is_additive = self._ends_replies and all(map(self._adds_up, kinds))

    def message_text(self, message: Message, ctx: RenderContext) -> str:
        """Return the text that a message adds.

        If there are several tool results in a row, only the last one adds the text that closes all
        of them.
        """
        text = self.added_text(ctx, message)
        if is_tool(message) and is_tool(ctx.next_message):
            return common_prefix(text, self.added_text(ctx, message, RESULT))
        return text

    def added_text(self, ctx: RenderContext, *after: Message) -> str:
        """Return the text that ``after`` adds, or the start of a reply if there are no messages."""
        kind, before = stand_in(ctx)
        if after and not before and self._is_held_back(after[0]):
            return ""  # the next message adds the text of this one
        if after:
            text = self.text([*before, *after])
            text = self._up_to_end(text) if after[-1]["role"] == "assistant" else text
        else:
            text = self._cached_text(kind, before, opens=True)
        if not before or (ctx.idx == 1 and self._is_held_back(before[0])):
            return text
        beginning = self._cached_text(kind, before)
        if before[-1]["role"] == "assistant":
            beginning = self._up_to_end(beginning)
        elif after and is_tool(before[-1]) and is_tool(after[0]):
            beginning = common_prefix(beginning, text)  # one block may contain several results
        if not text.startswith(beginning):
            raise RendererMismatchError("The template changes a message when another one follows.")
        return text[len(beginning) :]

    def _cached_text(self, kind: str, messages: list[Message], *, opens: bool = False) -> str:
        text = self._stand_ins.get((kind, opens)) or self.text(messages, opens=opens)
        if kind:
            self._stand_ins[kind, opens] = text
        return text

    def _is_held_back(self, message: Message) -> bool:
        """Return whether this first message is rendered only when another message follows."""
        role = message["role"]
        return role == TOOLS or (role == "system" and not self._opens_alone)

    def _can_open_alone(self) -> bool:
        try:
            alone = self.text([SYSTEM])
            return "Qzsystem" in alone and self.text([SYSTEM, USER]).startswith(alone)
        except Exception:  # templates can raise anything
            return False

    def _learn_frames(self) -> list[str]:
        frames: dict[str, None] = {}
        for shape in ([USER, REPLY, USER, REPLY], [SYSTEM, USER, REPLY]):
            try:
                tail = self.text(shape)
            except Exception:  # the template does not accept system messages
                continue
            for before, after in pairwise(shape):
                tail = tail.partition(str(before["content"]))[2]
                frame = tail.partition(str(after["content"]))[0]
                if not self.control.pattern.search(frame):
                    frames[frame.strip()] = None
        return [frame for frame in frames if len(frame) > 1]

    def _adds_up(self, messages: list[Message]) -> bool:
        """Return whether the messages' tokens, concatenated, match those of the conversation."""
        try:
            expected = self.text(messages, opens=True)
        except Exception:  # the template rejects such conversations, so they never occur
            return True
        contexts = [
            RenderContext(idx=at, is_last=False, prev_message=before, next_message=after)
            for at, (before, after) in enumerate(
                zip([None, *messages], [*messages[1:], None, None], strict=True)
            )
        ]
        try:
            texts = [self.message_text(*pair) for pair in zip(messages, contexts, strict=False)]
            opening = self.added_text(contexts[-1])
        except Exception:  # templates can raise anything
            return False
        encode = partial(self._tokenizer.encode, add_special_tokens=False)
        runs = [""]  # texts to encode, split after each reply
        for message, added_text in zip(messages, texts, strict=True):
            runs[-1] += added_text
            runs += [""] if message["role"] == "assistant" else []
        tokens = [run for run in map(encode, [*runs, opening]) if run]
        ends = self.control.by_id
        is_safe = not opening or tokens[-1][0] in ends or tokens[-2][-1] in ends
        return is_safe and [*chain(*tokens)] == encode(expected)
