"""Parses actions into replies, and describes the problem if an action cannot be parsed."""

import operator
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import (
    Message,
    ParseFailureKind,
    ParseTermination,
    classify_parse_failure,
)

from evert.bridge.chat.reply import Reply, read_reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.errors import InvalidActionError, repr_of, text_of
from evert.bridge.tokens.renderer import PromptRenderer

Problem = tuple[ParseFailureKind, str]
"""What is wrong with a reply: the Cookbook's failure type and a description."""

LARGEST_ID = 2**32 - 1  # the largest token id that a tokenizer can have


def token_ids(action: Iterable[Any]) -> list[int]:
    """Convert an action to a list of Python ints, or raise ``InvalidActionError``."""
    try:
        ids = list(action)
        if not set(map(type, ids)) <= {int}:  # hot path: one pass without a Python loop
            ids = [_token_id(token) for token in ids]
        if ids and not (min(ids) >= 0 and max(ids) <= LARGEST_ID):
            raise OverflowError("a token id is out of range")
    except Exception as error:
        raise InvalidActionError(
            f"The action is {repr_of(action)}; expected a list of token ids, which are ints from 0 "
            f"to {LARGEST_ID} ({text_of(error):.200}). Call step() again with sampled token ids, "
            "or close the Env."
        ) from error
    return ids


def _token_id(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a bool is not a token id")
    return operator.index(value)


def read_action(
    action: list[int],
    renderer: PromptRenderer,
    request: ChatRequest,
    *,
    truncated: bool,
    call_ids: str,
    prompt_tokens: int,
    opened: Sequence[int] = (),
) -> tuple[Reply, Problem | None]:
    """Parse an action. Return the reply and its problem (None if there is no problem).

    ``truncated`` means that the action was cut off at the token limit, which does not count as a
    problem. ``opened`` contains the tokens of the prefill. The reply is cut before the request's
    first stop string.
    """
    ended = action + renderer.missing_end(action) if truncated or request.stop else action
    ended = [*opened, *ended]
    try:
        parsed, termination = renderer.parse(ended, request.tools or ())
    except (RendererError, RecursionError):  # for example, several end-of-turn tokens
        parsed = Message(role="assistant", content=renderer.decode([*opened, *action]))
        termination = ParseTermination.MALFORMED
    reply = read_reply(
        parsed,
        truncated=truncated,
        call_ids=call_ids,
        prompt_tokens=prompt_tokens,
        completion_tokens=len(action),
        keeps_ids=renderer.keeps_ids,
    )
    problem = None if truncated else classify_parse_failure(parsed, termination)
    if problem is None and request.one_call and len(reply.tool_calls) > 1:
        detail = f"You called {len(reply.tool_calls)} tools at once. Call one at a time."
        problem = ParseFailureKind.CONTENT, detail
    return requested_part(reply, request), problem


def requested_part(reply: Reply, request: ChatRequest) -> Reply:
    """Return the part of a reply that the agent sees: after the prefill, up to a stop string."""
    if request.prefill:
        reply = reply.after(request.prefill)
    if not request.may_call:
        reply = reply.with_calls(0)
    elif request.one_call and len(reply.tool_calls) > 1:
        reply = reply.with_calls(1)
    cuts = [(reply.text.index(string), string) for string in request.stop if string in reply.text]
    if cuts:
        cut, string = min(cuts)
        reply = replace(reply, text=reply.text[:cut], stop_string=string)
    return reply
