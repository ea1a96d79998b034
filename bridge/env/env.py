"""``ChatAgentEnv``: an agent function as a ``tinker_cookbook.rl.types.Env``.

The Env starts the agent (``episode.py``), returns the prompt of its first call as the observation
(``matching.py``), gives the agent the reply that ``step`` receives (``turns.py``), and continues
until the episode ends (``endings.py``). This file is the interface for trainers and users.
"""

import asyncio
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

from tinker_cookbook.completers import StopCondition
from tinker_cookbook.renderers import Renderer
from tinker_cookbook.renderers.base import Message
from tinker_cookbook.rl.rollout_limits import ParseErrorPolicy
from tinker_cookbook.rl.types import (
    Action,
    ActionExtra,
    Env,
    InitialObservationOverflow,
    Metrics,
    Observation,
    StepResult,
)

from evert.bridge.chat.request import ChatRequest
from evert.bridge.clients import takeover
from evert.bridge.clients.client import AgentClient, BlockingAgentClient
from evert.bridge.clients.dialects.endpoint import Endpoint
from evert.bridge.conversations.conversation import Conversation
from evert.bridge.conversations.drift import Drift
from evert.bridge.env.endings import CUT, IDLE, NO_CALL, Ending
from evert.bridge.env.limits import LiveLimits
from evert.bridge.env.options import EnvOptions, options_with_own, settings_of
from evert.bridge.env.pending import Outstanding, Turn
from evert.bridge.env.reply_policies import ParseErrors
from evert.bridge.env.tool_counts import CALLER, LINEAGE, drift_logs
from evert.bridge.env.transcript import Transcript
from evert.bridge.env.turns import Turns
from evert.bridge.episode.agent import NO_TASK, Agent, inspect_agent
from evert.bridge.episode.episode import Episode
from evert.bridge.episode.inbox import Inbox
from evert.bridge.errors import EnvStateError
from evert.bridge.models.frozen import frozen_models
from evert.bridge.off_loop import give_threads
from evert.bridge.tokens.actions import token_ids
from evert.bridge.tokens.logprobs import SampledTokens
from evert.bridge.tokens.loop_budget import LongTexts
from evert.bridge.tokens.renderer import prompt_renderer


class ChatAgentEnv(Env):
    """One episode of a chat agent, as a token-level environment.

    Args:
        agent: ``(client)`` or ``(client, task)``; ``async def``, or a plain function, which runs in
            its own thread. It returns the reward (or an ``Outcome``).
        task: The agent's task. If omitted, the agent is called without a task.
        seed: Seed for the agent (``client.seed``, ``client.rng``). None: a random seed.
        **options: ``renderer``, ``policy_names``, ``limits``, ``context_length``,
            ``agent_timeout``, ``on_agent_error``, ``on_truncation``, ``parse_error_policy``,
            ``context_overflow_reward``, ``close_timeout``, ``models``, ``model_timeout``,
            ``format_retries``, ``keep_completed_arguments``: see
            ``evert.bridge.env.options``. The agent's ``env_options`` replace their defaults.

    Attributes:
        agent, task, seed: The arguments.
        transcript: The agent's requests, if they are recorded (``Recorder.watch``); else None.
        turn_lineages: The lineage (token sequence) of each action so far, in order.
        turn_callers: For each action, the task or thread whose call it answered.
        open_calls: The calls that overlap with other calls (for rollout strategies).

    Raises:
        InvalidAgentError: ``agent`` is not an agent, or does not take these arguments.
        InvalidModelError: One of ``models`` is not a model, or ``policy_names`` are invalid.
        RendererMismatchError: ``renderer`` is not a renderer.
        TypeError, ValueError: An option does not exist, or its value is invalid.

    An Env can be used once. ``close()`` aborts a rollout; a builder's ``cleanup`` closes its Envs.
    """

    _share: Callable[[Any], Any] = staticmethod(lambda value: value)
    """Returns this Env's share of the agent's return value."""

    def __init__(
        self,
        agent: Agent,
        task: object = NO_TASK,
        *,
        seed: int | None = None,
        **options: Unpack[EnvOptions],
    ) -> None:
        self._form = inspect_agent(agent, task)
        self._options = options
        self._settings = settings = settings_of(options_with_own(agent, options))
        self._renderer = prompt_renderer(settings.renderer)
        self.task = task
        self.seed = seed
        self._turns = Turns(self._form.name, settings, self._renderer, self._share)
        self.open_calls = self._turns.open_calls
        self._frozen = frozen_models(
            settings.models or {}, settings.names, self._renderer, settings.model_timeout
        )
        self.agent = agent
        self.transcript: Transcript | None = None
        self.turn_lineages: list[int] = []
        self.turn_callers: list[str] = []

    # -- what the Cookbook calls -----------------------------------------------------------------

    async def initial_observation(
        self,
    ) -> tuple[Observation, StopCondition] | InitialObservationOverflow:
        """Start the agent and return the prompt of its first model call.

        If the agent ends without a call, or its first prompt is over the budget, the result is an
        ``InitialObservationOverflow`` with the reward. A seat that is never called although other
        seats are has the metric ``idle``.

        Raises:
            AgentError, AgentTimeoutError, RewardError, EnvClosedError: See ``step``.
            EnvStateError: The Env was used before.
        """
        if self._turns.episode is not None:
            raise EnvStateError(
                "initial_observation() was called twice on one ChatAgentEnv. An Env is one "
                "episode: make a new one for the next."
            )
        self._turns.check_usable()
        upcoming = await self._turns.begin(*await self._begin())
        if isinstance(upcoming, Outstanding):
            return self._turns.hand_out(upcoming)
        self._turns.forget()
        if self._turns.account.overflow is None:
            episode = self._turns.episode
            if episode is not None and episode.has_called and episode.routes.seats:
                upcoming.metrics[IDLE] = 1.0
            else:
                upcoming.metrics[NO_CALL] = 1.0
                upcoming.logs[NO_CALL] = self._turns.account.explained("No model call arrived.")
        return upcoming.as_overflow()

    async def step(self, action: Action, *, extra: ActionExtra | None = None) -> StepResult:
        """Resume the agent with a sampled action; return at its next call or its end.

        Args:
            action: Sampled token ids, kept exactly. ``SampledTokens`` also have log-probabilities.
            extra: ``stop_reason`` "length" means that the action was cut at its token cap.

        Raises:
            AgentError: The agent raised, and ``on_agent_error`` is None.
            AgentTimeoutError: The agent neither called nor ended within ``agent_timeout``.
            RewardError: The agent ended without a valid reward.
            InvalidActionError: ``action`` is not a list of ids; the observation stays outstanding.
            EnvStateError: No observation is outstanding.
            EnvClosedError: The Env was closed, before or during this step.
        """
        ids = token_ids(action)
        outstanding = self._turns.take_back()
        truncated = (extra or {}).get("stop_reason") == "length"
        caller, lineage = outstanding.call.caller, outstanding.conversation.lineage
        logprobs = action.logprobs if isinstance(action, SampledTokens) else None
        turn = Turn(ids, truncated, {CALLER: caller, LINEAGE: lineage}, logprobs)
        self.turn_lineages.append(lineage)
        self.turn_callers.append(caller)
        if self.transcript is not None:
            request, overlaps = outstanding.call.request, self.open_calls.overlap
            self.transcript.note(request, outstanding.conversation, overlaps=overlaps)
        upcoming = await self._turns.resume(outstanding, turn)
        if isinstance(upcoming, Ending):
            self._turns.forget()
            return upcoming.as_step(turn, self._renderer.stop)
        if upcoming.drift is not None:
            turn.logs |= drift_logs(upcoming.drift)
        turn.reward += self._turns.account.take_notes(turn.metrics, turn.logs)
        turn.metrics[CUT] = float(self._turns.account.was_cut)
        observation, stop = self._turns.hand_out(upcoming)
        return StepResult(turn.reward, False, observation, stop, turn.metrics, turn.logs)

    async def inject_messages(
        self, messages: Sequence[Message]
    ) -> tuple[Observation, StopCondition]:
        """Add messages to the outstanding prompt; the agent does not see them (for rollout hooks).

        Raises:
            EnvStateError: No observation is outstanding.
            RendererMismatchError, ValueError: The messages cannot be rendered; nothing changes.
        """
        outstanding = self._turns.take_back()
        try:
            inject = partial(self._turns.book.inject, outstanding.conversation, messages)
            await LongTexts(self._renderer).render(inject)
            outstanding.prompt = None  # drops a sample in the queue, which is for the old prompt
        finally:
            observation = self._turns.hand_out(outstanding)
        return observation

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Use a runner's policy for replies that do not parse."""
        self._turns.parse_errors = ParseErrors(policy)

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        """Apply a runner's cap on tool calls; the lowest cap applies."""
        self._turns.tool_budget.tighten(max_tool_calls)

    @property
    def rollout_limits(self) -> LiveLimits:
        """The limits, including the agent's ``max_tokens``, which a runner reads every turn."""
        turns = self._turns

        def present_cap() -> int | None:
            outstanding = turns.standing.outstanding
            return None if outstanding is None else outstanding.cap(turns.budget)

        return LiveLimits(self._settings.limits, present_cap)

    # -- what users read -------------------------------------------------------------------------

    def renewed(self) -> "ChatAgentEnv":
        """Return a new Env with the same agent, task, seed and options."""
        return ChatAgentEnv(self.agent, self.task, seed=self.seed, **self._options)

    @property
    def renderer(self) -> Renderer:
        """The Cookbook renderer in use."""
        return self._renderer.renderer

    @property
    def turns(self) -> int:
        """Number of actions taken so far."""
        return self._turns.account.turns

    @property
    def is_running(self) -> bool:
        """Whether the agent was started and has not ended."""
        return self._turns.episode is not None and not self._turns.episode.is_over

    @property
    def request(self) -> ChatRequest | None:
        """The agent's call that waits for a reply; None if no call is waiting."""
        outstanding = self._turns.standing.outstanding
        return None if outstanding is None else outstanding.call.request

    def request_of(self, observation: Observation) -> ChatRequest | None:
        """Return the agent's call that an observation belongs to, if it is being sampled, or None.

        For policies that read messages. ``observation`` is the object that the policy got.
        """
        call = self.open_calls.call_of(observation)
        return None if call is None else call.request

    @property
    def conversation(self) -> Conversation | None:
        """The conversation of the outstanding observation, or None."""
        outstanding = self._turns.standing.outstanding
        return None if outstanding is None else outstanding.conversation

    @property
    def drift(self) -> Counter[Drift]:
        """Number of times that a conversation could not be continued exactly, by cause."""
        return self._turns.book.drift

    def report(self) -> Metrics:
        """Return the counts of lineages, drift and tool calls so far, for the last transition."""
        return self._turns.account.report()

    # -- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Abort the episode: cancel the agent, run its ``finally`` blocks, join its thread.

        Idempotent, and safe while a ``step`` is waiting, which then raises ``EnvClosedError``.
        It also works from another event loop while the Env's own loop runs. If that loop has ended,
        waiting calls are refused, so that their threads continue.
        """
        await self._turns.close()

    def __del__(self) -> None:
        turns: Turns | None = getattr(self, "_turns", None)
        # "running" is a string because this module's names are gone at interpreter exit.
        if turns is None or turns.episode is None or turns.episode.life != "running":
            return
        turns.episode.drop()  # otherwise the agent's thread would wait forever
        warnings.warn(
            f"A ChatAgentEnv of {self._form.name} was dropped while its agent was running; call "
            "close().",
            ResourceWarning,
            source=self,
            stacklevel=1,
        )

    # -- starting the agent ----------------------------------------------------------------------

    async def _begin(self) -> tuple[Episode, Inbox[Outstanding]]:
        episode = self._start([self._settings.names], self.seed)
        return episode, episode.inboxes[0]

    def _start(self, roles: Sequence[Sequence[str]], seed: int | None) -> Episode:
        form = self._form
        loop = asyncio.get_running_loop()
        episode = Episode(form, loop, roles, self._frozen, seed)
        endpoint = Endpoint(episode, episode.routes.names[0], self._renderer)
        client = (AgentClient if form.is_async else BlockingAgentClient)(endpoint)
        agent = form.bound(self.agent, client, self.task)
        takeover.install()
        give_threads(episode.loop)
        episode.start(agent, takeover.agent_context(endpoint))
        return episode
