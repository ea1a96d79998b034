"""``ScriptedPolicy``: a policy with replies from a list, to test agents without a model."""

import inspect
from collections.abc import Awaitable, Callable, Iterable

import tinker
from tinker_cookbook.completers import StopCondition, TokenCompleter, TokensWithLogprobs
from tinker_cookbook.renderers import Renderer

from evert.bridge.errors import InvalidModelError, repr_of
from evert.bridge.tokens.logprobs import SampledTokens
from evert.bridge.tokens.renderer import prompt_renderer
from evert.bridge.tokens.token_log import flatten


class ScriptedPolicy(TokenCompleter):
    """A ``TokenCompleter`` whose replies are written in advance.

    Args:
        replies: One reply per call, or, for several episodes at once, a function (async or not)
            from prompt text to reply.
        renderer: The Env's renderer; None: the default renderer.
        logprob: The log-probability of every token.

    A reply ends with the renderer's end-of-turn token unless it is longer than ``max_tokens``.
    ``prompts`` keeps the prompts' texts, ``actions`` the replies' tokens.

    Raises:
        InvalidModelError: ``replies`` is a single string, or a reply is not a string.
        IndexError: There were more calls than replies.
    """

    def __init__(
        self,
        replies: Iterable[str] | Callable[[str], str | Awaitable[str]],
        renderer: Renderer | None = None,
        logprob: float = -1.0,
    ) -> None:
        if isinstance(replies, str):
            raise InvalidModelError(
                f"The replies are one string, {repr_of(replies)}; expected a list of strings, one "
                "for each call, or a function: ScriptedPolicy(lambda prompt: 'yes')."
            )
        self._replies = replies if callable(replies) else list(replies)
        self._renderer = prompt_renderer(renderer)
        self._logprob = logprob
        self.prompts: list[str] = []
        self.actions: list[list[int]] = []

    async def __call__(
        self,
        model_input: tinker.ModelInput,
        stop: StopCondition,
        *,
        max_tokens: int | None = None,
    ) -> TokensWithLogprobs:
        """Return the next reply's tokens, cut at ``max_tokens`` with stop reason "length"."""
        text = [token for token in flatten(model_input.chunks) if isinstance(token, int)]
        prompt = self._renderer.decode(text)
        reply = self._reply(prompt)
        if inspect.isawaitable(reply):
            reply = await reply
        if not isinstance(reply, str):
            kind = type(reply).__name__
            raise InvalidModelError(f"The reply is {repr_of(reply)} ({kind}); expected a string.")
        tokens = self._renderer.encode(reply) + self._renderer.end_tokens[:1]
        cut = max_tokens is not None and len(tokens) > max_tokens
        tokens = tokens[:max_tokens]
        self.prompts.append(prompt)
        self.actions.append(tokens)
        logprobs = [self._logprob] * len(tokens)
        return TokensWithLogprobs(
            tokens=SampledTokens(tokens, logprobs),
            maybe_logprobs=logprobs,
            stop_reason="length" if cut else "stop",
        )

    def _reply(self, prompt: str) -> str | Awaitable[str]:
        if callable(self._replies):
            return self._replies(prompt)
        number = len(self.actions)
        if number >= len(self._replies):
            raise IndexError(
                f"The script has {len(self._replies)} replies, and the agent made call "
                f"{number + 1}. Pass more replies, or a function from the prompt to the reply."
            )
        return self._replies[number]
