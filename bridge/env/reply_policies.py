"""Decides what to do with replies that don't parse, violate the format, or call too many tools."""

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from tinker_cookbook.renderers.base import Message, ParseFailureKind
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY

from evert.bridge.chat.formats import ReplyFormat
from evert.bridge.chat.reply import Reply
from evert.bridge.env.pending import Turn
from evert.bridge.redaction import redacted
from evert.bridge.tokens.actions import Problem


class Verdict(StrEnum):
    """What to do with a reply."""

    DELIVER = "deliver"
    ASK_AGAIN = "ask again"
    END = "end"


@dataclass(slots=True)
class ParseErrors:
    """Applies a ``ParseErrorPolicy`` during an episode (None: all replies are delivered)."""

    policy: ParseErrorPolicy | None
    _in_a_row: Counter[object] = field(default_factory=Counter, init=False)

    def judge(
        self, reply: Reply, problem: Problem | None, turn: Turn, row: object, *, one_call: bool
    ) -> Verdict:
        """Decide what to do with a reply, and update its turn's reward, metrics and logs.

        Each ``row`` has its own count of consecutive errors. If calls overlap, ``row`` is the call;
        otherwise, it is None. ``one_call`` means that the agent allows at most one tool call. In
        this case, an invalid call is an error even if the reply also contains a valid one.
        """
        if problem is None:
            if reply.finish_reason != "length" and self._in_a_row:
                del self._in_a_row[row]
            return Verdict.DELIVER
        kind, detail = problem
        turn.metrics["parse_error"] = 1.0
        turn.logs["parse_error"] = redacted(detail)
        if self.policy is None:
            return Verdict.DELIVER
        if kind is ParseFailureKind.CONTENT and reply.tool_calls and not one_call:
            del self._in_a_row[row]  # the reply also has valid calls
            return Verdict.DELIVER
        turn.logs["parse_failure_kind"] = str(kind)
        if self.policy.mask_error_turns:
            turn.metrics[PARSE_ERROR_MASKED_METRIC_KEY] = 1.0
        self._in_a_row[row] += 1
        may_retry = self._in_a_row[row] <= self.policy.max_consecutive
        if may_retry and kind is ParseFailureKind.CONTENT:
            turn.reward -= self.policy.penalty_per_error
            return Verdict.ASK_AGAIN
        turn.reward += self.policy.terminal_reward
        return Verdict.END

    def correction(self, problem: Problem) -> Message:
        """Return the message that asks the policy to try again."""
        assert self.policy is not None
        content = self.policy.retry_message_template.format(details=problem[1])
        return Message(role="user", content=content)


@dataclass(slots=True)
class FormatRetries:
    """Retries replies that violate the required format, at most ``limit`` times in a row."""

    limit: int
    _in_a_row: Counter[object] = field(default_factory=Counter, init=False)

    def judge(
        self, reply: Reply, reply_format: ReplyFormat, turn: Turn, row: object
    ) -> tuple[Reply, Message | None]:
        """Return the reply for the agent and, if a retry is needed, the message that asks for it.

        Each ``row`` has its own count of consecutive errors. If calls overlap, ``row`` is the call;
        otherwise, it is None.
        """
        if reply.finish_reason == "length":
            return reply, None
        reply = reply_format.cleaned(reply)
        problem = reply_format.problem(reply)
        if problem is None:
            del self._in_a_row[row]
            return reply, None
        turn.metrics["format_error"] = 1.0
        turn.logs["format_error"] = redacted(problem)
        self._in_a_row[row] += 1
        if self._in_a_row[row] <= self.limit:
            return reply, reply_format.correction(problem)
        del self._in_a_row[row]
        return reply, None


@dataclass(slots=True)
class ToolBudget:
    """Limits the number of tool calls in an episode (None: no limit)."""

    limit: int | None
    _calls: int = field(default=0, init=False)

    def tighten(self, limit: int) -> None:
        """Lower the limit to ``limit``, unless it is already lower."""
        self.limit = limit if self.limit is None else min(limit, self.limit)

    def allow(self, reply: Reply) -> tuple[Reply, bool]:
        """Drop tool calls over the limit. Return the reply and whether any calls were dropped."""
        calls = reply.tool_calls
        allowed = len(calls)
        if self.limit is not None:
            allowed = max(0, min(allowed, self.limit - self._calls))
        self._calls += allowed
        if allowed == len(calls):
            return reply, False
        return reply.with_calls(allowed), True
