"""Log-probabilities of sampled tokens, as returned by the sampler. evert does not compute them.

The Cookbook only passes the sampled token ids to an Env (``env.step(action.tokens, extra=...)``).
``SampledTokens`` is a list of token ids that also carries their log-probabilities. It is created by

    the Cookbook's ``TinkerTokenCompleter``   once an Env exists (``clients/takeover.py``)
    evert's own policies                      ``ScriptedPolicy``, the policies used in evaluations
    your own loop                             ``env.step(SampledTokens(tokens, logprobs))``

Agents get one ``TokenLogprob`` per sampled token, as with vLLM and SGLang. Thinking, tool
calls and the stop token are included. Each token is decoded separately.
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
        logprobs: One log-probability per token, or None if unknown.

    Raises:
        ValueError: The number of log-probabilities does not match the number of tokens.
    """

    def __init__(self, tokens: Iterable[int] = (), logprobs: Sequence[float] | None = None) -> None:
        super().__init__(tokens)
        if logprobs is not None and len(logprobs) != len(self):
            raise ValueError(
                f"Got {len(logprobs)} log-probabilities for {len(self)} tokens; expected one per "
                "token, or None if they are unknown."
            )
        self.logprobs = logprobs


def keep_logprobs(action: TokensWithLogprobs) -> TokensWithLogprobs:
    """Attach an action's log-probabilities (if any) to its tokens, and return the action."""
    if action.maybe_logprobs is not None and not isinstance(action.tokens, SampledTokens):
        action.tokens = SampledTokens(action.tokens, action.maybe_logprobs)
    return action


def with_logprobs(
    reply: Reply,
    tokens: Sequence[int],
    logprobs: Sequence[float] | None,
    renderer: PromptRenderer,
) -> Reply:
    """Add the tokens' log-probabilities to a reply, or raise a 400 if there are none."""
    if logprobs is None:
        raise unavailable("the tokens of this reply came without log-probabilities")
    token_logprobs = []
    for token, logprob in [*zip(tokens, logprobs, strict=True)][: reply.completion_tokens]:
        text = renderer.decode([token])
        token_logprobs.append(TokenLogprob(text, logprob, text.encode()))
    return replace(reply, logprobs=tuple(token_logprobs))


def unavailable(reason: str) -> openai.BadRequestError:
    """Create the 400 for a reply without log-probabilities."""
    return bad_request(
        f"'logprobs' cannot be returned: {reason}. They are available if the tokens are sampled "
        "with the Cookbook's TinkerTokenCompleter (as in training and evaluation) or with "
        "evert.ScriptedPolicy. In your own loop, pass evert.SampledTokens(tokens, logprobs) to "
        "step(), or leave the field out.",
        param="logprobs",
        code="logprobs_unavailable",
    )
