"""``ChatAgentEnv``: wraps an agent function as a ``tinker_cookbook.rl.types.Env``.

The Env starts the agent (``episode.py``) and returns the prompt of the agent's first call as an
observation (``matching.py``). Each ``step`` parses the action and passes it to the agent as the
reply (``turns.py``), until the episode ends (``endings.py``). This file contains the interface used
by trainers and users.
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
    """A token-level environment for one episode of a chat agent.

    Args:
        agent: A function ``(client)`` or ``(client, task)`` that returns the reward or an
            ``Outcome``. It can be an ``async def`` or a regular function, which runs in a thread.
        task: The agent's task. If omitted, the agent is called without a task.
        seed: Seed for the agent (``client.seed``, ``client.rng``). The default is a random seed.
        **options: ``renderer``, ``policy_names``, ``limits``, ``context_length``,
            ``agent_timeout``, ``on_agent_error``, ``on_truncation``, ``parse_error_policy``,
            ``context_overflow_reward``, ``close_timeout``, ``models``, ``model_timeout``,
            ``format_retries``, ``keep_completed_arguments``: see
            ``evert.bridge.env.options``. The agent's ``env_options`` override the defaults.

    Attributes:
        agent, task, seed: The arguments.
        transcript: The agent's requests, if the Env is being recorded (``Recorder.watch``).
        turn_lineages: The lineage (token sequence) of each action so far.
        turn_callers: The task or thread that made the call, for each action so far.
        open_calls: Overlapping calls (used by rollout strategies).

    Raises:
        InvalidAgentError: ``agent`` is not an agent, or does not take these arguments.
        InvalidModelError: One of ``models`` is not a model, or ``policy_names`` is invalid.
        RendererMismatchError: ``renderer`` is not a renderer.
        TypeError, ValueError: An option does not exist or has an invalid value.

    An Env can only be used for one episode. Use ``close()`` to abort a rollout. A group builder's
    ``cleanup`` closes its Envs.
    """

    _share: Callable[[Any], Any] = staticmethod(lambda value: value)
    """Extracts this Env's share of the agent's return value."""

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

        If the agent ends without a call, or if its first prompt exceeds the budget, this returns an
        ``InitialObservationOverflow`` with the reward. A seat that is never called while other
        seats are called gets the metric ``idle``.

        Raises:
            AgentError, AgentTimeoutError, RewardError, EnvClosedError: See ``step``.
            EnvStateError: The Env has already been used.
        """
        if self._turns.episode is not None:
            raise EnvStateError(
                "initial_observation() was called twice on the same ChatAgentEnv. An Env can only "
                "be used for one episode, so create a new one for each episode."
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
        """Resume the agent with a sampled action, and wait until it makes its next call or ends.

        Args:
            action: The sampled token ids, which are kept unchanged. ``SampledTokens`` also contain
                log-probabilities.
            extra: A ``stop_reason`` of "length" means that the action was truncated.

        Raises:
            AgentError: The agent raised, and ``on_agent_error`` is None.
            AgentTimeoutError: The agent neither made a call nor ended within ``agent_timeout``.
            RewardError: The agent ended without a valid reward.
            InvalidActionError: ``action`` is not a list of ids. The observation stays outstanding.
            EnvStateError: No observation is outstanding.
            EnvClosedError: The Env was closed before or during this step.
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
        """Add messages to the outstanding prompt without showing them to the agent.

        This is used by rollout hooks.

        Raises:
            EnvStateError: No observation is outstanding.
            RendererMismatchError, ValueError: The messages cannot be rendered. Nothing is changed.
        """
        outstanding = self._turns.take_back()
        try:
            inject = partial(self._turns.book.inject, outstanding.conversation, messages)
            await LongTexts(self._renderer).render(inject)
            outstanding.prompt = None  # a queued sample for the old prompt is no longer valid
        finally:
            observation = self._turns.hand_out(outstanding)
        return observation

    def set_parse_error_policy(self, policy: ParseErrorPolicy) -> None:
        """Set what to do with replies that cannot be parsed. Called by the runner."""
        self._turns.parse_errors = ParseErrors(policy)

    def set_max_tool_calls(self, max_tool_calls: int) -> None:
        """Limit the number of tool calls. Called by the runner. The lowest limit set applies."""
        self._turns.tool_budget.tighten(max_tool_calls)

    @property
    def rollout_limits(self) -> LiveLimits:
        """The limits, including the agent's ``max_tokens``. The runner reads them every turn."""
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
        """Whether the agent has started but not yet ended."""
        return self._turns.episode is not None and not self._turns.episode.is_over

    @property
    def request(self) -> ChatRequest | None:
        """The call that is waiting for a reply, or None."""
        outstanding = self._turns.standing.outstanding
        return None if outstanding is None else outstanding.call.request

    def request_of(self, observation: Observation) -> ChatRequest | None:
        """Return the agent call that led to an observation, or None.

        This is for policies that read messages instead of tokens. Call it while the observation is
        being sampled, and pass the same object that the policy received.
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
        """How many times a conversation could not be continued token for token, by cause."""
        return self._turns.book.drift

    def report(self) -> Metrics:
        """Return the number of lineages, drifts and tool calls so far, as metrics."""
        return self._turns.account.report()

    # -- the end ---------------------------------------------------------------------------------

    async def close(self) -> None:
        """Abort the episode: cancel the agent, let its ``finally`` blocks run, and join its thread.

        This can be called more than once. A ``step`` that is waiting raises ``EnvClosedError``.
        Closing also works from another event loop while the Env's own loop is running. If that loop
        has stopped, pending calls are refused so that their threads can continue.
        """
        await self._turns.close()

    def __del__(self) -> None:
        turns: Turns | None = getattr(self, "_turns", None)
        # Compare with a string, because module globals may be gone at interpreter shutdown.
        if turns is None or turns.episode is None or turns.episode.life != "running":
            return
        turns.episode.drop()  # otherwise the agent's thread would wait forever
        warnings.warn(
            f"A ChatAgentEnv for {self._form.name} was garbage-collected while its agent was still "
            "running. Call close() when you are done with an Env.",
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
