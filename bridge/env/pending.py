"""The state of an Env between two actions.

``Outstanding`` is an observation that is waiting for its action, ``Turn`` is an action with its
metrics, and ``Standing`` is the state of the Env.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.types import PARSE_ERROR_MASKED_METRIC_KEY, Logs, Metrics, Observation

from evert.bridge.conversations.conversation import Conversation
from evert.bridge.conversations.drift import Break
from evert.bridge.env.limits import Budget
from evert.bridge.env.policy_queue import Sample
from evert.bridge.episode.inbox import ParkedCall
from evert.bridge.tokens.renderer import PromptRenderer

UNTRAINED: Metrics = {PARSE_ERROR_MASKED_METRIC_KEY: 1.0, "untrained": 1.0}
"""Metrics for a turn that is not trained on. The first metric is the Cookbook's metric for parse
errors; ``trajectory_to_data`` masks every turn that has this metric."""

GIVEN_UP = "given_up"
"""Metric for a turn whose reply the agent never read. These turns are not trained on."""


@dataclass(slots=True, eq=False)
class Outstanding:
    """An agent's call whose prompt was returned to the trainer as an observation."""

    call: ParkedCall
    conversation: Conversation
    drift: Break | None = None
    prompt: tuple[Observation, StopCondition] | None = None  # set if the call is queued
    sample: Sample | None = None  # None if the runner samples the call

    def cap(self, budget: Budget) -> int | None:
        """Return the maximum length of the reply, or None. See ``Budget.cap``."""
        conversation = self.conversation
        return budget.cap(self.call.request.max_tokens, conversation.length, conversation.first)

    def observation(self, renderer: PromptRenderer) -> tuple[Observation, StopCondition]:
        """Return the prompt and its stop condition."""
        if self.prompt is not None:
            return self.prompt
        return self.conversation.prompt(), renderer.stop_with(self.call.request.stop)


class EnvState(StrEnum):
    """The states of an Env that has no outstanding observation."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(slots=True)
class Standing:
    """The state of an Env: an ``EnvState``, or the outstanding observation."""

    state: EnvState | Outstanding = EnvState.OPEN

    def change(self, state: EnvState | Outstanding) -> None:
        """Change the state. A closed Env stays closed, even if a step is still running."""
        if not self.is_closed:
            self.state = state

    @property
    def outstanding(self) -> Outstanding | None:
        """The outstanding observation, or None."""
        return self.state if isinstance(self.state, Outstanding) else None

    @property
    def is_closed(self) -> bool:
        """Whether the Env was closed."""
        return self.state is EnvState.CLOSED


@dataclass(slots=True)
class Turn:
    """An action, with the metrics, logs and reward of its transition."""

    tokens: list[int]
    truncated: bool
    logs: Logs
    logprobs: Sequence[float] | None = None
    metrics: Metrics = field(default_factory=dict)
    reward: float = 0.0
