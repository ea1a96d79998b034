"""Log-probabilities of a reply's visible text, as they were sampled; none is ever computed.

The Cookbook hands an Env the sampled token ids and nothing else: ``env.step(action.tokens,
extra={"stop_reason": ...})``. ``SampledTokens`` are token ids that still know their
log-probabilities, so that they come along. They are made by

    the Cookbook's ``TinkerTokenCompleter``   wherever an Env was started (``faces/takeover.py``)
    evert's own policies                      ``ScriptedPolicy``, those of evaluations
    a loop of your own                        ``env.step(SampledTokens(tokens, logprobs))``

``TokenLogprob`` is what an agent gets of them, one a token of the visible text: ``text_logprobs``
finds these. Thinking, tool calls and control tokens are no visible text.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import openai
from tinker_cookbook.completers import TokensWithLogprobs

from evert.bridge.messages import Reply, TokenLogprob
from evert.bridge.rendering import PromptRenderer
from evert.bridge.requests import bad_request

LONGEST_CHARACTER = 4
"""Bytes of a character, and so the most tokens that may share one."""

Span = tuple[int, int]
"""Where some characters begin, and where they have ended."""


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
    """A reply with the log-probabilities of its text, of which there may be none to be told.

    Args:
        reply: As the agent gets it.
        tokens: The action it was read from.
        logprobs: One a token; None where they are not known.
        renderer: That read it.

    Raises:
        openai.BadRequestError: They are not known.
    """
    if logprobs is None:
        raise unavailable("this reply's tokens came without any")
    return replace(reply, logprobs=text_logprobs(reply, tokens, logprobs, renderer))


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


def text_logprobs(
    reply: Reply, tokens: Sequence[int], logprobs: Sequence[float], renderer: PromptRenderer
) -> tuple[TokenLogprob, ...] | None:
    """Those of the tokens that make up ``reply.text``, in their order.

    Args:
        reply: As the agent gets it; what a stop string cut off is no part of it.
        tokens: The action it was read from.
        logprobs: One a token.
        renderer: That read it.

    Returns:
        One a token, whose texts make up the reply's: a token at an edge counts with the part that
        can be seen, and of a character of several tokens all stands at the last. None where the
        text is not to be found in what was sampled.
    """
    texts = [*_texts(tokens, renderer)]
    spans = _visible(texts, tokens, reply, renderer)
    if spans is None:
        return None
    found, start = [], 0
    for text, logprob in zip(texts, logprobs, strict=True):
        end = start + len(text)
        seen = "".join(text[max(a, start) - start : max(b - start, 0)] for a, b in spans)
        if seen or (not text and any(a <= start < b for a, b in spans)):
            found.append(TokenLogprob(seen, logprob))
        start = end
    return tuple(found)


def _texts(tokens: Sequence[int], renderer: PromptRenderer) -> Iterator[str]:
    """What each token adds to the text."""
    before, start = 0, 0  # the tokens from `before` on are decoded with those that are new
    known = ""
    for end in range(1, len(tokens) + 1):
        text = renderer.decode(tokens[before:end])
        is_piece = text.endswith("\N{REPLACEMENT CHARACTER}")
        if is_piece and end - start < LONGEST_CHARACTER and end < len(tokens):
            yield ""
            continue
        yield text[len(known) :]
        before, start = start, end
        known = renderer.decode(tokens[before:start])


def _visible(
    texts: Sequence[str], tokens: Sequence[int], reply: Reply, renderer: PromptRenderer
) -> list[Span] | None:
    """Where the reply's text stands in what was sampled; None: nowhere."""
    whole = "".join(texts)
    plain = "".join(  # markup of the format is no text, even if it reads like it
        "\0" * len(text) if token in renderer.markup else text
        for text, token in zip(texts, tokens, strict=True)
    )
    spans: list[Span] = []
    cursor = 0
    for part in _parts(reply):
        start = _find(part["text"], plain, whole, cursor)
        if start < 0:
            continue
        cursor = start + len(part["text"])
        if part["type"] == "text":
            spans.append((start, cursor))
    said = "".join(whole[start:end] for start, end in spans)
    first = said.find(reply.text)
    return None if first < 0 else _cut(spans, first, first + len(reply.text))


def _parts(reply: Reply) -> Iterator[dict[str, Any]]:
    """What a reply consists of, in its order."""
    content = reply.parsed["content"]
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    else:
        for part in content:
            yield {"type": part["type"], "text": part.get("text") or part.get("thinking") or ""}
    for lost in reply.unparsed:
        yield {"type": "text", "text": lost.raw_text}


def _find(text: str, plain: str, whole: str, cursor: int) -> int:
    """Where a part begins, from ``cursor`` on; -1: nowhere."""
    last = len(plain.rstrip("\0 \n")) - len(text.rstrip(" \n"))
    if last >= cursor and whole.startswith(text, last):
        return last  # what ends the reply: short texts may occur in what is before it too
    found = plain.find(text, cursor)
    return found if found >= 0 else whole.find(text, cursor)


def _cut(spans: Sequence[Span], first: int, last: int) -> list[Span]:
    """The spans from their character ``first`` to before ``last``, both counted over all spans."""
    kept, passed = [], 0
    for start, end in spans:
        begin, stop = max(first - passed, 0), min(last - passed, end - start)
        if begin < stop:
            kept.append((start + begin, start + stop))
        passed += end - start
    return kept
