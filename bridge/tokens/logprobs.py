"""Log-probabilities of the sampled tokens, as they were sampled; none is ever computed.

The Cookbook hands an Env the sampled token ids and nothing else: ``env.step(action.tokens,
extra={"stop_reason": ...})``. ``SampledTokens`` are token ids that still know their
log-probabilities, so that they come along. They are made by

    the Cookbook's ``TinkerTokenCompleter``   wherever an Env was started (``clients/takeover.py``)
    evert's own policies                      ``ScriptedPolicy``, those of evaluations
    a loop of your own                        ``env.step(SampledTokens(tokens, logprobs))``

``TokenLogprob`` is what an agent gets of them: as vLLM and SGLang list them, one for each sampled
token, those of thinking, of tool calls and the stop token too, each decoded by itself.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace

import openai
from tinker_cookbook.completers import TokensWithLogprobs

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.reply import Reply, TokenLogprob
from evert.bridge.tokens.renderer import PromptRenderer


class SampledTokens(list[int]):
    """Token ids that know their log-probabilities.

    Args:
        tokens: As sampled.
        logprobs: One a token; None where they are not known.

    Raises:
        ValueError: There are more or fewer log-probabilities than tokens.
    """

    def __init__(self, tokens: Iterable[int] = (), logprobs: Sequence[float] | None = None) -> None:
        super().__init__(tokens)
        if logprobs is not None and len(logprobs) != len(self):
            raise ValueError(
                f"Got {len(logprobs)} log-probabilities for {len(self)} tokens; expected one a "
                "token, or None where they are not known."
            )
        self.logprobs = logprobs


def remembering(action: TokensWithLogprobs) -> TokensWithLogprobs:
    """An action whose tokens know their log-probabilities, if it has any."""
    if action.maybe_logprobs is not None and not isinstance(action.tokens, SampledTokens):
        action.tokens = SampledTokens(action.tokens, action.maybe_logprobs)
    return action


def with_logprobs(
    reply: Reply,
    tokens: Sequence[int],
    logprobs: Sequence[float] | None,
    renderer: PromptRenderer,
) -> Reply:
    """A reply with those of its tokens; a 400 where nobody brought them."""
    if logprobs is None:
        raise unavailable("this reply's tokens came without any")
    given = []
    for token, logprob in [*zip(tokens, logprobs, strict=True)][: reply.completion_tokens]:
        text = renderer.decode([token])
        given.append(TokenLogprob(text, logprob, text.encode()))
    return replace(reply, logprobs=tuple(given))


def unavailable(reason: str) -> openai.BadRequestError:
    """The error for a reply whose log-probabilities nobody brought."""
    return bad_request(
        f"'logprobs' cannot be answered: {reason}. They come with what the Cookbook's "
        "TinkerTokenCompleter samples (so in training and evaluation) and with "
        "evert.ScriptedPolicy; a loop of your own steps the Env with "
        "evert.SampledTokens(tokens, logprobs). Or leave it out.",
        param="logprobs",
        code="logprobs_unavailable",
    )
