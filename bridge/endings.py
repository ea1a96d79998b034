"""How an episode ends: the last transition's reward, and the report it carries."""

from dataclasses import dataclass, field

import tinker
from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.types import (
    STOP_METRIC_PREFIX,
    InitialObservationOverflow,
    Logs,
    Metrics,
    StepResult,
)

from evert.bridge.lineage import ConversationBook
from evert.bridge.switch import AgentRun


@dataclass(slots=True)
class Ending:
    """The last transition, but for what it shares with every other.

    Attributes:
        reward: All that is earned with it.
        metrics: The stop reason and the episode's report.
        logs: For people.
    """

    reward: float = 0.0
    metrics: Metrics = field(default_factory=dict)
    logs: Logs = field(default_factory=dict)

    def as_step(self, metrics: Metrics, logs: Logs, stop: StopCondition) -> StepResult:
        """The last step of an episode; ``metrics`` and ``logs`` are the transition's own."""
        return StepResult(
            reward=self.reward,
            episode_done=True,
            next_observation=tinker.ModelInput.empty(),
            next_stop_condition=stop,
            metrics={**metrics, **self.metrics},
            logs={**logs, **self.logs},
        )

    def as_overflow(self) -> InitialObservationOverflow:
        """The end of an episode without a single transition."""
        return InitialObservationOverflow(self.reward, self.metrics, self.logs)


def end_with(reason: str, run: AgentRun, book: ConversationBook, reward: float = 0.0) -> Ending:
    """An ending for ``reason`` with all notes of the agent, and with lineages and drift."""
    ending = Ending()
    ending.reward = reward + take_notes(run, ending.metrics, ending.logs)
    ending.metrics[f"{STOP_METRIC_PREFIX}{reason}"] = 1.0
    ending.metrics["lineages"] = book.lineages
    ending.metrics["drift"] = book.drift.total()
    for cause, count in book.drift.items():
        ending.metrics[f"drift/{cause}"] = count
    return ending


def take_notes(run: AgentRun, metrics: Metrics, logs: Logs) -> float:
    """Move what the agent noted since its last call into a transition; returns the reward."""
    reward = 0.0
    for _ in range(len(run.notes)):  # a thread may add some meanwhile: those are the next one's
        kind, key, value = run.notes.pop(0)
        if kind == "reward":
            reward += value
        elif kind == "metric":
            metrics[key] = value
        else:
            logs[key] = value
    return reward


def comes_from(error: BaseException | None, origin: BaseException) -> bool:
    """Whether ``origin`` is ``error`` itself or among its causes, or one with its code is.

    An SDK that is told of the error over a transport or a socket raises one of its own.
    """
    code = getattr(origin, "code", None)
    seen = 0
    while error is not None and seen < 32:
        if error is origin or (code is not None and getattr(error, "code", None) == code):
            return True
        error = error.__cause__ or error.__context__
        seen += 1
    return False
