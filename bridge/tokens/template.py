"""A renderer based on the tokenizer's chat template, for models without a Cookbook renderer.

Prompts match the output of ``apply_chat_template`` token for token. If the template is additive
(``chat_template.py``), only the new messages are rendered in each turn; otherwise, the whole prompt
is rendered again.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tinker
from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers import register_renderer
from tinker_cookbook.renderers.base import (
    Message,
    ParseTermination,
    RenderContext,
    RenderedMessage,
    Renderer,
    Role,
    ToolSpec,
)
from tinker_cookbook.renderers.qwen3 import Qwen3InstructRenderer

from evert.bridge.tokens.chat_template import ChatTemplate
from evert.bridge.tokens.harmony import read_harmony
from evert.bridge.tokens.probes import carrier, common_prefix, thinking
from evert.bridge.tokens.rendering import Rendering, rendering_after


class TemplateRenderer(Renderer):
    """A renderer that uses the tokenizer's chat template.

    Args:
        tokenizer: The model's tokenizer, which must have a ``chat_template``.
        hermes: Whether to write tools in Hermes format (see ``ChatTemplate``).
        chat_template: Values for the template's variables, such as ``{"enable_thinking": False}``.

    Raises:
        RendererMismatchError: The template is unusable, or it does not use one of the variables.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        hermes: bool = False,
        chat_template: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(tokenizer)
        self.template = ChatTemplate(tokenizer, hermes=hermes, variables=chat_template)
        self._options = {"hermes": hermes, "chat_template": chat_template}

    def __reduce__(self) -> tuple[Any, ...]:
        make, arguments = super().__reduce__()
        return _unpickle, (make, self._options, *arguments)

    @property
    def has_extension_property(self) -> bool:
        """Whether each prompt in a conversation starts with the previous prompt."""
        return self.template.is_additive

    def get_stop_sequences(self) -> list[int]:
        """Return the token that ends a reply in the template, then the model's other end tokens."""
        return list(self.template.stops)

    # -- rendering -------------------------------------------------------------------------------

    def build_generation_prompt(
        self, messages: list[Message], role: Role = "assistant", prefill: str | None = None
    ) -> tinker.ModelInput:
        """Return the output of ``apply_chat_template`` with a generation prompt and the prefill."""
        text = self.template.text(messages, opens=True) + (prefill or "")
        return tinker.ModelInput.from_ints(self._encode(text))

    def render_after(self, messages: list[Message], last: Rendering) -> Rendering:
        """Render a prompt, but encode only the part that differs from the ``last`` one."""
        text = self.template.text(messages, opens=True)
        return rendering_after(text, last, self.template.control, self._encode)

    def render_message(self, message: Message, ctx: RenderContext) -> RenderedMessage:
        """Return the tokens that a message adds. Requires an additive template."""
        text = self.template.message_text(message, ctx)
        if message["role"] != "assistant":
            return RenderedMessage(output=_chunks(self._encode(text)))
        opening = common_prefix(text, self.template.added_text(ctx))
        header, tokens = self._encode(opening), self._encode(text)
        # One token may contain both the end of the opening and the start of the reply.
        if tokens[: len(header)] != header:
            header = header[: len(common_tokens(header, tokens))]
        output = _chunks(tokens[len(header) :])
        return RenderedMessage(output, tinker.EncodedTextChunk(tokens=header))

    def tail(self, messages: Iterable[tuple[Message, RenderContext]]) -> list[int]:
        """Return the tokens that the messages add. Requires an additive template."""
        return self._encode("".join(self.template.message_text(*pair) for pair in messages))

    def _get_generation_suffix(self, role: Role, ctx: RenderContext) -> list[int]:
        return self._encode(self.template.added_text(ctx))

    def create_conversation_prefix_with_tools(
        self, tools: list[ToolSpec], system_prompt: str = ""
    ) -> list[Message]:
        """Return one message that passes the tools to the template.

        Raises:
            NotImplementedError: The template does not render tools, or its calls cannot be parsed.
        """
        if self.template.calls is None:
            raise NotImplementedError
        if self.template.hermes:
            hermes_prefix = Qwen3InstructRenderer.create_conversation_prefix_with_tools
            return hermes_prefix(self, tools, system_prompt)  # type: ignore[arg-type]
        return [carrier(tools, system_prompt)]

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def parse_response(
        self, response: list[int], tools: Sequence[Any] | None = None
    ) -> tuple[Message, ParseTermination]:
        """Parse sampled tokens into a message with a thought, text and tool calls.

        Args:
            response: The sampled tokens.
            tools: The tools that the request offered, or None if unknown. Calls of any other tool
                are rejected, and arguments are converted to the types in the tools' schemas.

        Raises:
            RendererError: There are tokens after the end of the reply.
        """
        template = self.template
        ended = bool(response) and response[-1] in template.stops
        body = response[:-1] if ended else response
        if any(token in template.stops for token in body):
            raise RendererError("A reply continues after the token that ends it.")
        text = str(self.tokenizer.decode(body, clean_up_tokenization_spaces=False))
        termination = ParseTermination.MALFORMED
        if ended:
            first = response[-1] == template.stops[0]
            termination = ParseTermination.STOP_SEQUENCE if first else ParseTermination.EOS
        if template.harmony:
            return read_harmony(text, tools), termination
        thought, text = self._split_thought(text)
        message = Message(role="assistant", content=self._without_head(text))
        if template.calls is not None and ended:
            template.calls.read_into(message, tools)
        message["content"] = self._without_foot(str(message["content"]))
        if thought:
            message["content"] = thinking(thought, str(message["content"]))
        return message, termination

    def _split_thought(self, text: str) -> tuple[str, str]:
        if self.template.thought is None:
            return "", text
        before, between = (mark.strip() for mark in self.template.thought)
        tail = text.lstrip()
        if self.template.closes_thoughts and not before:
            return "", text
        if not self.template.opens_thoughts:
            if not tail.startswith(before):
                return "", text
            text = tail.removeprefix(before)
        thought, close, tail = text.partition(between)
        calls = self.template.calls
        start = calls.first_mark(text) if calls is not None and not close else None
        if start is not None:  # a call implicitly ends the thought
            thought, tail = text[:start], text[start:]
        return thought.strip("\n"), tail.lstrip("\n")

    def _without_head(self, text: str) -> str:
        """Remove what the template puts before a reply's text, such as a channel or a header."""
        for head in self.template.heads:
            if text.lstrip().startswith(head):
                return text.lstrip().removeprefix(head).lstrip("\n")
        return text

    def _without_foot(self, text: str) -> str:
        foot = self.template.foot
        is_framed = bool(foot) and text.rstrip().endswith(foot)
        return text.rstrip().removesuffix(foot) if is_framed else text


def _unpickle(
    make: Callable[..., Renderer], options: Mapping[str, Any], name: str, *arguments: Any
) -> Renderer:
    """Unpickle a renderer. Registers its name first, because the Cookbook looks up the name."""

    def make_renderer(tokenizer: Any, images: Any = None) -> Renderer:
        return TemplateRenderer(tokenizer, **options)

    register_renderer(name, make_renderer)
    return make(name, *arguments)


def common_tokens(tokens: Sequence[int], other_tokens: Sequence[int]) -> Sequence[int]:
    """Return the longest common prefix of two token sequences."""
    pairs = enumerate(zip(tokens, other_tokens, strict=False))
    shorter = min(len(tokens), len(other_tokens))
    return tokens[: next((at for at, (a, b) in pairs if a != b), shorter)]


def _chunks(tokens: list[int]) -> list[tinker.ModelInputChunk]:
    return [tinker.EncodedTextChunk(tokens=tokens)]
