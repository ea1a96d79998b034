"""Log-probabilities of sampled tokens, as the sampler returned them; evert does not compute any.

The Cookbook gives an Env only the sampled token ids: ``env.step(action.tokens, extra=...)``.
``SampledTokens`` is a list of token ids that also has their log-probabilities. It is created by

    the Cookbook's ``TinkerTokenCompleter``   once an Env exists (``clients/takeover.py``)
    evert's own policies                      ``ScriptedPolicy``, the policies of evaluations
    a loop of your own                        ``env.step(SampledTokens(tokens, logprobs))``

An agent gets a ``TokenLogprob`` for each sampled token, as with vLLM and SGLang: including
thinking, tool calls and the stop token, with each token decoded by itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import openai
from tinker_cookbook.completers import TokensWithLogprobs

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.reply import Reply, TokenLogprob
from evert.bridge.tokens.renderer import PromptRenderer


class SampledTokens(list[int]):
    """Token ids with their log-probabilities.

    Args:
        tokens: The sampled token ids.
        logprobs: One log-probability per token; None if unknown.

    Raises:
        ValueError: There are more or fewer log-probabilities than tokens.
    """

    def __init__(self, tokens: Iterable[int] = (), logprobs: Sequence[float] | None = None) -> None:
        super().__init__(tokens)
        if logprobs is not None and len(logprobs) != len(self):
            raise ValueError(
                f"Got {len(logprobs)} log-probabilities for {len(self)} tokens; expected one per "
                "token, or None if they are not known."
            )
        self.logprobs = logprobs


def keep_logprobs(action: TokensWithLogprobs) -> TokensWithLogprobs:
    """Put an action's log-probabilities, if it has any, into its tokens; return the action."""
    if action.maybe_logprobs is not None and not isinstance(action.tokens, SampledTokens):
        action.tokens = SampledTokens(action.tokens, action.maybe_logprobs)
    return action


def with_logprobs(
    reply: Reply,
    tokens: Sequence[int],
    logprobs: Sequence[float] | None,
    renderer: PromptRenderer,
) -> Reply:
    """Add the tokens' log-probabilities to a reply; raise a 400 if there are none."""
    if logprobs is None:
        raise unavailable("the tokens of this reply came without log-probabilities")
    token_logprobs = []
    for token, logprob in [*zip(tokens, logprobs, strict=True)][: reply.completion_tokens]:
        text = renderer.decode([token])
        token_logprobs.append(TokenLogprob(text, logprob, text.encode()))
    return replace(reply, logprobs=tuple(token_logprobs))


def unavailable(reason: str) -> openai.BadRequestError:
    """Return the 400 for a reply without log-probabilities."""
    return bad_request(
        f"'logprobs' cannot be returned: {reason}. They come with tokens that the Cookbook's "
        "TinkerTokenCompleter samples (as in training and evaluation) and with "
        "evert.ScriptedPolicy. In a loop of your own, step the Env with "
        "evert.SampledTokens(tokens, logprobs), or leave the field out.",
        param="logprobs",
        code="logprobs_unavailable",
    )
