"""``Outstanding``: an observation that waits for its action. ``Turn``: that action.

``Standing``: the state of an Env.
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
"""Metrics of a turn that is not trained on. ``trajectory_to_data`` masks turns that have the first
metric, which is the Cookbook's metric for parse errors."""

GIVEN_UP = "given_up"
"""Metric of a turn whose reply the agent never read; such a turn is not trained on."""


@dataclass(slots=True, eq=False)
class Outstanding:
    """An agent's call whose prompt is an observation for the trainer."""

    call: ParkedCall
    conversation: Conversation
    drift: Break | None = None
    prompt: tuple[Observation, StopCondition] | None = None  # set when it enters the policy queue
    sample: Sample | None = None  # None: the runner samples the call

    def cap(self, budget: Budget) -> int | None:
        """Return the cap on the reply's tokens; None: no cap. See ``Budget.cap``."""
        conversation = self.conversation
        return budget.cap(self.call.request.max_tokens, conversation.length, conversation.first)

    def observation(self, renderer: PromptRenderer) -> tuple[Observation, StopCondition]:
        """Return the prompt, and its stop condition."""
        if self.prompt is not None:
            return self.prompt
        return self.conversation.prompt(), renderer.stop_with(self.call.request.stop)


class EnvState(StrEnum):
    """The states of an Env without an outstanding observation."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(slots=True)
class Standing:
    """The state of an Env: an ``EnvState``, or the outstanding observation."""

    state: EnvState | Outstanding = EnvState.OPEN

    def change(self, state: EnvState | Outstanding) -> None:
        """Change the state, unless the Env is closed: it stays closed even if a step is running."""
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
    """One action, and the metrics, logs and reward of its transition."""

    tokens: list[int]
    truncated: bool
    logs: Logs
    logprobs: Sequence[float] | None = None
    metrics: Metrics = field(default_factory=dict)
    reward: float = 0.0
