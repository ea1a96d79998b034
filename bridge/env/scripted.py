"""``ScriptedPolicy``: a policy with predefined replies, for testing agents without a model."""

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
    """A ``TokenCompleter`` that returns predefined replies.

    Args:
        replies: A list with one reply per call, or a function (sync or async) that maps the prompt
            text to a reply. Use a function to play several episodes concurrently.
        renderer: The Env's renderer. It can be omitted if the Env uses the default renderer.
        logprob: The log-probability to report for every token.

    Replies end with the renderer's end-of-turn token, unless they are longer than ``max_tokens``.
    The prompt texts are stored in ``prompts``, and the reply tokens in ``actions``.

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
                f"replies is a single string, {repr_of(replies)}; expected a list of strings (one "
                "per call) or a function: ScriptedPolicy(lambda prompt: 'yes')."
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
        """Return the tokens of the next reply.

        A reply longer than ``max_tokens`` is truncated and gets the stop reason "length".
        """
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
                f"ScriptedPolicy has only {len(self._replies)} replies, but the agent made call "
                f"{number + 1}. Pass more replies, or a function that maps the prompt to a reply."
            )
        return self._replies[number]
