"""Metrics and logs about callers, drift and lost tool calls.

If the policy writes tool calls in a format that the renderer cannot parse, all of its calls are
lost. You can't see this from the reward, but the counts in the last transition's metrics show it.
"""

import re

from tinker_cookbook.rl.types import Logs, Metrics

from evert.bridge.chat.reply import Reply
from evert.bridge.chat.request import ChatRequest
from evert.bridge.conversations.drift import Break
from evert.bridge.redaction import redacted

CALLER = "caller"
LINEAGE = "lineage"
DRIFT = "drift"
DRIFT_AT = "drift_at"
"""Log keys for the caller (a task or thread), the lineage, and the cause and place of a drift."""

MARKUP = re.compile(
    r"</?tool_call|<function=|<\|python_tag\|>|<\|tool_call|\[TOOL_CALLS\]|<｜tool"
    r'|<invoke name=|"arguments"\s*:|functions\.\w+:\d'
)
"""Matches tool call markup in the formats of common models."""


def drift_logs(drift: Break) -> Logs:
    """Return the log entries that describe the drift in the next prompt."""
    logs: Logs = {DRIFT: str(drift.cause)}
    if drift.where:
        logs[DRIFT_AT] = redacted(drift.where)
    return logs


class ToolCounts:
    """Counts the tool calls in an episode."""

    def __init__(self) -> None:
        names = ("offered", "calls", "calls_unparsed", "markup_in_text")
        self._counts = {f"tools/{name}": 0 for name in names}
        self._left_out = 0

    def count(self, request: ChatRequest, reply: Reply) -> None:
        """Count the tools in a request and the tool calls in its reply."""
        counts = self._counts
        counts["tools/offered"] = max(counts["tools/offered"], len(request.tools or ()))
        self._left_out = max(self._left_out, len(request.left_out))
        counts["tools/calls"] += len(reply.tool_calls)
        counts["tools/calls_unparsed"] += len(reply.unparsed)
        counts["tools/markup_in_text"] += MARKUP.search(reply.text) is not None

    def report(self, metrics: Metrics) -> None:
        """Add the counts to ``metrics``, unless they are all 0."""
        if any(self._counts.values()):
            metrics.update(self._counts)
        if self._left_out:
            metrics["tools/left_out"] = self._left_out
