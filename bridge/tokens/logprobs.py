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

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from typing import Any

import openai
from tinker_cookbook.completers import TokensWithLogprobs

from evert.bridge.chat.bad_requests import bad_request
from evert.bridge.chat.reply import Reply, TokenLogprob
from evert.bridge.tokens.renderer import PromptRenderer

WINDOW = 16  # tokens that are decoded together at most; a character has no more than four

NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"
"""What stands for bytes that are none; the tokens of all but the first of them say nothing."""


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
    """A reply with those of its text, if they can be told; a 400 where nobody brought them."""
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
    """Those of the tokens that make up ``reply.text``; None: it is not in what was sampled.

    A token at an edge counts with the part that can be seen, and a character of several tokens
    stands at the last of them.
    """
    whole = renderer.decode(tokens)
    bounds = [*pairwise([0, *_ends(tokens, whole, renderer)])]
    places = _places(reply, tokens, whole, bounds, renderer.markup)
    if places is None:
        return None
    found = []
    for _, run in groupby(enumerate(places), lambda one: one[1] - one[0]):
        stretch = [place for _, place in run]
        begin, stop = stretch[0], stretch[-1] + 1
        for (start, end), logprob in zip(bounds, logprobs, strict=True):
            seen = whole[max(begin, start) : min(stop, end)]
            is_piece = begin <= start == end < stop + whole.startswith(NO_CHARACTER, stop - 1)
            if seen or is_piece:
                found.append(TokenLogprob(seen, logprob))
    return tuple(found)


def _ends(tokens: Sequence[int], whole: str, renderer: PromptRenderer) -> list[int]:
    """Where in the text of all tokens each token's own part ends.

    A few tokens are decoded at a time, since one character may take several. Their text counts as
    far as it agrees with the text of all.
    """
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


def _places(
    reply: Reply,
    tokens: Sequence[int],
    whole: str,
    bounds: Sequence[tuple[int, int]],
    markup: frozenset[int],
) -> list[int] | None:
    """Where each character of the reply's text stands in what was sampled; None: nowhere."""
    plain = "".join(  # markup of the format is no text, even if it reads like it
        "\0" * (end - start) if token in markup else whole[start:end]
        for (start, end), token in zip(bounds, tokens, strict=True)
    )
    content = reply.parsed["content"]
    parts: Any = [{"type": "text", "text": content}] if isinstance(content, str) else content
    said: list[int] = []
    cursor = 0
    for part in parts:
        text = part.get("text") or part.get("thinking") or ""
        start = _find(text, plain, whole, cursor)
        if start >= 0:
            cursor = start + len(text)
            said += range(start, cursor) if part["type"] == "text" else ()
    for lost in reply.unparsed:  # they stand after the text, wherever they were
        start = whole.find(lost.raw_text)
        said += range(start, start + len(lost.raw_text)) if start >= 0 else ()
    return _picked(reply.text, said, whole)


def _find(text: str, plain: str, whole: str, cursor: int) -> int:
    """Where a part begins, from ``cursor`` on; -1: nowhere."""
    last = len(plain.rstrip("\0 \n")) - len(text.rstrip(" \n"))
    if last >= cursor and whole.startswith(text, last):
        return last  # what ends the reply: short texts may occur in what is before it too
    found = plain.find(text, cursor)
    return found if found >= 0 else whole.find(text, cursor)


def _picked(text: str, said: Sequence[int], whole: str) -> list[int] | None:
    """The places that a text takes of those said; it may lack white space between them."""
    first = "".join(whole[place] for place in said).find(text)
    if first >= 0:
        return [*said[first : first + len(text)]]
    left, picked = iter(said), list[int]()
    for character in text:
        fits = (one for one in left if whole[one] == character or not whole[one].isspace())
        place = next(fits, None)
        if place is None or whole[place] != character:
            return None
        picked.append(place)
    return picked
