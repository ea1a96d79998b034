"""Wraps a Cookbook renderer for use in Envs.

``PromptRenderer`` renders whole prompts (``full``), the tokens added by new messages (``tail``) and
the generation suffix, and it parses actions. It adds three things to the Cookbook's ``Renderer``:

- *Escaping.* If a message contains the text of a control token (``<|im_start|>`` typed by a user or
  returned by a tool), it must not be encoded as that token. ``escape`` and ``tool_prefix`` ensure
  this for every renderer that encodes text with its tokenizer (``escaping.py``).
- *A lock.* Hugging Face tokenizers store "split special tokens" as state, so two threads that
  encode at the same time corrupt each other's results. Long texts are tokenised off the event loop
  with a copy of the tokenizer that has a separate lock, so short texts never wait for long ones.
- *A cache* for the generation suffix, which is the same in every turn.
"""

import copy
import threading
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import tinker
import tokenizers  # type: ignore[import-untyped]
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import (
    ContentPart,
    Message,
    ParseTermination,
    RenderContext,
    Renderer,
    ToolCall,
    ToolSpec,
    TrainOnWhat,
    get_text_content,
)

from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens.bases import default_renderer, register_with_cookbook
from evert.bridge.tokens.escaping import MARK, ControlTokens, MarkedBackend, MarkedTokenizer
from evert.bridge.tokens.parse_guard import CHECKED_TOKENS, check_marks
from evert.bridge.tokens.rendering import Rendering
from evert.bridge.tokens.template import TemplateRenderer
from evert.bridge.tokens.token_log import FlatPrompt, flatten

if TYPE_CHECKING:
    import torch

register_with_cookbook()  # done here because every Env (even an unpickled one) imports this module


class PromptRenderer:
    """A renderer that can be shared between Envs and threads."""

    def __init__(self, renderer: Renderer) -> None:
        tokenizer = getattr(renderer, "tokenizer", None)
        if tokenizer is None or not hasattr(renderer, "build_generation_prompt"):
            raise RendererMismatchError(
                f"Expected a tinker_cookbook renderer with a tokenizer, got {renderer!r} of type "
                f"{type(renderer).__name__}. Create one with "
                "tinker_cookbook.renderers.get_renderer(name, tokenizer)."
            )
        self._control = ControlTokens(tokenizer)
        self.renderer = renderer
        self._name = type(renderer).__name__
        self._tokenizer = MarkedTokenizer(tokenizer, self._control)
        self._renderer = with_tokenizer(renderer, self._tokenizer)
        if hasattr(renderer, "system_role_as_user"):  # otherwise, later system messages fail
            vars(self._renderer)["system_role_as_user"] = True
        for name, value in vars(renderer).items():
            if isinstance(value, tokenizers.Tokenizer):
                setattr(self._renderer, name, MarkedBackend(value, self._control))
        self.lock = threading.Lock()
        self._mismatch_errors = _MismatchErrors(self._name)
        self._suffixes: dict[str | None, list[int]] = {}
        self.stop: StopCondition = renderer.get_stop_sequences()
        self.end_tokens = [s for s in self.stop if isinstance(s, int)]
        # Whether new messages can be rendered separately because they never change the tokens of
        # the history. This is not the case if a template looks at the whole conversation.
        self.renders_tails = (
            renderer.has_extension_property
            and len(self.end_tokens) == len(self.stop) > 0
            and (
                isinstance(renderer, TemplateRenderer)
                or type(renderer).build_generation_prompt is Renderer.build_generation_prompt
            )
        )
        # Whether the history shows the same call ids that the agent received.
        self.keeps_ids = isinstance(renderer, TemplateRenderer)
        # Renderers without an image processor would silently drop images.
        self.takes_images = getattr(renderer, "image_processor", None) is not None

    @cached_property
    def off_loop(self) -> "PromptRenderer":
        """This renderer with a copy of its tokenizer, for rendering long texts in threads."""
        tokenizer = copy.deepcopy(self.renderer.tokenizer)
        return PromptRenderer(with_tokenizer(self.renderer, tokenizer))

    # -- text ------------------------------------------------------------------------------------

    def escape(self, message: Message) -> Message:
        """Mark a message so that none of its text is encoded as a control token."""
        content = message["content"]
        if isinstance(content, list) and not self.takes_images:
            _refuse_images(content, self._name)
        if self._text_frames and message["role"] != "assistant":
            _refuse_frames(get_text_content(message), self._text_frames, self._name)
        marked = self._control.mark_message(message)
        if marked is not message:
            self._check_spells()
        return marked

    @cached_property
    def _text_frames(self) -> list[str]:
        """What separates messages in a plain-text format, for example "\\n\\nUser:"."""
        if isinstance(self.renderer, TemplateRenderer):
            return self.renderer.template.frames
        stops = [stop for stop in self.stop if isinstance(stop, str)]
        if not stops:
            return []
        roles = ("user", "assistant", "system", "tool")
        with self.lock:
            empty = [Message(role=role, content="") for role in roles]
            headers = [self._renderer.render_message(message, _SECOND).header for message in empty]
        texts = [self.decode(header.tokens) for header in headers if header is not None]
        return [stop.replace(texts[0], text) for stop in stops for text in texts]

    def _check_spells(self) -> None:
        if not self._encodes_here:
            raise RendererMismatchError(
                f"{self._name} does not encode text with its tokenizer, so evert cannot escape the "
                "control token in this message. Remove the token from the text."
            )

    @cached_property
    def _encodes_here(self) -> bool:
        """Whether the renderer encodes text with our tokenizer, which removes the marks."""
        try:
            prompt = self.full([Message(role="user", content=f"a{MARK}b")])
        except RendererMismatchError:
            return False
        return MARK not in self.decode([token for token in prompt if isinstance(token, int)])

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode token ids to text, including control tokens."""
        with self.lock:
            return str(self.renderer.tokenizer.decode(list(tokens)))

    def encode(self, text: str) -> list[int]:
        """Encode ``text`` by itself; control tokens in it are recognised."""
        with self.lock:
            return list(self.renderer.tokenizer.encode(text, add_special_tokens=False))

    def spell(self, text: str) -> list[int]:
        """Encode ``text`` by itself; control tokens in it are encoded as plain text."""
        marked = self._control.mark(text)
        with self.lock:
            return self._tokenizer.encode(marked, add_special_tokens=False)

    def differ_in_spelling(self, tokens: Sequence[int], other_tokens: Sequence[int]) -> bool:
        """Return whether the tokens match once all control tokens are spelled as text."""
        with self.lock:
            return self._tokenizer.spelled_out(tokens) == self._tokenizer.spelled_out(other_tokens)

    # -- prompts ---------------------------------------------------------------------------------

    def tool_prefix(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        """Return the messages that describe ``tools`` to the model in this renderer's format."""
        try:
            with _MismatchErrors(self._name, NotImplementedError):
                marked = [self._control.mark_deep(dict(tool)) for tool in tools]
                if marked != tools:
                    self._check_spells()
                return self._renderer.create_conversation_prefix_with_tools(marked, system_prompt)
        except NotImplementedError:
            why = ""
            if isinstance(self.renderer, TemplateRenderer):
                why = f" with this chat template ({self.renderer.template.why_no_calls:.600})"
            raise RendererMismatchError(
                f"{self._name} does not support tools{why}, but the agent passed {len(tools)} "
                "tools. Use a renderer that supports tools (for example qwen3_instruct, or "
                "template_hermes, which works with any chat model because it describes the tools "
                "in the system message), or describe the tools in the prompt."
            ) from None

    @cached_property
    def shows_ids(self) -> bool:
        """Whether prompts contain tool call ids. Also True if the renderer rejects made-up ids."""
        body = ToolCall.FunctionBody(name="f", arguments="{}")

        def render(call_id: str) -> FlatPrompt:
            call = ToolCall(id=call_id, function=body)
            reply = Message(role="assistant", content="", tool_calls=[call])
            result = Message(role="tool", content="", tool_call_id=call_id, name="f")
            return self.full([Message(role="user", content=""), reply, result])

        try:
            return render("a") != render("b")
        except RendererMismatchError:
            return True

    def full(self, messages: list[Message]) -> FlatPrompt:
        """Render a whole prompt, including the generation suffix."""
        with self.lock, self._mismatch_errors:
            prompt = self._renderer.build_generation_prompt(messages)
        return flatten(prompt.chunks)

    def full_after(self, messages: list[Message], last: Rendering) -> tuple[FlatPrompt, Rendering]:
        """Render a whole prompt, but encode only the part that differs from the ``last`` one."""
        if not isinstance(self._renderer, TemplateRenderer):
            return self.full(messages), last
        with self.lock, self._mismatch_errors:
            rendering = self._renderer.render_after(messages, last)
        return [*rendering.tokens], rendering

    def tail(self, messages: list[Message], start: int, last_user: int) -> FlatPrompt:
        """Return the tokens added by ``messages[start:]``.

        ``last_user`` is the index of the last user message, or -1.
        """
        flat: FlatPrompt = []
        renderer, places = self._renderer, range(start, len(messages))
        with self.lock, self._mismatch_errors:
            if isinstance(renderer, TemplateRenderer):
                new = ((messages[at], _context(messages, at, last_user)) for at in places)
                return [*renderer.tail(new)]
            if start == 0:
                flat.extend(renderer._bos_tokens)  # ``render_message`` does not add them
            for at in places:
                rendered = renderer.render_message(messages[at], _context(messages, at, last_user))
                if rendered.header is not None:
                    flat.extend(rendered.header.tokens)
                flat.extend(flatten(rendered.output))
        return flat

    def as_history(self, messages: list[Message], index: int, last_user: int) -> FlatPrompt:
        """Render the reply ``messages[index]`` as part of the history, without its header."""
        with self.lock:
            context = _context(messages, index, last_user)
            return flatten(self._renderer.render_message(messages[index], context).output)

    def stop_with(self, strings: Sequence[str]) -> StopCondition:
        """Combine the renderer's stops and ``strings`` into one stop condition."""
        if not strings:
            return self.stop
        # A stop condition cannot mix token ids and strings, so convert everything to strings.
        stops = [stop if isinstance(stop, str) else self.decode([stop]) for stop in self.stop]
        return [*stops, *strings]

    def missing_end(self, action: list[int]) -> list[int]:
        """Return the end-of-turn token if the action lacks it.

        Returns [] if the action already ends with it, or if the renderer ends turns with a string.
        """
        if action and action[-1] in self.end_tokens:
            return []
        return self.end_tokens[:1]

    def suffix(self, messages: list[Message], last_user: int) -> list[int]:
        """Return the tokens that open the reply ("<|im_start|>assistant")."""
        key = messages[-1]["role"] if messages else None
        # Some chat templates show the first message only when another one follows.
        is_uncached = len(messages) < 2 and isinstance(self._renderer, TemplateRenderer)
        suffix = None if is_uncached else self._suffixes.get(key)
        if suffix is None:
            context = _context(messages, len(messages), last_user)
            with self.lock, self._mismatch_errors:
                suffix = self._renderer._get_generation_suffix("assistant", context)
            if not is_uncached:
                self._suffixes[key] = suffix
        return suffix

    def parse(
        self, action: list[int], tools: Sequence[Any] | None = None
    ) -> tuple[Message, ParseTermination]:
        """Parse an action with the renderer.

        Args:
            action: The sampled tokens.
            tools: The tools that the request offered, or None if unknown.

        Raises:
            RendererError: The action cannot be parsed.
        """
        if len(action) > CHECKED_TOKENS:
            check_marks(self.decode(action))
        with self.lock:
            if isinstance(self._renderer, TemplateRenderer):
                return self._renderer.parse_response(action, tools)
            return self._renderer.parse_response(action)


def supervised_example(
    prompts: PromptRenderer, messages: list[Message], train_on: TrainOnWhat
) -> tuple[tinker.ModelInput, "torch.Tensor"]:
    """Return the tokens of a whole conversation with their weights (1 if trained on, else 0)."""
    with prompts.lock, prompts._mismatch_errors:
        return prompts._renderer.build_supervised_example(messages, train_on_what=train_on)


LONE_SURROGATE = (
    "A message contains half of a surrogate pair (an emoji that was cut in two?), which cannot be "
    "encoded as UTF-8. Replace it with text.encode(errors='replace').decode()."
)


class _MismatchErrors:
    """Converts a renderer's errors to ``RendererMismatchError``, except for those in ``skip``.

    This is a class because it is entered every turn, and a generator-based context manager would
    be eight times slower.
    """

    def __init__(self, name: str, *skip: type[Exception]) -> None:
        self._name = name
        self._skip: tuple[type[Exception], ...] = (RendererError, RendererMismatchError, *skip)

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, self._skip):
            text = f"{self._name} raised {type(error).__name__}: {error}"
            if "TextEncodeInput" in text:  # raised for text that cannot be encoded as UTF-8
                text = LONE_SURROGATE
            raise RendererMismatchError(text) from error


def _refuse_images(content: Sequence[ContentPart], name: str) -> None:
    kinds = {part["type"] for part in content} - {"text", "thinking"}
    if kinds:
        raise RendererMismatchError(
            f"A message contains a part of type {kinds.pop()!r}, but {name} has no image "
            "processor. Use a vision renderer (such as qwen3_vl_instruct) created with an image "
            "processor, or send only text."
        )


def _refuse_frames(text: str, frames: Sequence[str], name: str) -> None:
    separator = next((frame for frame in frames if frame in text), None)
    if separator is not None:
        raise RendererMismatchError(
            f"{name} separates messages with plain text, and this message contains {separator!r}, "
            f"which would start a new message: {text!r:.200}. Change the wording, or use a "
            "renderer with control tokens."
        )


def _context(messages: list[Message], index: int, last_user: int) -> RenderContext:
    return RenderContext(
        idx=index,
        is_last=index >= len(messages) - 1,
        prev_message=messages[index - 1] if index else None,
        next_message=messages[index + 1] if index + 1 < len(messages) else None,
        last_user_index=last_user,
        in_last_assistant_turn=index > last_user,
    )


_SECOND = RenderContext(
    idx=1, is_last=False, prev_message=Message(role="user", content=""), last_user_index=0
)
"""A context for a message that is not the first one in its conversation."""


def with_tokenizer(renderer: Renderer, tokenizer: Any) -> Renderer:
    """Return a copy of the renderer that uses this tokenizer."""
    # copy.copy would use the renderer's __reduce__ and lose the tokenizer.
    clone: Renderer = object.__new__(type(renderer))
    vars(clone).update(vars(renderer))
    vars(clone).pop(SHARED, None)
    clone.tokenizer = tokenizer
    return clone


SHARED = "_evert_prompt_renderer"  # renderer attribute that caches its ``PromptRenderer``


def prompt_renderer(renderer: Renderer | None) -> PromptRenderer:
    """Return the shared ``PromptRenderer`` for a renderer (None: the default renderer)."""
    chosen = default_renderer() if renderer is None else renderer
    shared: PromptRenderer | None = getattr(chosen, SHARED, None)
    if shared is None:
        shared = PromptRenderer(chosen)
        _ = shared.off_loop  # create early: copying a large tokenizer blocks all threads for 1 s
        setattr(chosen, SHARED, shared)  # freed together with the renderer
    return shared
