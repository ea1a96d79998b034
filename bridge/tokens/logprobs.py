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
from itertools import pairwise
from typing import Any

import openai
from tinker_cookbook.completers import TokensWithLogprobs

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.reply import Reply, TokenLogprob
from evert.bridge.tokens.renderer import PromptRenderer

WINDOW = 16
"""Tokens that are decoded together at most; a character has no more than four."""

NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""What stands for bytes that are none; the tokens of all but the first of them say nothing."""

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
        can be seen, and a character of several tokens stands at the last of them. None where the
        text is not to be found in what was sampled.
    """
    ends = _ends(tokens, renderer)
    spans = _visible(ends, tokens, reply, renderer)
    if spans is None:
        return None
    whole, found = renderer.decode(tokens), []
    for begin, stop in spans:
        for (start, end), logprob in zip(pairwise([0, *ends]), logprobs, strict=True):
            seen = whole[max(begin, start) : min(stop, end)]
            is_piece = begin <= start == end < stop + whole.startswith(NO_CHARACTER, stop - 1)
            if seen or is_piece:
                found.append(TokenLogprob(seen, logprob))
    return tuple(found)


def _ends(tokens: Sequence[int], renderer: PromptRenderer) -> list[int]:
    """Where in the text of all tokens each token's own part ends.

    A few tokens are decoded at a time, since one character may take several. Their text counts as
    far as it agrees with the text of all.
    """
    whole = renderer.decode(tokens)
    ends: list[int] = []
    known = (0, 0)  # up to a token, and up to a character, from which on it is decoded
    whole_up_to = (0, 0)  # where the text so far ended with a whole character
    for end in range(1, len(tokens) + 1):
        first, place = known
        text = renderer.decode(tokens[first:end])
        agreed = _agreed(text, whole[place : place + len(text)])
        ends.append(max(place + agreed, ends[-1] if ends else 0))
        if agreed == len(text) or end - first > WINDOW:
            known, whole_up_to = whole_up_to, (end, ends[-1])
    return [*ends[:-1], len(whole)] if ends else []


def _agreed(text: str, other: str) -> int:
    pairs = enumerate(zip(text, other, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(text), len(other)))


def _visible(
    ends: Sequence[int], tokens: Sequence[int], reply: Reply, renderer: PromptRenderer
) -> list[Span] | None:
    """Where the reply's text stands in what was sampled, in the text's order; None: nowhere."""
    whole = renderer.decode(tokens)
    plain = "".join(  # markup of the format is no text, even if it reads like it
        "\0" * (end - start) if token in renderer.markup else whole[start:end]
        for (start, end), token in zip(pairwise([0, *ends]), tokens, strict=True)
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
    for lost in reply.unparsed:  # they stand after the text, wherever they were
        start = whole.find(lost.raw_text)
        if start >= 0:
            spans.append((start, start + len(lost.raw_text)))
    said = "".join(whole[start:end] for start, end in spans)
    runs = _runs(said, reply.text)
    return None if runs is None else [one for first, end in runs for one in _cut(spans, first, end)]


def _runs(said: str, text: str) -> list[Span] | None:
    """The stretches of ``said`` that make up a text, which may lack white space between them."""
    if (first := said.find(text)) >= 0:
        return [(first, first + len(text))]
    runs: list[Span] = []
    place = 0
    for character in text:
        while said[place : place + 1] != character:
            if not said[place : place + 1].isspace():
                return None
            place += 1
        if runs and runs[-1][1] == place:
            runs[-1] = (runs[-1][0], place + 1)
        else:
            runs.append((place, place + 1))
        place += 1
    return runs


def _parts(reply: Reply) -> Iterator[dict[str, Any]]:
    content = reply.parsed["content"]
    if isinstance(content, str):
        yield {"type": "text", "text": content}
    else:
        for part in content:
            yield {"type": part["type"], "text": part.get("text") or part.get("thinking") or ""}


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
