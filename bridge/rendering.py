"""What the Env needs of a Cookbook renderer, and nothing else of it.

``PromptRenderer`` wraps one ``Renderer``: whole prompts (``full``), the tokens a few new messages
add (``tail``), the generation suffix, stops, parsing. It adds three things the renderers lack:

- *Literals.* A control token's text inside a message (``<|im_start|>`` typed by a user, or returned
  by a tool) must not become that token. ``escape`` marks it; marked text is encoded in halves, so
  that the tokens spell it and mean nothing. Works for every renderer, since it acts on what the
  renderer asks its tokenizer to encode.
- *A lock.* Hugging Face tokenizers keep "split special tokens" as state, so two threads that encode
  at once corrupt each other. Long texts are tokenised off the event loop, on a copy of the
  tokenizer with a lock of its own, so that short ones never wait for them.
- *A cache* of the generation suffix, which is the same every turn.
"""

import copy
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any

import tokenizers  # type: ignore[import-untyped]
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import (
    ContentPart,
    Message,
    ParseTermination,
    RenderContext,
    Renderer,
    ToolSpec,
)

from evert.bridge.base import default_renderer, register_base_tokenizers
from evert.bridge.errors import RendererMismatchError
from evert.bridge.tokens import FlatPrompt, flatten

_MARK = f"evertliteral{secrets.token_hex(12)}x"
_MARKED = re.compile(f"{_MARK}([0-9]+)y")


register_base_tokenizers()  # here, since every Env, pickled ones too, comes past this module

_CACHED_LENGTH = 2000  # characters: a template's headers, phrases, the system prompt of a task


class _LiteralTokenizer:
    """A tokenizer that encodes marked literals as plain text and leaves the rest to the real one.

    Renderers encode the same few headers for every message, and the episodes of a group open with
    the same prompt; those are remembered.
    """

    def __init__(self, tokenizer: Any, literals: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self._literals = literals
        self._remembered = lru_cache(1024)(self._encode_anew)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def encode(self, text: str, **options: Any) -> list[int]:
        """Token ids of ``text``; each marked literal becomes the tokens of its two halves."""
        if _MARK not in text:
            return list(self._encode(text, **options))
        pieces = _MARKED.split(text)
        tokens = list(self._encode(pieces[0], **options))
        options.pop("add_special_tokens", None)
        for number, piece in zip(pieces[1::2], pieces[2::2], strict=True):
            literal = self._literals[int(number)]
            for part in (literal[:1], literal[1:], piece):
                if part:
                    tokens += self._encode(part, add_special_tokens=False, **options)
        return tokens

    def _encode(self, text: str, **options: Any) -> tuple[int, ...]:
        encode = self._remembered if len(text) <= _CACHED_LENGTH else self._encode_anew
        return encode(text, **options)

    def _encode_anew(self, text: str, **options: Any) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, **options))


class _LiteralBackend(_LiteralTokenizer):
    """The same for a ``tokenizers.Tokenizer``, which answers with an object that has ``ids``.

    Since 0.6 the Cookbook's renderers of Qwen3 encode contents with one of their own.
    """

    def encode(self, text: str, **options: Any) -> Any:
        """An object with the token ids of ``text`` as ``ids``."""
        return SimpleNamespace(ids=super().encode(text, **options))

    def _encode_anew(self, text: str, **options: Any) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, **options).ids)


class PromptRenderer:
    """One renderer, made safe to share among Envs and threads.

    Raises:
        RendererMismatchError: The object is no Cookbook renderer, or has no tokenizer.
    """

    def __init__(self, renderer: Renderer) -> None:
        tokenizer = getattr(renderer, "tokenizer", None)
        if tokenizer is None or not hasattr(renderer, "build_generation_prompt"):
            raise RendererMismatchError(
                f"Expected a tinker_cookbook renderer with a tokenizer, got {renderer!r} of type "
                f"{type(renderer).__name__}. Make one with "
                "tinker_cookbook.renderers.get_renderer(name, tokenizer)."
            )
        self._special = _control_tokens(tokenizer)
        self._special_pattern = (
            re.compile("|".join(map(re.escape, self._special))) if self._special else None
        )
        self.renderer = renderer
        self._renderer = _with_tokenizer(renderer, _LiteralTokenizer(tokenizer, self._special))
        if hasattr(renderer, "system_role_as_user"):  # else no later system message at all
            vars(self._renderer)["system_role_as_user"] = True
        for name, value in vars(renderer).items():
            if isinstance(value, tokenizers.Tokenizer):
                setattr(self._renderer, name, _LiteralBackend(value, self._special))
        self._lock = threading.Lock()
        self._suffixes: dict[str | None, list[int]] = {}
        self.stop: StopCondition = renderer.get_stop_sequences()
        self.end_tokens = [s for s in self.stop if isinstance(s, int)]
        self.renders_tails = (
            renderer.has_extension_property
            and len(self.end_tokens) == len(self.stop) > 0
            and type(renderer).build_generation_prompt is Renderer.build_generation_prompt
        )
        """Whether history is rendered message by message and stays as it is, so that a tail can
        be rendered alone. False for templates that look at the whole conversation."""
        self.takes_images = getattr(renderer, "image_processor", None) is not None
        """Whether images become chunks; the other renderers would drop them in silence."""
        self.markup = frozenset(getattr(tokenizer, "added_tokens_decoder", {}))
        """Ids of the tokens that no text is encoded into by itself: the format's own."""

    @cached_property
    def off_loop(self) -> "PromptRenderer":
        """The same renderer on a copy of the tokenizer, for long texts in worker threads."""
        tokenizer = copy.deepcopy(self.renderer.tokenizer)
        return PromptRenderer(_with_tokenizer(self.renderer, tokenizer))

    # -- text ------------------------------------------------------------------------------------

    def escape(self, message: Message) -> Message:
        """``message`` with the text of control tokens marked as literal.

        Raises:
            RendererMismatchError: It holds an image, and the renderer takes none.
        """
        pattern = self._special_pattern
        content = message["content"]
        if isinstance(content, list) and not self.takes_images:
            _refuse_images(content, type(self.renderer).__name__)
        if pattern is None:
            return message
        if isinstance(content, str):
            if pattern.search(content) is None:
                return message
            return {**message, "content": self._escape_text(content)}
        parts: list[Any] = [
            {**part, "text": self._escape_text(part["text"])} if part["type"] == "text" else part
            for part in content
        ]
        return {**message, "content": parts}

    def _escape_text(self, text: str) -> str:
        assert self._special_pattern is not None
        return self._special_pattern.sub(
            lambda match: f"{_MARK}{self._special.index(match.group())}y", text
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, control tokens included."""
        with self._lock:
            return str(self.renderer.tokenizer.decode(list(tokens)))

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, nothing added, control tokens recognised."""
        with self._lock:
            return list(self.renderer.tokenizer.encode(text, add_special_tokens=False))

    def spell(self, text: str) -> list[int]:
        """Token ids of ``text``, nothing added, control tokens in it spelled out."""
        escaped = str(self.escape({"role": "assistant", "content": text})["content"])
        with self._lock:
            return list(self._renderer.tokenizer.encode(escaped, add_special_tokens=False))

    # -- prompts ---------------------------------------------------------------------------------

    def tool_prefix(self, tools: list[ToolSpec], system_prompt: str) -> list[Message]:
        """The messages that offer ``tools`` in this renderer's format.

        Raises:
            RendererMismatchError: The renderer has no tool support.
        """
        try:
            with self._refusing(NotImplementedError):
                return self._renderer.create_conversation_prefix_with_tools(tools, system_prompt)
        except NotImplementedError:
            raise RendererMismatchError(
                f"{type(self.renderer).__name__} has no tool support, but the agent offers "
                f"{len(tools)} tools. Use a renderer with tools (qwen3_instruct, llama3 has none) "
                "or put the tools into the prompt as text."
            ) from None

    @contextmanager
    def _refusing(self, *but: type[Exception]) -> Iterator[None]:
        """Turn whatever the renderer raises over what it cannot render into a refusal of it."""
        try:
            yield
        except Exception as error:
            if isinstance(error, (RendererError, RendererMismatchError, *but)):
                raise
            raise RendererMismatchError(
                f"{type(self.renderer).__name__} raised {type(error).__name__}: {error}"
            ) from error

    def full(self, messages: list[Message]) -> FlatPrompt:
        """The whole prompt, generation suffix included, as the renderer itself makes it.

        Raises:
            RendererMismatchError: The renderer cannot render these messages.
        """
        with self._lock, self._refusing():
            prompt = self._renderer.build_generation_prompt(messages)
        return flatten(prompt.chunks)

    def tail(self, messages: list[Message], start: int, last_user: int) -> FlatPrompt:
        """What ``messages[start:]`` add to the prompt, without the generation suffix.

        Args:
            messages: The whole conversation.
            start: First message to render.
            last_user: Index of the last user message of the whole conversation; -1 for none.

        Raises:
            RendererMismatchError: The renderer cannot render these messages.
        """
        flat: FlatPrompt = []
        with self._lock, self._refusing():
            if start == 0:
                flat.extend(self._renderer._bos_tokens)
            for index in range(start, len(messages)):
                context = _context(messages, index, last_user)
                rendered = self._renderer.render_message(messages[index], context)
                if rendered.header is not None:
                    flat.extend(rendered.header.tokens)
                flat.extend(flatten(rendered.output))
        return flat

    def as_history(self, messages: list[Message], index: int, last_user: int) -> FlatPrompt:
        """How ``messages[index]``, a reply, is shown as history, header left out."""
        with self._lock:
            context = _context(messages, index, last_user)
            return flatten(self._renderer.render_message(messages[index], context).output)

    def stop_with(self, wanted: Sequence[str]) -> StopCondition:
        """Where to stop: at the renderer's own stops, and at some further strings."""
        if not wanted:
            return self.stop
        # token ids and strings cannot be mixed: write the renderer's stops as text
        own = [stop if isinstance(stop, str) else self.decode([stop]) for stop in self.stop]
        return [*own, *wanted]

    def missing_end(self, action: list[int]) -> list[int]:
        """The end-of-turn token that a cut action lacks; empty if it is there, or is no token."""
        if action and action[-1] in self.end_tokens:
            return []
        return self.end_tokens[:1]

    def suffix(self, messages: list[Message], last_user: int) -> list[int]:
        """The tokens that open the reply ("<|im_start|>assistant")."""
        key = messages[-1]["role"] if messages else None
        known = self._suffixes.get(key)
        if known is None:
            context = RenderContext(
                idx=len(messages),
                is_last=True,
                prev_message=messages[-1] if messages else None,
                last_user_index=last_user,
                in_last_assistant_turn=True,
            )
            with self._lock:
                known = self._renderer._get_generation_suffix("assistant", context)
            self._suffixes[key] = known
        return known

    def parse(self, action: list[int]) -> tuple[Message, ParseTermination]:
        """The renderer's parse of an action.

        Raises:
            tinker_cookbook.exceptions.RendererError: The renderer cannot read it at all.
        """
        with self._lock:
            return self._renderer.parse_response(action)


def _control_tokens(tokenizer: Any) -> list[str]:
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    names = {str(token) for token in added if token.special}
    names.update(getattr(tokenizer, "all_special_tokens", ()))
    return sorted(names, key=lambda name: (-len(name), name))  # the longest match first


def _refuse_images(content: Sequence[ContentPart], name: str) -> None:
    kinds = {part["type"] for part in content} - {"text", "thinking"}
    if kinds:
        raise RendererMismatchError(
            f"A message holds a part of type {kinds.pop()!r}, and {name} has no image processor. "
            "Use a vision renderer (qwen3_vl_instruct, ...) made with one, or send text."
        )


def _context(messages: list[Message], index: int, last_user: int) -> RenderContext:
    return RenderContext(
        idx=index,
        is_last=index == len(messages) - 1,
        prev_message=messages[index - 1] if index else None,
        next_message=messages[index + 1] if index + 1 < len(messages) else None,
        last_user_index=last_user,
        in_last_assistant_turn=index > last_user,
    )


def _with_tokenizer(renderer: Renderer, tokenizer: Any) -> Renderer:
    # copy.copy would go through the renderer's __reduce__ and lose the tokenizer
    clone: Renderer = object.__new__(type(renderer))
    vars(clone).update(vars(renderer))
    vars(clone).pop(_SHARED, None)
    clone.tokenizer = tokenizer
    return clone


_SHARED = "_evert_prompt_renderer"


def prompt_renderer(renderer: Renderer | None) -> PromptRenderer:
    """The one ``PromptRenderer`` of ``renderer``; of the shipped base's when None.

    Raises:
        RendererMismatchError: The object is no Cookbook renderer, or has no tokenizer.
    """
    chosen = default_renderer() if renderer is None else renderer
    shared: PromptRenderer | None = getattr(chosen, _SHARED, None)
    if shared is None:
        shared = PromptRenderer(chosen)
        setattr(chosen, _SHARED, shared)  # lives and dies with the renderer
    return shared
