"""Reading an action: the reply its tokens stand for, and what to do when they do not parse.

The policy for replies that do not parse is the Cookbook's (``ParseErrorPolicy``), as
``EnvFromMessageEnv`` keeps it: broken framing ends the episode, broken tool calls are asked again
a number of times. Without a policy the agent gets the text as it is and decides itself.
"""

import operator
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from tinker_cookbook.exceptions import RendererError
from tinker_cookbook.renderers.base import (
    Message,
    ParseFailureKind,
    ParseTermination,
    classify_parse_failure,
)
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Logs, Metrics

from evert.bridge.errors import InvalidActionError, repr_of, text_of
from evert.bridge.formats import ReplyFormat
from evert.bridge.messages import Reply, read_reply
from evert.bridge.rendering import PromptRenderer
from evert.bridge.requests import ChatRequest
from evert.bridge.secrets import redacted

Problem = tuple[ParseFailureKind, str]
"""What is wrong with a reply: the Cookbook's kind of failure, and its detail."""

LARGEST_ID = 2**32 - 1
"""Of a token: a tokenizer holds no more."""


def token_ids(action: Iterable[Any]) -> list[int]:
    """An action as a list of its own; NumPy's integers become Python's.

    Raises:
        InvalidActionError: Something in it is no token id.
    """
    try:
        ids = list(action)
        if not set(map(type, ids)) <= {int}:  # asked every turn: one pass, without a Python loop
            ids = [_token_id(one) for one in ids]
        if ids and not (min(ids) >= 0 and max(ids) <= LARGEST_ID):
            raise OverflowError("a token id is out of range")
    except Exception as error:
        raise InvalidActionError(
            f"The action is {repr_of(action)}; expected token ids, each an int from 0 to "
            f"{LARGEST_ID} ({text_of(error):.200}). Step again with what the policy sampled, or "
            "close the Env."
        ) from error
    return ids


def _token_id(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a bool is no token id")
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
    """The reply of an action, and what is wrong with it (None: nothing, or only that it was cut).

    Args:
        action: Sampled token ids.
        renderer: Of the policy.
        request: What was asked: the reply is cut before the first of its stop strings.
        truncated: The action was cut at its token cap.
        call_ids: Prefix for the ids of tool calls.
        prompt_tokens: Length of the observation.
        opened: The tokens of ``request.prefill``.
    """
    ended = action + renderer.missing_end(action) if truncated or request.stop else action
    ended = [*opened, *ended]
    try:
        parsed, termination = renderer.parse(ended)
    except (RendererError, RecursionError):  # several ends of turn, say: no parse at all
        parsed = Message(role="assistant", content=renderer.decode([*opened, *action]))
        termination = ParseTermination.MALFORMED
    reply = read_reply(
        parsed,
        truncated=truncated,
        call_ids=call_ids,
        prompt_tokens=prompt_tokens,
        completion_tokens=len(action),
    )
    problem = None if truncated else classify_parse_failure(parsed, termination)
    return as_asked(reply, request), problem


def as_asked(reply: Reply, request: ChatRequest) -> Reply:
    """A reply as far as the agent asked for it: after its own beginning, up to its own stops."""
    if request.prefill:
        reply = reply.after(request.prefill)
    if not request.may_call:
        reply = reply.with_calls(0)
    cuts = [(reply.text.index(string), string) for string in request.stop if string in reply.text]
    if cuts:
        cut, string = min(cuts)
        reply = replace(reply, text=reply.text[:cut], stop_string=string)
    return reply


class Verdict(StrEnum):
    """What becomes of a reply."""

    DELIVER = "deliver"
    ASK_AGAIN = "ask again"
    END = "end"


@dataclass(slots=True)
class ParseErrors:
    """Applies a ``ParseErrorPolicy`` over an episode; None: every reply is delivered."""

    policy: ParseErrorPolicy | None
    _in_a_row: Counter[object] = field(default_factory=Counter, init=False)

    def judge(
        self,
        reply: Reply,
        problem: Problem | None,
        metrics: Metrics,
        logs: Logs,
        row: object = None,
    ) -> Verdict:
        """Decide about a reply; notes go to the transition's ``metrics`` and ``logs``.

        Args:
            reply: The reply.
            problem: What is wrong with it; None: nothing.
            metrics: Of its transition.
            logs: Of its transition.
            row: What it is one of: failures in a row are counted for each.
        """
        if problem is None:
            if reply.finish_reason != "length" and self._in_a_row:
                del self._in_a_row[row]
            return Verdict.DELIVER
        kind, detail = problem
        metrics["parse_error"] = 1.0
        logs["parse_error"] = redacted(detail)
        if self.policy is None:
            return Verdict.DELIVER
        if kind is ParseFailureKind.CONTENT and reply.tool_calls:
            del self._in_a_row[row]  # there are good calls beside the broken ones
            return Verdict.DELIVER
        logs["parse_failure_kind"] = str(kind)
        if self.policy.mask_error_turns:
            metrics[PARSE_ERROR_MASKED_METRIC_KEY] = 1.0
        self._in_a_row[row] += 1
        again = self._in_a_row[row] <= self.policy.max_consecutive
        again = again and kind is ParseFailureKind.CONTENT
        return Verdict.ASK_AGAIN if again else Verdict.END

    def reward(self, verdict: Verdict) -> float:
        """What a turn earns for a verdict."""
        if self.policy is None or verdict is Verdict.DELIVER:
            return 0.0
        if verdict is Verdict.END:
            return self.policy.terminal_reward
        return -self.policy.penalty_per_error

    def correction(self, problem: Problem) -> Message:
        """The message that asks for the reply again."""
        assert self.policy is not None
        content = self.policy.retry_message_template.format(details=problem[1])
        return Message(role="user", content=content)


@dataclass(slots=True)
class FormatRetries:
    """Asks again for replies that are not in the format the agent asked for, a bounded time."""

    limit: int
    _in_a_row: Counter[object] = field(default_factory=Counter, init=False)

    async def judge(
        self,
        reply: Reply,
        wanted: ReplyFormat,
        metrics: Metrics,
        logs: Logs,
        row: object = None,
    ) -> tuple[Reply, Message | None]:
        """The reply as the agent is to get it, and the message that asks again (None: deliver).

        Replies in a row are counted for each ``row``.
        """
        if reply.finish_reason == "length":
            return reply, None
        reply = wanted.cleaned(reply)
        problem = await wanted.complaint(reply)
        if problem is None:
            del self._in_a_row[row]
            return reply, None
        metrics["format_error"] = 1.0
        logs["format_error"] = redacted(problem)
        self._in_a_row[row] += 1
        if self._in_a_row[row] <= self.limit:
            return reply, wanted.correction(problem)
        del self._in_a_row[row]
        return reply, None


@dataclass(slots=True)
class ToolBudget:
    """How many tool calls an episode may still make; ``limit`` None: any number."""

    limit: int | None
    _made: int = field(default=0, init=False)

    def tighten(self, limit: int) -> None:
        """Take another limit; the tighter of the two holds."""
        self.limit = limit if self.limit is None else min(limit, self.limit)

    def allow(self, reply: Reply) -> tuple[Reply, bool]:
        """The reply with the calls that are allowed, and whether any were cut."""
        calls = reply.tool_calls
        allowed = len(calls)
        if self.limit is not None:
            allowed = max(0, min(allowed, self.limit - self._made))
        self._made += allowed
        if allowed == len(calls):
            return reply, False
        return reply.with_calls(allowed), True
