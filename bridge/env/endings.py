"""How an episode ends: the last transition's reward, and the report it carries.

the agent returns                 reward, ``stop/completed`` (``stop/truncated`` if it says so)
the agent raises                  ``AgentError``, or ``stop/agent_error`` and ``on_agent_error``
no call and no end in time        the agent is cancelled; ``AgentTimeoutError``, or
                                  ``stop/agent_timeout`` and ``on_agent_error``
``limits.max_turns`` calls made   ``stop/max_turns``
prompt over the token budget,     the agent gets a 400; if it does not cope,
or over the model's context       ``stop/max_tokens``, or ``stop/context_overflow``, and
                                  ``context_overflow_reward``
tool calls over the budget        ``stop/max_tool_calls``
parse error under a policy        ``stop/parse_error`` (without one, the agent gets the text)
ended at another seat             ``stop/peer_stopped``
``close()``                       the agent is cancelled, whatever waits is told
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import openai
import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    InitialObservationOverflow,
    Logs,
    Metrics,
    StepResult,
    StopReason,
)

from evert.bridge.conversations.matching import ConversationBook
from evert.bridge.env.limits import Budget
from evert.bridge.env.options import EnvSettings
from evert.bridge.env.pending import Outstanding, Turn
from evert.bridge.env.tool_counts import ToolCounts
from evert.bridge.episode.agent import outcome_of
from evert.bridge.episode.inbox import Inbox
from evert.bridge.episode.notes import Note
from evert.bridge.errors import AgentError, AgentTimeoutError, text_of
from evert.bridge.redaction import redacted, redacted_logs
from evert.bridge.tracebacks import agent_traceback, leaves, told

PEER_STOPPED = "peer_stopped"
"""Stop reason of a seat whose episode was ended at another seat (``seats.py``)."""


NO_CALL = "no_llm_call"
"""Metric, and log, of an episode in which the agent made no model call."""

IDLE = "idle"
"""Metric of a seat that nobody called in an episode in which others were: nothing is wrong."""

AGENT_ERROR = "agent_error"
"""Stop reason of an agent that raised, and the log that says what."""

AGENT_TRACEBACK = "agent_traceback"
"""Log of an agent that raised: its traceback."""

CUT_REPLY = "The model's last reply was cut at max_tokens."
"""In the text of a failure: the agent may not have been able to read it."""

AGENT_TIMEOUT = "agent_timeout"
"""Stop reason of an agent that neither called nor ended in time."""

TRUNCATED = "truncated"
"""Stop reason of an episode that its agent says was cut short: ``Outcome(truncated=True)``."""


@dataclass(slots=True)
class Ending:
    """The last transition, but for what it shares with every other."""

    reward: float = 0.0
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)

    def as_step(self, turn: Turn, stop: StopCondition) -> StepResult:
        """The last step of an episode, with what its turn carries."""
        return StepResult(
            reward=self.reward + turn.reward,
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=stop,
            metrics={**turn.metrics, **self.metrics},
            logs={**turn.logs, **self.logs},
        )

    def as_overflow(self) -> InitialObservationOverflow:
        """The end of an episode without a single transition."""
        return InitialObservationOverflow(self.reward, self.metrics, self.logs)


@dataclass(slots=True)
class Account:
    """What one role's episode has come to so far; makes its endings.

    Attributes:
        inbox: The role's, once the episode has begun.
        hints: What may explain a failure of the agent (``Episode.hints``).
        stop_reason: Why the episode is to stop before the next turn; None: it goes on.
        overflow: The latest refusal, while the agent has not coped with it; None: none.
        was_cut: Whether the latest reply was cut at its cap.
        turns, sampled: Number of actions taken so far, and of the tokens in them.
    """

    agent: str
    book: ConversationBook
    settings: EnvSettings
    budget: Budget
    tools: ToolCounts = field(default_factory=ToolCounts)
    inbox: Inbox[Outstanding] | None = None
    hints: Sequence[Callable[[], str]] = ()
    stop_reason: StopReason | None = None
    overflow: openai.BadRequestError | None = None
    turns: int = 0
    was_cut: bool = False
    sampled: int = 0

    def report(self) -> Metrics:
        """Lineages, drift, handoffs and tool calls so far, as metrics."""
        metrics: Metrics = {"lineages": self.book.lineages, "drift": self.book.drift.total()}
        for cause, count in self.book.drift.items():
            metrics[f"drift/{cause}"] = count
        if self.book.handoffs:
            metrics["handoffs"] = self.book.handoffs
        self.tools.report(metrics)
        return metrics

    def take_notes(self, metrics: Metrics, logs: Logs) -> float:
        """Move what the agent noted of the present turn into its transition; returns the reward."""
        reward = 0.0
        if self.inbox is not None:
            for note in self.inbox.notes.take(self.turns - 1):
                reward += put_note(note, metrics, logs)
        return reward

    def ending(self, reason: str, reward: float = 0.0) -> Ending:
        """An ending for ``reason`` with all notes of the agent and the report."""
        ending = Ending(reward)
        ending.reward += self.take_notes(ending.metrics, ending.logs)
        ending.metrics[f"{STOP_METRIC_PREFIX}{reason}"] = 1.0
        ending.metrics.update(self.report())
        return ending

    def cut(self) -> Ending:
        """The reply was cut at its cap, and that is to end the episode."""
        ending = self.ending(StopReason.MAX_TOKENS, self.settings.context_overflow_reward)
        ending.metrics["max_tokens_reached"] = 1.0
        return ending

    def overflown(self) -> Ending:
        """The prompt is over the token budget or the context, and the agent does not cope."""
        ending = self.ending(self.budget.prompt.reason, self.settings.context_overflow_reward)
        ending.metrics["context_overflow" if self.turns else "max_tokens_reached"] = 1.0
        ending.logs["context_overflow"] = redacted(str(self.overflow or "the prompt grew too long"))
        return ending

    def of_agent(self, error: BaseException | None, share: Any) -> Ending:
        """The ending that an agent's return or exception stands for.

        Args:
            error: What it raised; None: it returned.
            share: What it returned, this role's part of it.

        Raises:
            AgentError: It raised (unless ``on_agent_error`` scores that).
            RewardError: It ended without a reward, or with something that is none.
        """
        if error is None:
            rewarded = self.inbox is not None and self.inbox.notes.rewarded
            outcome = outcome_of(share, self.agent, rewarded=rewarded)
            reason = TRUNCATED if outcome.truncated else StopReason.COMPLETED
            ending = self.ending(self.stop_reason or reason, outcome.reward or 0.0)
            ending.metrics.update(redacted_logs(outcome.metrics))
            ending.logs.update(redacted_logs(outcome.logs))
            return ending
        if isinstance(error, KeyboardInterrupt):
            raise error
        refused = self.overflow
        if refused and any(comes_from(each, refused) for each in (error, *leaves(error))):
            return self.overflown()
        name, text = told(error)
        text = self.explained(text)
        if self.settings.on_agent_error is None:
            raise AgentError.of(
                name,
                f"The agent {self.agent} raised {name} after {self.turns} model calls: {text}",
            ) from error
        ending = self._failed(AGENT_ERROR, f"{name}: {text}", self.settings.on_agent_error)
        if traceback := agent_traceback(error):
            ending.logs[AGENT_TRACEBACK] = redacted(traceback)
        return ending

    def of_timeout(self, error: AgentTimeoutError) -> Ending:
        """The ending of an agent that neither called nor ended in time.

        Raises:
            AgentTimeoutError: Always, unless ``on_agent_error`` scores that.
        """
        text = self.explained(str(error))
        if self.settings.on_agent_error is None:
            raise AgentTimeoutError(text) from error
        return self._failed(AGENT_TIMEOUT, text, self.settings.on_agent_error)

    def _failed(self, reason: str, text: str, reward: float) -> Ending:
        ending = self.ending(reason, reward)
        ending.logs[AGENT_ERROR] = text
        return ending

    def explained(self, text: str) -> str:
        """A failure's text, and what the episode knows that may explain it."""
        told_of = [CUT_REPLY * self.was_cut, *(hint() for hint in self.hints)]
        hints = [hint for hint in told_of if hint and hint not in text]
        if hints and text and text[-1] not in ".!?":
            text += "."
        return redacted(" ".join([text, *hints]))


def put_note(note: Note, metrics: Metrics, logs: Logs) -> float:
    """Put a note into a transition's ``metrics`` or ``logs``; returns the reward that it is."""
    if note.kind == "reward":
        return float(note.value)
    if note.kind == "metric":
        metrics[redacted(note.key)] = note.value
    else:
        logs |= redacted_logs({note.key: note.value})
    return 0.0


def comes_from(error: BaseException | None, origin: BaseException) -> bool:
    """Whether ``origin`` is ``error`` itself or among its causes, or one that says the same is.

    An SDK that is told of the error over a transport or a socket raises one of its own: with its
    code (OpenAI's), or with its message among other words (Anthropic's, Google's).
    """
    code, message = getattr(origin, "code", None), str(origin)
    seen = 0
    while error is not None and seen < 32:
        if error is origin or (code is not None and getattr(error, "code", None) == code):
            return True
        if message and message in text_of(error):
            return True
        error = error.__cause__ or error.__context__
        seen += 1
    return False
