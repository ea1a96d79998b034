"""How an episode can end, and what each ending adds to the last transition.

agent returns                     reward, ``stop/completed`` (``stop/truncated`` if truncated)
agent raises                      ``AgentError``, or ``stop/agent_error`` and ``on_agent_error``
agent times out                   the agent is cancelled; ``AgentTimeoutError``, or
                                  ``stop/agent_timeout`` and ``on_agent_error``
``limits.max_turns`` reached      ``stop/max_turns``
prompt exceeds the token budget   the agent gets a 400 error; if it does not handle that,
or the model's context            ``stop/max_tokens`` or ``stop/context_overflow``, and
                                  ``context_overflow_reward``
too many tool calls               ``stop/max_tool_calls``
parse error, with a parse policy  ``stop/parse_error`` (without a policy, the agent gets the text)
ended at another seat             ``stop/peer_stopped``
``close()``                       the agent is cancelled; pending calls and steps raise
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
from evert.bridge.tracebacks import agent_traceback, leaves, name_and_message

PEER_STOPPED = "peer_stopped"
"""Stop reason for a seat whose episode ended because another seat stopped (``seats.py``)."""


NO_CALL = "no_llm_call"
"""Metric and log key for episodes in which the agent did not call the model."""

IDLE = "idle"
"""Metric for a seat that was never called while others were called. This is not an error."""

AGENT_ERROR = "agent_error"
"""Stop reason if the agent raised an exception, and log key for the exception."""

AGENT_TRACEBACK = "agent_traceback"
"""Log key for the exception's traceback."""

CUT_REPLY = "The model's last reply was truncated at max_tokens."
"""Appended to the error message if an agent fails, because the truncation may be the cause."""

CUT = f"{STOP_METRIC_PREFIX}length"
"""Metric that is 1 for turns whose reply was truncated, and 0 otherwise. The Cookbook uses the
first ``stop/...`` metric as the stop reason, so this metric must come after the stop reason."""

AGENT_TIMEOUT = "agent_timeout"
"""Stop reason if the agent neither called the model nor ended in time."""

MAX_REFUSALS = 8
"""Number of consecutive refused requests after which the episode ends."""

TRUNCATED = "truncated"
"""Stop reason if the agent cut the episode short with ``Outcome(truncated=True)``."""


@dataclass(slots=True)
class Ending:
    """The reward, metrics and logs to add to the last transition when an episode ends."""

    reward: float = 0.0
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)

    def as_step(self, turn: Turn, stop: StopCondition) -> StepResult:
        """Return the last step of the episode, with the reward, metrics and logs of its turn."""
        return StepResult(
            reward=self.reward + turn.reward,
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=stop,
            metrics={**turn.metrics, **self.metrics},
            logs={**turn.logs, **self.logs},
        )

    def as_overflow(self) -> InitialObservationOverflow:
        """Return the result for an episode that ends without any transitions."""
        return InitialObservationOverflow(self.reward, self.metrics, self.logs)


@dataclass(slots=True)
class Account:
    """Tracks one role's episode and builds its ending.

    Attributes:
        inbox: The role's inbox, or None before the episode starts.
        hints: Functions that may explain why the agent failed (``Episode.hints``).
        stop_reason: Set if the episode must stop before the next turn.
        overflow: The 400 error for the latest call, if its prompt was too long.
        was_cut: Whether the latest reply was truncated.
        given_up: Number of actions whose replies the agent never read.
        turns, sampled: Number of actions and sampled tokens so far.
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
    given_up: int = 0
    was_cut: bool = False
    sampled: int = 0

    def report(self) -> Metrics:
        """Return metrics that count the lineages, drifts, handoffs and calls so far."""
        metrics: Metrics = {"lineages": self.book.lineages, "drift": self.book.drift.total()}
        for cause, count in self.book.drift.items():
            metrics[f"drift/{cause}"] = count
        if self.book.handoffs:
            metrics["handoffs"] = self.book.handoffs
        if given_up := self.given_up + (self.inbox.given_up if self.inbox is not None else 0):
            metrics["calls/given_up"] = given_up
        self.tools.report(metrics)
        return metrics

    def take_notes(self, metrics: Metrics, logs: Logs) -> float:
        """Move the latest turn's notes into ``metrics`` and ``logs``. Return the sum of rewards."""
        reward = 0.0
        if self.inbox is not None:
            for note in self.inbox.notes.take(self.turns - 1):
                reward += put_note(note, metrics, logs)
        return reward

    def take_late_reward(self) -> float:
        """Sum up the rewards for transitions already returned. Drop all other notes for them."""
        late = self.inbox.notes.take_late() if self.inbox is not None else []
        return sum(put_note(note, {}, {}) for note in late)

    def ending(self, reason: str, reward: float = 0.0) -> Ending:
        """Build the ending for a stop reason, including the agent's notes and the report."""
        ending = Ending(reward)
        ending.reward += self.take_notes(ending.metrics, ending.logs)
        ending.metrics[f"{STOP_METRIC_PREFIX}{reason}"] = 1.0
        if self.turns:
            ending.metrics[CUT] = float(self.was_cut)
        ending.metrics.update(self.report())
        return ending

    def cut(self) -> Ending:
        """Build the ending for a truncated reply (``on_truncation="end"``)."""
        ending = self.ending(StopReason.MAX_TOKENS, self.settings.context_overflow_reward)
        ending.metrics["max_tokens_reached"] = 1.0
        return ending

    def overflown(self) -> Ending:
        """Build the ending for a prompt that exceeds the token budget or the model's context."""
        ending = self.ending(self.budget.prompt.reason, self.settings.context_overflow_reward)
        ending.metrics["context_overflow" if self.turns else "max_tokens_reached"] = 1.0
        ending.logs["context_overflow"] = redacted(str(self.overflow or "the prompt grew too long"))
        return ending

    def of_agent(self, error: BaseException | None, share: Any) -> Ending:
        """Build the ending for an agent that returned or raised an exception.

        Args:
            error: The agent's exception, or None if it returned.
            share: This role's share of the return value.

        Raises:
            AgentError: The agent raised, and ``on_agent_error`` is None.
            RewardError: The agent ended without a valid reward.
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
        if refused and any(comes_from(leaf, refused) for leaf in (error, *leaves(error))):
            return self.overflown()
        name, text = name_and_message(error)
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
        """Build the ending for an agent that neither called the model nor ended in time.

        Raises:
            AgentTimeoutError: ``on_agent_error`` is None.
        """
        text = self.explained(str(error))
        if self.settings.on_agent_error is None:
            raise AgentTimeoutError(text) from error
        return self._failed(AGENT_TIMEOUT, text, self.settings.on_agent_error)

    def of_refusals(self, error: openai.BadRequestError) -> Ending:
        """Build the ending after ``MAX_REFUSALS`` refused requests in a row.

        Raises:
            AgentError: ``on_agent_error`` is None.
        """
        text = self.explained(
            f"The agent {self.agent} made {MAX_REFUSALS} requests in a row that were refused. The "
            f"last refusal: {error}"
        )
        if self.settings.on_agent_error is None:
            raise AgentError.of(type(error).__name__, text) from error
        return self._failed(AGENT_ERROR, text, self.settings.on_agent_error)

    def _failed(self, reason: str, text: str, reward: float) -> Ending:
        ending = self.ending(reason, reward)
        ending.logs[AGENT_ERROR] = text
        return ending

    def explained(self, text: str) -> str:
        """Append hints about possible causes to a failure's error message."""
        candidates = [CUT_REPLY * self.was_cut, *(hint() for hint in self.hints)]
        hints = [hint for hint in candidates if hint and hint not in text]
        if hints and text and text[-1] not in ".!?":
            text += "."
        return redacted(" ".join([text, *hints]))


def put_note(note: Note, metrics: Metrics, logs: Logs) -> float:
    """If the note is a reward, return its value; otherwise, store the note and return 0.0."""
    if note.kind == "reward":
        return float(note.value)
    if note.kind == "metric":
        metrics[redacted(note.key)] = note.value
    else:
        logs |= redacted_logs({note.key: note.value})
    return 0.0


def comes_from(error: BaseException | None, origin: BaseException) -> bool:
    """Return whether ``origin`` is the cause of ``error``.

    An SDK that receives ``origin`` as a response raises its own exception, which has the same code
    (OpenAI) or contains the original message (Anthropic, Google). So we also compare the code and
    the message.
    """
    code, message = getattr(origin, "code", None), str(origin)
    depth = 0
    while error is not None and depth < 32:
        if error is origin or (code is not None and getattr(error, "code", None) == code):
            return True
        if message and message in text_of(error):
            return True
        error = error.__cause__ or error.__context__
        depth += 1
    return False
