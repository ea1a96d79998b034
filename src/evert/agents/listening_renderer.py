"""A renderer that remembers: from the prompts that a Cookbook environment makes back to messages.

An ``Env`` of the Cookbook's hands out tokens; which messages they are of, only the renderer knows
that it made them with. ``HeardRenderer`` is the policy's own renderer for such an Env: it renders
as that one does, and keeps what it was told. What the policy says goes to the Env in the tokens
that were sampled; where nobody knows them (a reply that came as text), in tokens that this renderer
reads as that very reply.
"""

from collections.abc import Sequence
from typing import Any

import tinker
from tinker_cookbook.renderers.base import Message, ParseTermination, Renderer, ToolSpec

from evert.bridge.chat.messages import CookbookMessage
from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.errors import UnsupportedPromptError
from evert.bridge.tokens.renderer import SHARED, PromptRenderer, with_tokenizer

Heard = tuple[tinker.ModelInput, ChatRequest]
"""A prompt, and what was asked with it; of no model yet."""


class HeardRenderer:
    """What an Env tells its renderer.

    Args:
        prompts: The policy's renderer.

    Attributes:
        renderer: For the Env: the policy's, which is listened to.
    """

    def __init__(self, prompts: PromptRenderer) -> None:
        self._prompts = prompts
        self._original = original = prompts.renderer
        self._prefixes: list[tuple[list[Message], list[ToolSpec], str]] = []
        self._heard: list[Heard] = []
        self._replies: dict[tuple[int, ...], Reply] = {}
        self._parsed: dict[int, tuple[Message, Reply]] = {}
        self.renderer: Renderer = with_tokenizer(original, original.tokenizer)
        vars(self.renderer).update(
            {SHARED: prompts},  # for an Env of evert's in the environment: no tokenizer of its own
            build_generation_prompt=self._build,
            create_conversation_prefix_with_tools=self._offer,
            parse_response=self._parse,
        )

    # -- what the Env calls, from any thread -----------------------------------------------------

    def _build(
        self, messages: list[Message], role: str = "assistant", prefill: str | None = None
    ) -> tinker.ModelInput:
        with self._prompts.lock:
            prompt = self._original.build_generation_prompt(messages, role, prefill)
        if role == "assistant":
            tools, rest = self._without_tools(messages)
            self._heard.append((prompt, ChatRequest("", rest, tools, prefill=prefill or "")))
        return prompt

    def _offer(self, tools: list[ToolSpec], system_prompt: str = "") -> list[Message]:
        with self._prompts.lock:
            prefix = self._original.create_conversation_prefix_with_tools(tools, system_prompt)
        self._prefixes.append(([*prefix], [*tools], system_prompt))
        return prefix

    def _parse(self, response: list[int]) -> tuple[Message, ParseTermination]:
        reply = self._replies.get(tuple(response))
        if reply is not None and reply.tokens is None:
            message, termination = reply.parsed, ParseTermination.STOP_SEQUENCE
        else:
            with self._prompts.lock:
                message, termination = self._original.parse_response(response)
        if reply is not None:
            self._parsed[id(message)] = message, reply
        return message, termination

    # -- between the Env and the policy ----------------------------------------------------------

    def request_of(self, prompt: tinker.ModelInput) -> ChatRequest:
        """What an Env asks with a prompt.

        Raises:
            UnsupportedPromptError: It was not made with this renderer.
        """
        for heard in reversed(self._heard):
            if heard[0] is prompt or heard[0] == prompt:
                self._heard = [heard]  # the Env may hand it out again
                return heard[1]
        raise UnsupportedPromptError(
            "This environment hands out a prompt that it did not make with the renderer it was "
            "given, so nothing says which messages it is of, and a chat client takes messages "
            "alone. Make it with that one, CookbookAgent(lambda renderer, task: MyEnv(..., "
            "renderer)), and let it hand out what renderer.build_generation_prompt(messages) "
            "returns."
        )

    def tokens_of(self, reply: Reply) -> list[int]:
        """A reply in tokens for the Env: as sampled, or as this renderer reads it."""
        tokens = [*(reply.tokens or ())]
        if reply.tokens is None:
            tokens = self._prompts.spell(reply.text) + self._prompts.end_tokens[:1]
        self._replies[tuple(tokens)] = reply
        return tokens

    def _without_tools(
        self, messages: Sequence[Message]
    ) -> tuple[list[Any] | None, list[CookbookMessage]]:
        whole = [self._as_sent(message) for message in messages]
        for prefix, tools, system in self._prefixes:
            if tools and [*messages[: len(prefix)]] == prefix:
                first = [CookbookMessage(role="system", content=system)] if system else []
                offered = [{"type": "function", "function": {**tool}} for tool in tools]
                return offered, [*first, *whole[len(prefix) :]]
        return None, whole

    def _as_sent(self, message: Message) -> CookbookMessage:
        """The message with its client's ids of tool calls; as it is if one could not be parsed."""
        parsed, reply = self._parsed.get(id(message), (None, None))
        if parsed is not message or reply is None or not reply.tool_calls or reply.unparsed:
            return CookbookMessage(message)
        calls = [*reply.tool_calls]
        return CookbookMessage(role="assistant", content=reply.text, tool_calls=calls)
