"""What transitions carry for whoever looks into a rollout: who called, and what went wrong unseen.

A policy that writes tool calls in another format than its renderer parses loses every one of them,
and the run's reward alone does not say so. These counts join the last transition's metrics.
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
"""Keys of a transition's logs: who made the call, the token sequence it continues, why it broke,
and which field of which message differed there."""

MARKUP = re.compile(
    r"</?tool_call|<function=|<\|python_tag\|>|<\|tool_call|\[TOOL_CALLS\]|<｜tool"
    r'|<invoke name=|"arguments"\s*:|functions\.\w+:\d'
)
"""How the formats of common models write a tool call."""


def drift_logs(drift: Break) -> Logs:
    """What a transition's logs have of the drift that the next prompt met."""
    logs: Logs = {DRIFT: str(drift.cause)}
    if drift.where:
        logs[DRIFT_AT] = redacted(drift.where)
    return logs


class ToolCounts:
    """Counts over an episode, by metric."""

    def __init__(self) -> None:
        names = ("offered", "calls", "calls_unparsed", "markup_in_text")
        self._counts = {f"tools/{name}": 0 for name in names}

    def count(self, request: ChatRequest, reply: Reply) -> None:
        """Take a reply into account."""
        counts = self._counts
        counts["tools/offered"] = max(counts["tools/offered"], len(request.tools or ()))
        counts["tools/calls"] += len(reply.tool_calls)
        counts["tools/calls_unparsed"] += len(reply.unparsed)
        counts["tools/markup_in_text"] += MARKUP.search(reply.text) is not None

    def report(self, metrics: Metrics) -> None:
        """Write the counts down, unless the episode had nothing to do with tools."""
        if any(self._counts.values()):
            metrics.update(self._counts)
