"""``Outstanding``: an observation that waits for its action. ``Turn``: the action that it got.

``Standing``: where an Env stands, in one variable.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.types import Logs, Metrics, Observation

from evert.bridge.conversations.conversation import Conversation
from evert.bridge.conversations.drift import Break
from evert.bridge.env.ahead import Begun
from evert.bridge.env.limits import Budget
from evert.bridge.episode.inbox import ParkedCall
from evert.bridge.tokens.renderer import PromptRenderer


@dataclass(slots=True, eq=False)
class Outstanding:
    """An agent's call whose prompt is the trainer's to continue."""

    call: ParkedCall
    conversation: Conversation
    drift: Break | None = None
    prompt: tuple[Observation, StopCondition] | None = None  # once it is sampled ahead
    sampling: Begun | None = None  # None: the runner samples it

    def cap(self, budget: Budget) -> int | None:
        """Most tokens of the reply: the agent's own cap, or what there is room for; None: any."""
        here = self.conversation
        return budget.cap(self.call.request.max_tokens, here.length, here.first)

    def observation(self, renderer: PromptRenderer) -> tuple[Observation, StopCondition]:
        """The prompt to continue, and where to stop."""
        if self.prompt is not None:
            return self.prompt
        return self.conversation.prompt(), renderer.stop_with(self.call.request.stop)


class Life(StrEnum):
    """Where an Env stands while no observation of it is outstanding."""

    OPEN = "open"
    CLOSED = "closed"


@dataclass(slots=True)
class Standing:
    """Where an Env stands: a ``Life``, or the observation that the runner holds."""

    now: Life | Outstanding = Life.OPEN

    def becomes(self, now: Life | Outstanding) -> None:
        """Stand elsewhere; what is closed stays so, though a step is on its way."""
        if not self.is_closed:
            self.now = now

    @property
    def lent(self) -> Outstanding | None:
        """The observation that the runner holds; None: it holds none."""
        return self.now if isinstance(self.now, Outstanding) else None

    @property
    def is_closed(self) -> bool:
        """Whether the Env was given up."""
        return self.now is Life.CLOSED


@dataclass(slots=True)
class Turn:
    """One action on its way to the agent, and what its transition carries."""

    tokens: list[int]
    truncated: bool
    logs: Logs
    logprobs: Sequence[float] | None = None
    metrics: Metrics = field(default_factory=dict)
    reward: float = 0.0
