"""``Outstanding``: an observation that waits for its action, and how long that may be."""

from dataclasses import dataclass

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.rl.types import Observation

from evert.bridge.conversations.conversation import Conversation
from evert.bridge.conversations.drift import Break
from evert.bridge.env.ahead import Begun
from evert.bridge.env.limits import response_limit
from evert.bridge.env.options import EnvSettings
from evert.bridge.episode.inbox import ParkedCall
from evert.bridge.tokens.renderer import PromptRenderer


@dataclass(slots=True, eq=False)
class Outstanding:
    """An agent's call whose prompt is the trainer's to continue.

    Attributes:
        call: The parked call.
        conversation: What the prompt is of.
        drift: The drift it met; None: none.
        prompt: The observation, once it was made to be sampled ahead of the runner (``ahead.py``).
        sampling: What samples it; None: the runner will.
    """

    call: ParkedCall
    conversation: Conversation
    drift: Break | None = None
    prompt: tuple[Observation, StopCondition] | None = None
    sampling: Begun | None = None

    def cap(self, settings: EnvSettings) -> int | None:
        """Most tokens of the reply: the agent's own cap, or what there is room for; None: any."""
        caps, length = [self.call.request.max_tokens], self.conversation.length
        if settings.context_length is not None:
            caps.append(settings.context_length - length)
        response, first = response_limit(settings.limits), self.conversation.first
        if response is not None and first is not None:
            caps.append(first + response - length)
        return min((cap for cap in caps if cap is not None), default=None)

    def budget(self, settings: EnvSettings, sampled: int) -> int | None:
        """Most tokens that a runner takes of the reply, by the Env's limits; None: any number.

        Args:
            settings: Of the Env.
            sampled: Tokens that were sampled so far; a runner may meanwhile have taken more.
        """
        limits = settings.limits
        caps = [self.cap(settings), limits.max_turn_tokens]
        if limits.max_trajectory_tokens is not None:
            caps.append(limits.max_trajectory_tokens - self.conversation.length)
        if limits.max_sampled_tokens is not None:
            caps.append(limits.max_sampled_tokens - sampled)
        return min((cap for cap in caps if cap is not None), default=None)

    def observation(self, renderer: PromptRenderer) -> tuple[Observation, StopCondition]:
        """The prompt to continue, and where to stop."""
        if self.prompt is not None:
            return self.prompt
        return self.conversation.prompt(), renderer.stop_with(self.call.request.stop)
